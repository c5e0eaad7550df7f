"""Recording pins on one target: the repeats of a probe become a pin, or a reason why not."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from monitor.cli.common import CommandError, now_utc
from monitor.daemon.oneshot import under_load
from monitor.daemon.scoring import scoring_noise
from monitor.daemon.target import Skipped
from monitor.daemon.watch import TargetWatch
from monitor.errors import UNMEASURED
from monitor.judge.quality.pinning import doubts, expiry, noise_of, outputs_of, unfit
from monitor.measure.canary import Measurement
from monitor.measure.stream.answer import observed
from monitor.model import REGRESSIONS, ObservedAnswer, Outcome, Pin, Probe
from monitor.show.terminal import progress_console

LOAD_REQUESTS = 2
NO_LOGPROBS = (
    "not pinned: the answer came without log-probabilities, and without them a near tie cannot be "
    "distinguished from a different answer"
)
NOT_READ = (
    "what is served could not be identified: the pin is filed under the first identity that is read"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to record: the options of `pin`."""

    reason: str
    life: timedelta
    repeats: int
    under_load: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result for one probe. `pin` None: not pinned, and `note` says why. `wrong`: there was an
    answer, but not one to pin.
    """

    target: str
    probe: str
    pin: Pin | None
    note: str
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """One target being pinned."""

    watch: TargetWatch
    plan: Plan

    async def refuse_unseen_change(self) -> None:
        """Raises CommandError if the history does not know what is served now: pins are filed under
        the known identity. If a daemon watches the target, recording the change is its task.
        """
        page = await self.watch.read_page()
        await self.watch.refresh_identity(page)
        unseen = await self.watch.identity.unseen(page)
        if not unseen:
            return
        changes = ", ".join(f"{c.field} {c.before} → {c.after}" for c in unseen)
        why = (
            f"{self.watch.settings.name} differs from what the history knows of it ({changes}): "
            "pins would be filed under the previous identity."
        )
        if await self.watch.identity.is_ours():
            advice = "It is still changing; pin again when it is stable"
        else:
            advice = (
                "The daemon that watches it records such a change within minutes. `vllm-canary "
                "status` shows whether the daemon is running; start it if necessary, then pin again"
            )
        raise CommandError(f"{why} {advice}", code=UNMEASURED)

    async def observe(self, probe: Probe) -> Recorded:
        """Runs the repeats of one probe; stops at the first that has no answer, or a wrong one."""
        runs: list[tuple[Measurement, ObservedAnswer]] = []
        for number in range(self.plan.repeats):
            done = await self._run(probe, number)
            if isinstance(done, Skipped):
                return self._not_pinned(probe, f"skipped: {done.reason}")
            answer = observed(done.answer)
            refused = self._refused(probe, done, answer)
            if refused is not None:
                return refused
            runs.append((done, answer))
        return await self._made(probe, runs)

    async def _run(self, probe: Probe, number: int) -> Measurement | Skipped:
        shown, name = progress_console(), self.watch.settings.name
        if shown is not None:
            shown.print(f"{name}: {probe.name} {number + 1}/{self.plan.repeats} …", style="dim")
        loaded = self.plan.under_load and number % 2 == 1
        async with under_load(self.watch, LOAD_REQUESTS if loaded else 0):
            done = await self.watch.run(probe)
        return done if isinstance(done, Skipped) else done[0]

    def _refused(
        self, probe: Probe, measured: Measurement, answer: ObservedAnswer
    ) -> Recorded | None:
        """Why this run cannot become part of a pin; None if it can."""
        outcome = measured.sample.outcome
        if outcome is not Outcome.OK:
            why = measured.detail or outcome.value
            return self._not_pinned(probe, f"not pinned: {why}", wrong=outcome in REGRESSIONS)
        why_unfit = unfit(probe, answer)
        if why_unfit is not None:
            return self._not_pinned(probe, f"not pinned: {why_unfit}", wrong=True)
        return None if answer.tokens else self._not_pinned(probe, NO_LOGPROBS)

    def _not_pinned(self, probe: Probe, note: str, wrong: bool = False) -> Recorded:
        return Recorded(self.watch.settings.name, probe.name, None, note, wrong)

    async def _made(
        self, probe: Probe, runs: Sequence[tuple[Measurement, ObservedAnswer]]
    ) -> Recorded:
        """The pin, not yet stored."""
        answers = [answer for _, answer in runs]
        outputs = outputs_of(answers)
        # Scoring adds noise of its own, which counts too: scored answers are judged by it.
        canary = self.watch.canary
        scored = await scoring_noise(canary.http, probe, canary.model, outputs)
        noise = [nat for nat in (noise_of(answers, outputs), scored) if nat is not None]
        warm = [measured.sample for measured, _ in runs[1:] or runs]  # the first may be cold
        now = now_utc()
        pin = Pin(
            id=0,
            target=self.watch.settings.name,
            probe=probe.name,
            revision=self.watch.revision_digest(probe),
            fingerprint=self.watch.fingerprint_digest(),
            reason=self.plan.reason,
            author=getpass.getuser(),
            created_at=now,
            expires_at=expiry(probe.name, now, self.plan.life),
            outputs=outputs,
            prompt_tokens=answers[0].prompt_tokens,
            noise_nat=max(noise, default=None),
            ttft_ms=tuple(s.ttft_ms for s in warm if s.ttft_ms is not None),
            decode_tok_s=tuple(s.decode_tok_s for s in warm if s.decode_tok_s is not None),
        )
        return Recorded(pin.target, probe.name, pin, "; ".join(self._remarks(pin, answers)))

    def _remarks(self, pin: Pin, answers: Sequence[ObservedAnswer]) -> list[str]:
        count = len(pin.outputs)
        return [
            *([] if count == 1 else [f"{count} different answers"]),
            *doubts(answers, pin.noise_nat),
            *([NOT_READ] if pin.fingerprint is None and not self.plan.dry_run else []),
        ]

    async def store(self, one: Recorded) -> Recorded:
        """Stores the pin; the one that it replaces is retired, not deleted."""
        if one.pin is None:
            return one
        same_identity = {one.pin.fingerprint, None}
        replaced = [
            str(p.id)
            for p in self.watch.pins
            if p.probe == one.probe and p.fingerprint in same_identity
        ]
        stored = replace(one.pin, id=await self.watch.store_pin(one.pin))
        remark = f"replaces pin {', '.join(replaced)}, which is kept" if replaced else ""
        return replace(one, pin=stored, note="; ".join(filter(None, [one.note, remark])))
