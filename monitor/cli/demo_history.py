"""The figures that `demo` reports: the daemon's history, read while it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from sqlalchemy import select

from monitor.alert import incidents
from monitor.model import Incident, Outcome, Phase, Sample
from monitor.show.terminal import number
from monitor.store.database import DatabaseError, reading
from monitor.store.queries import SampleFilter, samples, targets
from monitor.store.tables import gpu_reading as t
from monitor.store.times import from_us, to_us


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One window of GPU readings as the daemon has stored it; None: not read."""

    at: datetime
    temp_c: float | None
    clock_mhz: float | None
    power_w: float | None
    thermal_ns: int | None  # counter: time thermally throttled

    def __str__(self) -> str:
        return f"{number(self.temp_c)} °C, {number(self.clock_mhz)} MHz, {number(self.power_w)} W"


@dataclass(frozen=True, slots=True)
class History:
    """The daemon's database."""

    database: str

    def exists(self) -> bool:
        """Whether the daemon has created it and stored its target."""
        try:
            with reading(self.database) as connection:
                return bool(targets(connection))
        except DatabaseError:
            return False

    def samples(
        self,
        probe: str,
        since: datetime,
        outcome: Outcome | None = Outcome.OK,
        phase: Phase | None = None,
    ) -> list[Sample]:
        """Samples of one probe, oldest first."""
        with reading(self.database) as connection:
            found = samples(connection, SampleFilter(since=since, probe=probe))
        return [s for s in found if outcome in {None, s.outcome} and phase in {None, s.phase}]

    def gpu(self, since: datetime) -> list[GpuRow]:
        """Windows of GPU readings with a known temperature, oldest first."""
        columns = (
            t.c.at_us,
            t.c.temp_c_max,
            t.c.sm_clock_mhz_median,
            t.c.power_w_median,
            t.c.throttle_thermal_ns,
        )
        query = select(*columns).where(t.c.at_us >= to_us(since), t.c.temp_c_max.is_not(None))
        with reading(self.database) as connection:
            rows = connection.execute(query.order_by(t.c.at_us)).all()
        return [
            GpuRow(at=from_us(at), temp_c=temp, clock_mhz=clock, power_w=power, thermal_ns=thermal)
            for at, temp, clock, power, thermal in rows
        ]

    def incident(self, kind: str) -> Incident | None:
        """The open incident of this kind."""
        with reading(self.database) as connection:
            return next((i for i in incidents.open_incidents(connection) if i.kind == kind), None)


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the known values."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
