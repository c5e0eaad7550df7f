"""The schedule of the canaries: APScheduler fires, lanes run, and every run that did not happen is
counted with its reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, EVENT_JOB_SUBMITTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from monitor.daemon.lanes import Lane
from monitor.daemon.watch import TargetWatch
from monitor.measure.rounds import READING_EVERY_S
from monitor.model import Probe

log = logging.getLogger(__name__)
# bounds the walk through a schedule after the clock was set far forward
MAX_MISSED_COUNTED = 1_000_000
CLOCK_EVERY_S = 2.0
LEAST_SET_BACK_S = 1.0  # a smaller step back delays a run by no more than itself


async def watch_clock(on_set_back: Callable[[timedelta], None]) -> None:
    """Calls back whenever the computer's clock was set back, with how far: whatever waits for a
    time of day would wait until the clock has caught up.

    A clock that jumps ahead, as after a suspension, needs nothing: what is due runs once.
    """
    offset_s = time.time() - time.monotonic()
    while True:
        await asyncio.sleep(CLOCK_EVERY_S)
        before_s, offset_s = offset_s, time.time() - time.monotonic()
        back_s = before_s - offset_s
        if back_s >= LEAST_SET_BACK_S:
            log.warning("the clock was set back by %.0f s; the schedule restarts", back_s)
            on_set_back(timedelta(seconds=back_s))


def trigger_of(probe: Probe, first: datetime) -> Any:
    """Returns the trigger of a probe. All probes of a target share `first`, so that they fall due
    together and run back to back.
    """
    if probe.cron is not None:
        return CronTrigger.from_crontab(probe.cron, timezone=UTC)
    return IntervalTrigger(seconds=probe.every_s, start_date=first, timezone=UTC)


def runs_missed(trigger: Any, last: datetime, now_due: datetime) -> int:
    """Returns how many runs a schedule had strictly between two runs that were carried out."""
    missed = 0
    fire = trigger.get_next_fire_time(last, last + timedelta(microseconds=1))
    while fire is not None and fire < now_due and missed < MAX_MISSED_COUNTED:
        missed += 1
        fire = trigger.get_next_fire_time(fire, fire + timedelta(microseconds=1))
    return missed


def _reading(target: str) -> str:
    return f"{target}//reading"


class Schedule:
    """The jobs of all targets. `lanes` maps a target's name to its capped and its uncapped lane."""

    def __init__(
        self, watches: Sequence[TargetWatch], lanes: Mapping[str, tuple[Lane, Lane]]
    ) -> None:
        # coalesce: after a pause one run, not a burst; max_instances: a canary never overtakes
        # itself; the default grace of one second would drop runs after every pause (APScheduler 3.x
        # user guide, "Missed job executions and coalescing").
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        self._scheduler = AsyncIOScheduler(timezone=UTC, job_defaults=defaults)
        self._jobs: dict[str, tuple[TargetWatch, Probe]] = {}
        self._last: dict[str, datetime] = {}
        self._scheduler.add_listener(self._submitted, EVENT_JOB_SUBMITTED)
        self._scheduler.add_listener(self._not_run, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
        self._watches = list(watches)
        triggers = self._triggers(datetime.now(UTC))
        for watch in watches:
            name = watch.settings.name
            for probe in watch.probes:
                job_id = f"{name}/{probe.name}"
                self._jobs[job_id] = (watch, probe)
                lane = lanes[name][0] if probe.capped else lanes[name][1]
                self._scheduler.add_job(lane.submit, triggers[job_id], args=[probe], id=job_id)
            self._scheduler.add_job(
                watch.store_reading, triggers[_reading(name)], id=_reading(name)
            )

    def _triggers(self, now: datetime) -> dict[str, Any]:
        """Returns the triggers by job. Targets start spread over the shortest interval, the probes
        of one target together; its uncapped lane half an interval later, so that the two lanes
        seldom meet.
        """
        found: dict[str, Any] = {}
        for index, watch in enumerate(self._watches):
            shortest_s = min(
                (p.every_s for p in watch.probes if p.every_s is not None), default=60.0
            )
            first = now + timedelta(seconds=0.5 + shortest_s * index / len(self._watches))
            for probe in watch.probes:
                start = first if probe.capped else first + timedelta(seconds=shortest_s / 2)
                found[f"{watch.settings.name}/{probe.name}"] = trigger_of(probe, start)
            found[_reading(watch.settings.name)] = IntervalTrigger(
                seconds=READING_EVERY_S, start_date=first, timezone=UTC
            )
        return found

    def start(self) -> None:
        """Starts to fire."""
        self._scheduler.start()

    def restart(self) -> None:
        """Plans all runs again after the clock was set back; the old plan would wait for hours."""
        self._last.clear()
        for job_id, trigger in self._triggers(datetime.now(UTC)).items():
            self._scheduler.reschedule_job(job_id, trigger=trigger)

    def stop(self) -> None:
        """Ends the schedule; no new run begins."""
        # Jobs that wait for their round are cancelled now, which APScheduler would log as errors
        # with tracebacks.
        logging.getLogger("apscheduler.executors").setLevel(logging.CRITICAL)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _submitted(self, event: Any) -> None:
        """Records that a run begins."""
        job = self._jobs.get(event.job_id)
        if job is not None:
            self._due(job, event.job_id, event.scheduled_run_times)

    def _due(self, job: tuple[TargetWatch, Probe], job_id: str, times: Sequence[datetime]) -> None:
        """Processes runs that came due, and counts those that a pause has swallowed since the last
        ones.
        """
        last = self._last.get(job_id)
        self._last[job_id] = times[-1]
        missed = (
            0
            if last is None
            else runs_missed(self._scheduler.get_job(job_id).trigger, last, times[0])
        )
        if missed:
            self._skip(job, "pause", missed)

    def _not_run(self, event: Any) -> None:
        job = self._jobs.get(event.job_id)
        if job is None:
            return
        times = getattr(event, "scheduled_run_times", None) or [event.scheduled_run_time]
        self._due(job, event.job_id, times)
        self._skip(
            job, "still_running" if event.code == EVENT_JOB_MAX_INSTANCES else "pause", len(times)
        )

    def _skip(self, job: tuple[TargetWatch, Probe], reason: str, count: int) -> None:
        watch, probe = job
        log.debug(
            "target=%s probe=%s skipped=%d reason=%s",
            watch.settings.name,
            probe.name,
            count,
            reason,
        )
        watch.skip(probe.name, reason, count)
