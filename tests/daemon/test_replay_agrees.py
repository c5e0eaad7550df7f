"""The daemon, over any sequence of canaries, readings, outages and restarts, opens and closes the
same incidents at the same times as a replay of what it stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from types import SimpleNamespace
from typing import Any

from drifting import Tally
from histories import NOON, History, a_probe, a_sample
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.daemon.drift import DriftWatch
from monitor.daemon.feed import Feed
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.judging import judge_target
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Rules
from monitor.model import Outcome, Probe, ServerPage, Verdict, from_us
from monitor.replay.history import replay_history
from monitor.store import queries, record

SECOND = timedelta(seconds=1)
NO_ANSWER: dict[str, Any] = {"verdict": Verdict.UNKNOWN, "ttft_ms": None, "decode_tok_s": None}
#: What a canary may be, beside a good answer.
CANARIES: dict[str, dict[str, Any]] = {
    "good": {},
    "slow": {"decode_tok_s": 60.0},
    "wrong": {"verdict": Verdict.FAIL},
    "not judged": {"verdict": Verdict.UNKNOWN},
    "not pinned": {"verdict": Verdict.UNPINNED},
    "refused": {"outcome": Outcome.REFUSED, "e2e_ms": 1.0, **NO_ANSWER},
    "hung": {"outcome": Outcome.HUNG, "e2e_ms": 12_000.0, **NO_ANSWER},
    "error": {"outcome": Outcome.HTTP_ERROR, "e2e_ms": 5.0, **NO_ANSWER},
    "broken": {"outcome": Outcome.STREAM_ERROR, "e2e_ms": 30_000.0, "decode_tok_s": None},
    "queue": {"outcome": Outcome.QUEUE_CAP, "e2e_ms": 2_000.0, **NO_ANSWER},
    "cancelled": {"outcome": Outcome.CANCELLED, "e2e_ms": None, **NO_ANSWER},
}
NAMES = ("sky", "pinned")
TABLES = (
    "delivery",
    "incident_event",
    "finding",
    "incident",
    "detector_state",
    "server_reading",
    "sample",
)


@dataclass(frozen=True)
class Step:
    """Some seconds pass, and a row is stored: a canary of a probe, or a reading of the page."""

    after_s: int
    probe: str | None
    what: str


#: Judging comes at most every ten seconds in a replay; after a minute without a reading it takes
#: the monitor to have been stopped.
seconds = st.integers(10, 18)
canary = st.builds(Step, seconds, st.sampled_from(NAMES), st.sampled_from(sorted(CANARIES)))
page = st.builds(Step, seconds, st.none(), st.sampled_from(("ok", "ok", "refused", "timeout")))
#: The same for a while, so that three runs in a row, outages and silence are not too rare.
phase = st.tuples(canary, page, st.integers(1, 5)).map(lambda p: [p[0], p[1]] * p[2])
silence = st.integers(3, 16).map(lambda n: [Step(15, None, "ok")] * n)
stop = st.sampled_from((61, 600, 7200)).map(lambda s: [Step(s, None, "restart")])
quick = st.just([Step(10, None, "ok"), Step(10, None, "quick restart")])


def story(*kinds: Any) -> Any:
    """Many short phases of these kinds."""
    phases = st.lists(st.one_of(*kinds), min_size=1, max_size=8)
    return phases.map(lambda few: list(chain.from_iterable(few)))


class Daemon:
    """The judging half of a daemon, at work on a history."""

    def __init__(self, history: History, probes: list[Probe]) -> None:
        self.history, self.probes, self.now = history, probes, NOON
        target_id = history.target("local", NOON, {p.name: p.every_s for p in probes})
        self.watch = SimpleNamespace(
            settings=SimpleNamespace(name="local"),
            target_id=target_id,
            probes=probes,
            pins=[],
            gpus=TargetGpus(None, "none"),
            state=SimpleNamespace(idle=SimpleNamespace(interval_factor=lambda _: 1)),
            expected_since=None,
            lanes_in_flight=set,
            fingerprint_digest=lambda: None,
            revision_digest=lambda probe: probe.revision,
        )
        self.start()
        self.reads("ok")

    def start(self) -> None:
        """Starts, knowing nothing but the history."""
        self.watch.feed = Feed("local", self.probes, same_address=True)
        self.watch.drift = DriftWatch("local", DriftSettings(), Tally)
        self.since = self.now

    def does(self, step: Step) -> None:
        """Goes through one step."""
        self.now += step.after_s * SECOND
        if step.what in {"restart", "quick restart"}:
            self.start()
        if step.probe is None:
            self.reads("ok" if "restart" in step.what else step.what)
        else:
            self.measures(step.probe, CANARIES[step.what])

    def reads(self, state: Any) -> None:
        """Reads the metrics page."""
        page = ServerPage(at=self.now, state=state)
        self.judges(lambda c: record.insert_server_reading(c, self.watch.target_id, page, None))

    def measures(self, probe: str, changes: dict[str, Any]) -> None:
        """Stores a canary whose answer ends now."""
        values = {"decode_tok_s": 100.0, "e2e_ms": 90.0, **changes}
        started_at = self.now - timedelta(milliseconds=values["e2e_ms"] or 0.0)
        self.history.samples([a_sample(probe=probe, started_at=started_at, **values)])
        self.judges(lambda _: None)

    def judges(self, store: Any) -> None:
        """Stores something and judges at once."""

        def work(c: Connection) -> None:
            store(c)
            watch: Any = self.watch
            judge_target(c, watch, self.since, self.now, [])

        self.history.do(work)

    def found(self) -> list[tuple[str, str, datetime, datetime | None]]:
        """Its incidents."""
        stored = self.history.do(lambda c: incidents.recent(c, None, "local", None))
        return sorted((i.kind.value, i.subject, i.opened_at, i.closed_at) for i in stored)


def replayed(
    history: History, probes: list[Probe]
) -> list[tuple[str, str, datetime, datetime | None]]:
    """The incidents of a replay of the history."""
    intervals = {p.name: timedelta(seconds=p.every_s) for p in probes if p.every_s is not None}
    rules = Rules(probes={p.name: p for p in probes}, intervals=intervals, only_known=True)
    with history.engine.connect() as connection:
        row = queries.target(connection, "local")
        assert row is not None
        past = replay_history(connection, row, DriftSettings(), rules=rules, make=Tally)
    return sorted(
        (
            i.kind.value,
            i.subject,
            i.opened_at,
            None if i.closed_us is None else from_us(i.closed_us),
        )
        for i in past.incidents
    )


def agree(history: History, steps: list[Step], every_s: float | None) -> list[str]:
    """Asserts that both find the same; returns the kinds."""
    for table in TABLES:
        history.do(lambda c, table=table: c.exec_driver_sql(f"DELETE FROM {table}"))
    probes = [a_probe(name, every_s=every_s, pinned=name == "pinned") for name in NAMES]
    daemon = Daemon(history, probes)
    for step in steps:
        daemon.does(step)
    assert daemon.found() == replayed(history, probes)
    return [kind for kind, *_ in daemon.found()]


many = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@many
@given(steps=story(phase, silence, stop))
@example(steps=[Step(15, "sky", "refused"), Step(15, None, "refused"), Step(61, None, "restart")])
def test_a_replay_finds_what_the_daemon_found_that_was_stopped_for_a_while_now_and_then(
    history: History, steps: list[Step]
) -> None:
    agree(history, steps, every_s=60.0)


@many
@given(steps=story(phase, quick))
def test_a_replay_finds_what_the_daemon_found_that_was_restarted_at_once(
    history: History, steps: list[Step]
) -> None:
    """Silence is left out: a daemon counts it from its own start."""
    agree(history, steps, every_s=None)


def test_every_kind_of_both_is_among_what_is_compared(history: History) -> None:
    three = [
        [Step(15, name, what), Step(15, None, "ok")] * 3
        for name, what in (("sky", "slow"), ("sky", "wrong"), ("pinned", "not pinned"))
    ]
    steps = [
        Step(15, "sky", "good"),
        *chain.from_iterable(three),
        Step(15, "sky", "hung"),
        *[Step(15, None, "refused")] * 3,
        Step(61, None, "restart"),
        *[Step(15, None, "ok")] * 15,
    ]
    assert set(agree(history, steps, every_s=60.0)) == {
        "hung",
        "no_samples",
        "quality",
        "server_down",
        "speed",
        "unknown_lasting",
    }
