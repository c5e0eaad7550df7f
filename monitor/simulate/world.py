"""The core of the simulator: one server, its GPUs, and what happens to them, in virtual time.

The contract for scenarios, traffic, the control endpoint, the real-time server and the virtual-time
export:

* Time is `now_s`, seconds since the world began; `epoch_s` is the unix time of its second 0.
  Nothing here reads a clock.
* `advance(to_s)` runs everything up to then, in order: steps of the engine (tokens are delivered to
  each request's `on_tokens`; `on_end` follows the last one), the sources (scenario, traffic), and
  heat in the GPUs. `next_event_s()` is the time of the next event, so that a driver can sleep until
  then; None: nothing is due. `on_change` is called when that time may have changed, from inside or
  outside.
* `submit(request)` and `cancel(handle)` happen at `now_s`; advance first. `submit` returns None
  where the request is not accepted (`refusal()` gives the reason: down, dead, busy).
* `set(name, value)` changes a setting, `get(name)` reads it, `settable` lists the names: fields of
  EngineConfig and Identity, `answers` (the variant of the model), `gpu.FIELD` of every GPU,
  `gpu.0.FIELD` of one, `driver_version` of all, `GROUP.FIELD` of any dataclass in `groups`
  (traffic, for example). `dead` = True kills the engine and its requests; `restart` = true, or its
  duration in seconds, calls `restart()`. An unknown name or a wrong value raises SettingError.
* `restart(down_s, **changes)` starts a new process: counters start at 0, the prefix cache is empty,
  answers are cold again (`cold_s`), faults of the old process (frozen, dead, asleep, slow start)
  are gone; then the changes are set. While `is_down`, connections are refused.
* A source has `next_s()`, infinite when nothing is due, and `advance(now_s)`; after adding one to
  `sources` call `changed()`.
* Call `settle()` before reading a GPU: until then its last tenth of a second is not accounted for.
* All randomness comes from `seed`: the same seed and the same calls give the same history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Literal

from monitor.simulate.engine.costs import EngineConfig, Speeds
from monitor.simulate.engine.counters import Counters
from monitor.simulate.engine.engine import Engine
from monitor.simulate.engine.requests import EngineRequest, Handle
from monitor.simulate.engine.scheduler import Gauges
from monitor.simulate.identity import Identity, system_fingerprint
from monitor.simulate.model.language_model import VARIANTS
from monitor.simulate.protocols import EventSource, ForeseeableSource, GpuLike
from monitor.simulate.settings import SettingError, assign, checked, current_name, settable, shown

GPU_STEP_S = 0.1  # GPUs advance in steps of about this length: fine enough for heat, and cheap
LONGEST_DOWN_S = 1e6  # of a restart
EXIT_AFTER_S = 5.0  # the API server exits 4.5 to 5 s after its engine died (seen on vLLM 0.32 CPU)


@dataclass
class World:
    """One simulated server with its GPUs. See the contract at the top."""

    counters_kind: ClassVar[type[Counters]] = Counters
    config: EngineConfig = field(default_factory=EngineConfig)
    identity: Identity = field(default_factory=Identity)
    gpus: Sequence[GpuLike] = ()
    seed: int = 0
    epoch_s: float = 0.0
    answers: str = "healthy"
    sources: list[EventSource] = field(default_factory=list)
    # name -> dataclass whose fields are settable as NAME.FIELD
    groups: dict[str, object] = field(default_factory=dict)
    on_change: Callable[[], None] | None = None
    # the source that can generate its requests ahead of time
    background: ForeseeableSource | None = None
    now_s: float = field(default=0.0, init=False)
    changes: int = field(default=0, init=False)  # how many times a setting was changed
    down_until_s: float = field(default=0.0, init=False)
    died_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Creates the engine."""
        self.engine = Engine(
            self.config, self.speeds, self.identity.max_model_len, self.seed, self.counters_kind
        )
        self._accounted_s = 0.0  # GPU work is known up to here
        self._span_s = self._busy_s = self._prefill_s = (
            0.0  # known work that the GPUs have not been advanced by
        )

    # -- time

    def next_event_s(self) -> float | None:
        """Time of the next event; None: nothing is due."""
        step_s = self.engine.next_step_s()
        soonest = min((source.next_s() for source in self.sources), default=inf)
        soonest = soonest if step_s is None else min(soonest, step_s)
        return None if soonest == inf else soonest

    def advance(self, to_s: float) -> None:
        """Runs everything up to and including `to_s`."""
        while (due_s := self.next_event_s()) is not None and due_s <= to_s:
            self.now_s = max(self.now_s, due_s)
            step_s = self.engine.next_step_s()
            if step_s is not None and step_s <= self.now_s:
                self._step()
            for source in list(self.sources):
                if source.next_s() <= self.now_s:
                    source.advance(self.now_s)
        self.now_s = max(self.now_s, to_s)
        self._account()

    def settle(self) -> None:
        """Advances the GPUs up to now."""
        self._account()
        self._advance_gpus()

    @property
    def unix_s(self) -> float:
        """Now, as unix time."""
        return self.epoch_s + self.now_s

    @property
    def process_start_s(self) -> float:
        """Unix time at which the present process began."""
        return self.epoch_s + self.engine.started_s

    # -- requests

    @property
    def is_down(self) -> bool:
        """Whether connections are refused: during a restart, or after the engine died."""
        return self.now_s < self.down_until_s or (
            self.died_s is not None and self.now_s >= self.died_s + EXIT_AFTER_S
        )

    def refusal(self) -> Literal["down", "dead", "busy"] | None:
        """Why a request would be refused now."""
        if self.is_down:
            return "down"
        if self.config.dead:
            return "dead"
        limit = self.config.max_num_queued_reqs
        return "busy" if limit is not None and self.engine.waiting >= limit else None

    def submit(self, request: EngineRequest) -> Handle | None:
        """Hands a request to the engine; None where it is refused. Raises ValueError as
        Engine.submit does.
        """
        refused = self.refusal()
        if refused is not None:
            self.engine.counters.admission_rejections += refused == "busy"
            return None
        self._account()
        handle = self.engine.submit(request, self.now_s)
        self.changed()
        return handle

    def cancel(self, handle: Handle) -> None:
        """Cancels a request: the client has disconnected."""
        self.engine.cancel(handle)
        self.changed()

    def changed(self) -> None:
        """Signals that the next event may have moved."""
        if self.on_change is not None:
            self.on_change()

    # -- settings

    @property
    def settable(self) -> tuple[str, ...]:
        """All names that `set` accepts."""
        gpus = [settable(gpu) for gpu in self.gpus]
        each = [f"gpu.{name}" for name in (gpus[0] if gpus else ())]
        one = [f"gpu.{index}.{name}" for index, names in enumerate(gpus) for name in names]
        grouped = [
            f"{group}.{name}" for group, thing in self.groups.items() for name in settable(thing)
        ]
        plain = (
            *settable(EngineConfig),
            *settable(Identity),
            "answers",
            "restart",
            *(["driver_version"] if self.gpus else []),
        )
        return (*plain, *grouped, *each, *one)

    def settings(self) -> dict[str, Any]:
        """Every setting with its present value, a GPU's as `gpu.0.FIELD`."""
        every = {
            name for name in self.settable if name.startswith("gpu.") and not name[4].isdigit()
        }
        return {
            name: self.get(name)
            for name in self.settable
            if name not in every and name != "restart"
        }

    def get(self, name: str) -> Any:
        """The present value of a setting; of several GPUs, the first one's. Raises SettingError."""
        if name == "answers":
            return self.answers
        if name == "restart":
            return None
        things, attribute = self._things(name)
        return getattr(things[0], attribute)

    def check(self, name: str, value: Any) -> None:
        """Raises SettingError where `set` would."""
        if name == "answers":
            if value not in VARIANTS:
                raise SettingError(
                    f"answers cannot be {value!r}; it is one of: {', '.join(VARIANTS)}"
                )
        elif name == "restart":
            if value is not True and (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value <= LONGEST_DOWN_S
            ):
                raise SettingError(
                    f"restart cannot be {value!r}; it is true, or its duration in seconds, "
                    f"{LONGEST_DOWN_S:,.0f} at most"
                )
        else:
            things, attribute = self._things(name)
            for thing in things:
                checked(thing, attribute, value, name)

    def set(self, name: str, value: Any) -> None:
        """Changes one setting now. Raises SettingError."""
        self.check(name, value)
        self.settle()
        self.changes += 1
        if name == "answers":
            self.answers = value
        elif name == "restart":
            self.restart(0.0 if value is True else float(value))
        else:
            things, attribute = self._things(name)
            was_dead = self.config.dead
            for thing in things:
                assign(thing, attribute, value, name)
            if self.config.dead is not was_dead:
                self._live_or_die()
        self.engine.kick(self.now_s)
        self.changed()

    def restart(self, down_s: float = 0.0, **changes: Any) -> None:
        """Starts a new process that listens after `down_s`; `changes` are settings that
        take effect with it. Raises SettingError.
        """
        config = self.config
        self._account()
        self.down_until_s, self.died_s = self.now_s + down_s, None
        config.dead = config.frozen = config.asleep = False
        config.slow_start_factor = 1.0
        for name, value in changes.items():
            self.set(name, value)
        lost = self.engine.restart(self.down_until_s, self.identity.max_model_len)
        self._report_lost(lost, "restarted")
        self.changed()

    def system_fingerprint(self) -> str | None:
        """The system_fingerprint of answers."""
        return system_fingerprint(self.identity, shown(self.config))

    def gauges(self) -> Gauges:
        """The queue figures of the metrics page."""
        return self.engine.gauges

    def speeds(self, work_s: float = 0.0) -> Speeds:
        """The slowest GPU sets the speed of all. `work_s`: the speed after that much more work."""
        found = [gpu.speeds(work_s) for gpu in self.gpus]
        if len(found) == 1:
            return found[0]
        if not found:
            return Speeds(1.0, 1.0)
        return Speeds(min(s.prefill for s in found), min(s.decode for s in found))

    # -- internals

    def _step(self) -> None:
        self._account()
        for handle, count in self.engine.step(self.now_s).produced:
            if handle.request.on_tokens is not None:
                handle.request.on_tokens(handle, count, self.now_s)
            if handle.request.on_end is not None and handle.finished:
                handle.request.on_end(handle)

    def _live_or_die(self) -> None:
        self.died_s = self.now_s if self.config.dead else None
        if self.config.dead:
            self._report_lost(self.engine.lose_all(), "died")

    @staticmethod
    def _report_lost(lost: Sequence[Handle], why: str) -> None:
        for handle in lost:
            if handle.request.on_lost is not None:
                handle.request.on_lost(handle, why)

    def _things(self, name: str) -> tuple[Sequence[object], str]:
        """The objects that a name belongs to, and the name of their field. Raises SettingError."""
        name = current_name(name)
        group, _, rest = name.partition(".")
        index, _, of_one = rest.partition(".")
        things: Sequence[object]
        if group == "gpu" and index.isdigit():
            things, attribute = self.gpus[int(index) : int(index) + 1], of_one
        elif group == "gpu" or name == "driver_version":
            things, attribute = self.gpus, rest or name
        elif rest:
            things, attribute = [self.groups[group]] if group in self.groups else [], rest
        else:
            things, attribute = (
                [thing for thing in (self.config, self.identity) if name in settable(thing)],
                name,
            )
        if not things or any(attribute not in settable(thing) for thing in things):
            raise SettingError(
                f"there is no setting {name!r}; there are: {', '.join(self.settable)}"
            )
        return things, attribute

    def _account(self) -> None:
        """Accounts for the GPUs' work up to now."""
        current, now_s = self.engine.current, self.now_s
        if now_s <= self._accounted_s:
            return
        if current is not None:
            self._account_span(min(current.start_s, now_s), 0.0, 0.0)
            self._account_span(min(current.end_s, now_s), current.busy, current.prefill_share)
        self._account_span(now_s, 0.0, 0.0)

    def _account_span(self, to_s: float, busy: float, prefill_share: float) -> None:
        dt_s = to_s - self._accounted_s
        if dt_s <= 0:
            return
        self._accounted_s = to_s
        if not busy and dt_s > GPU_STEP_S:
            self._advance_gpus()  # otherwise a short burst would be averaged over a long idle time
        self._span_s += dt_s
        self._busy_s += dt_s * busy
        self._prefill_s += dt_s * busy * prefill_share
        if self._span_s >= GPU_STEP_S:
            self._advance_gpus()

    def _advance_gpus(self) -> None:
        if self._span_s <= 0:
            return
        for gpu in self.gpus:
            gpu.advance(
                self._span_s,
                self._busy_s / self._span_s,
                self._prefill_s / self._busy_s if self._busy_s else 0.0,
            )
        self._span_s = self._busy_s = self._prefill_s = 0.0
