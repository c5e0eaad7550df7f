"""The GPUs of one target, seen through the one GPU watch of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from monitor.config.target import DcgmSource
from monitor.measure.gpu.dcgm import DcgmSession
from monitor.measure.gpu.figures import GpuWindow
from monitor.measure.gpu.session import GpusIdentity
from monitor.measure.gpu.state import Timing
from monitor.measure.gpu.watch import GpuWatch
from monitor.model import DRIVER, GpuEvent, GpuReading, GpusView

GpuChoice = Literal["auto", "none"] | list[str] | DcgmSource
# an exporter reads its GPUs every 30 s by default; asking more often finds the new page
# sooner
PAGE_EVERY_S = 5.0
FIRST_LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class TargetGpus:
    """What a target may see of the watch: its own GPUs, or all of this machine's."""

    watch: GpuWatch | None
    chosen: GpuChoice

    @property
    def watching(self) -> bool:
        """Whether any GPU is watched for this target."""
        return self.watch is not None and self.chosen != "none"

    def before(self, monotonic_ns: int) -> dict[str, GpuReading]:
        """As GpuWatch.before, for this target's GPUs."""
        return {} if self.watch is None else self._own(self.watch.before(monotonic_ns))

    async def after(self, monotonic_ns: int, timeout_s: float = 0.5) -> dict[str, GpuReading]:
        """As GpuWatch.after, for this target's GPUs."""
        return (
            {} if self.watch is None else self._own(await self.watch.after(monotonic_ns, timeout_s))
        )

    def identity(self) -> tuple[GpusIdentity | None, str | None]:
        """Driver and GPUs, or why they are unknown."""
        if self.watch is None or self.chosen == "none":
            return None, "no GPU is watched for this target"
        found = self.watch.identity()
        return found, None if found is not None else self.watch.state().reason

    def settled(self) -> tuple[object, ...] | None:
        """What of the identity should stay as it is (not the processes and their memory): when it
        moves, the identity is read again.
        """
        found, _ = self.identity()
        if found is None:
            return None
        gpus = tuple(
            (c.uuid, c.power_limit_w, c.max_sm_clock_mhz, c.ecc, c.mig) for c in found.gpus
        )
        return (found.driver_version, found.cuda_driver_version, gpus)

    def view(self) -> GpusView | None:
        """What can be seen of this target's GPUs now; None where none is watched for it."""
        if self.watch is None or self.chosen == "none":
            return None
        answering, problems, known = (
            self.watch.answering(),
            self.watch.state().problems,
            self.watch.known(),
        )
        if not isinstance(self.chosen, list):
            return GpusView(known, answering, problems)
        own = frozenset(self.chosen)
        return GpusView(
            own,
            answering & own,
            {gpu: problem for gpu, problem in problems.items() if gpu in own | {DRIVER}},
        )

    def watches(self, subject: str) -> bool:
        """Whether a GPU, or DRIVER, is watched for this target; of all GPUs of a machine any may
        be.
        """
        return self.watching and (
            not isinstance(self.chosen, list) or subject in {*self.chosen, DRIVER}
        )

    def _own(self, readings: Mapping[str, GpuReading]) -> dict[str, GpuReading]:
        return {
            uuid: r
            for uuid, r in readings.items()
            if not isinstance(self.chosen, list) or uuid in self.chosen
        }


class GpuWatches:
    """All watches of a process: one NVML watch for this machine's GPUs, and one for each DCGM
    page.
    """

    def __init__(
        self,
        per_target: Sequence[GpuChoice],
        on_window: Callable[[GpuWindow], None] | None = None,
        timing: Timing | None = None,
        on_event: Callable[[GpuEvent], None] | None = None,
    ) -> None:
        timing = timing or Timing()
        own = wanted_gpus([choice for choice in per_target if not isinstance(choice, DcgmSource)])
        pages = {choice.dcgm for choice in per_target if isinstance(choice, DcgmSource)}
        handed = partial(GpuWatch, on_window=on_window, on_event=on_event, timing=timing)
        self.nvml = handed(own)
        self._pages = {
            url: handed("auto", PAGE_EVERY_S, open_session=partial(open_page, url, {}))
            for url in pages
        }

    def start(self) -> None:
        """Begin to watch."""
        for watch in self.all():
            watch.start()

    async def first_reading(self) -> None:
        """Give the watches a moment to read their GPUs; a machine without a GPU says so at
        once.
        """
        for _ in range(int(FIRST_LOOK_S / 0.05)):
            if all(
                w.identity() is not None or w.state().status in {"absent", "off"}
                for w in self.all()
            ):
                return
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """End all watches."""
        for watch in self.all():
            watch.stop()

    def all(self) -> list[GpuWatch]:
        """Every watch."""
        return [self.nvml, *self._pages.values()]

    def of(self, choice: GpuChoice) -> TargetGpus:
        """What one target may see."""
        return TargetGpus(
            self._pages[choice.dcgm] if isinstance(choice, DcgmSource) else self.nvml, choice
        )


def open_page(url: str, xids: dict[str, int]) -> DcgmSession:
    """A session on a DCGM page; `xids` keeps each GPU's last code from one session to the next.
    Raises GpusUnavailableError.
    """
    session = DcgmSession(url, xids=xids)
    session.open()
    return session


def wanted_gpus(per_target: Sequence[GpuChoice]) -> Literal["auto", "none"] | list[str]:
    """What one watch must read to serve several targets."""
    if "auto" in per_target:
        return "auto"
    return (
        sorted({uuid for gpus in per_target if isinstance(gpus, list) for uuid in gpus}) or "none"
    )
