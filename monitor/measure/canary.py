"""One canary, from the reading before it to the finished sample: stream, metrics page and GPU in
one row.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx

from monitor.measure.figures import decode_tok_s, itl_figures, load_figures, server_timing
from monitor.measure.gpu.figures import SampleGpu, sample_fields
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.answer import Answer
from monitor.measure.stream.client import Stream, stream
from monitor.measure.stream.patience import Limits
from monitor.measure.stream.request import canary_request
from monitor.model import GpuReading, Marks, Outcome, Phase, Probe, Sample, ServerPage

# Compiling a new parameter set was measured at 4 to 20 s on CPU; CUDA graphs take minutes.
COLD_WAIT_S = 300.0
HANG_AFTER_S = 10.0  # a step counter that does not move for this long is a hang
HOLD_OFF_S = 5.0  # vLLM may continue a request after its client left (vLLM issue 54947)
PAGE_SETTLE_S = 0.05  # the page may count the last engine step just after the stream has ended


class GpusNearby(Protocol):
    """The source of GPU readings (GpuWatch); None instead of one means that no GPU is watched."""

    def before(self, monotonic_ns: int) -> dict[str, GpuReading]: ...

    async def after(self, monotonic_ns: int, timeout_s: float = 0.5) -> dict[str, GpuReading]: ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """A sample with everything that does not fit into its row: the marks, the answer with its
    log-probabilities, and a sentence about a failure.
    """

    sample: Sample
    marks: Marks
    answer: Answer
    detail: str | None
    after: ServerPage | None
    http_status: int | None = None


@dataclass(slots=True)
class Canary:
    """Measures probes against one server. `hang_after_s`: the longest standstill of the step
    counter (COLD_WAIT_S after a cold start).
    """

    target: str
    http: httpx.AsyncClient
    page: MetricsPage
    model: str | None
    gpus: GpusNearby | None = None
    hang_after_s: float = HANG_AFTER_S

    async def measure(
        self,
        probe: Probe,
        phase: Phase,
        before: ServerPage,
        idle_before_s: float | None,
        cache_salt: str | None = None,
        compiling: bool = False,
    ) -> Measurement:
        """Sends the probe once, with a fresh cache salt unless one is given. It is never retried: a
        failure is a result.

        `compiling`: another canary of ours waits for a cold start, during which a step counter that
        stands still proves nothing.
        """
        sample = self._sample(probe, phase, idle_before_s)
        if before.asleep:
            return asleep(sample)
        run_id = uuid.uuid4().hex
        result = await stream(
            self.http,
            canary_request(probe, self.model, f"canary-{run_id}", cache_salt or run_id),
            limits_of(probe, phase, compiling, self.hang_after_s),
            before.engine_steps,
            self._steps,
        )
        after = await self._page_after(result, before)
        gpus = await self._gpus(result)
        return Measurement(
            sample=filled(sample, result, before, after, gpus),
            marks=result.marks,
            answer=result.answer,
            detail=result.detail or still_reasoning(probe, result),
            after=after,
            http_status=result.http_status,
        )

    def _sample(self, probe: Probe, phase: Phase, idle_before_s: float | None) -> Sample:
        """A sample that begins now and has not been measured yet."""
        return Sample(
            target=self.target,
            probe=probe.name,
            traffic_class=probe.traffic_class,
            started_at=datetime.now(UTC),
            phase=phase,
            outcome=Outcome.ASLEEP,
            priority=probe.priority,
            idle_before_s=idle_before_s,
        )

    async def _steps(self) -> float | None:
        return (await self.page.read()).engine_steps

    async def _page_after(self, result: Stream, before: ServerPage) -> ServerPage | None:
        """The page just after the stream, read again if it has not yet counted the tokens that we
        have received.
        """
        if result.outcome is Outcome.REFUSED:
            return None
        after = await self.page.read()
        ours = result.answer.tokens_received or 0
        late = (
            after.generation_tokens is not None
            and before.generation_tokens is not None
            and before.generation_tokens
            <= after.generation_tokens
            < before.generation_tokens + ours
        )
        if late:
            await asyncio.sleep(PAGE_SETTLE_S)
            after = await self.page.read()
        return after

    async def _gpus(self, result: Stream) -> SampleGpu:
        sent, done = result.marks.sent, result.marks.done
        if self.gpus is None or sent is None or done is None:
            return {}
        return sample_fields(self.gpus.before(sent), await self.gpus.after(done), sent, done)

    async def hold_off(self, waiting_before: float | None, limit_s: float = HOLD_OFF_S) -> None:
        """Waits after a cancelled canary until the server has dropped it (the waiting count falls),
        or `limit_s`.
        """
        end_s = time.monotonic() + limit_s
        peak = waiting_before or 0.0
        while time.monotonic() < end_s:
            waiting = (await self.page.read()).waiting
            if waiting is not None and waiting < max(peak, 1.0):
                return
            peak = max(peak, waiting or 0.0)
            await asyncio.sleep(0.25)


def limits_of(
    probe: Probe, phase: Phase, compiling: bool, hang_after_s: float = HANG_AFTER_S
) -> Limits:
    """The limits of a canary's wait. A cold one waits for the compilation of its parameter set, and
    so does any other while one is `compiling`. Pure.
    """
    still_s = max(COLD_WAIT_S, hang_after_s)
    if phase is Phase.COLD:
        return Limits(
            max_wait_s=None, hang_after_s=still_s, give_up_s=2 * still_s, answer_s=probe.timeout_s
        )
    return Limits(
        max_wait_s=probe.max_wait_s,
        hang_after_s=still_s if compiling else hang_after_s,
        answer_s=probe.timeout_s,
    )


def asleep(sample: Sample) -> Measurement:
    """The measurement of a canary that is not sent."""
    return Measurement(
        sample=sample,
        marks=Marks(),
        answer=Answer(),
        detail="the server sleeps (vllm:engine_sleep_state); a request would hang",
        after=None,
    )


def still_reasoning(probe: Probe, result: Stream) -> str | None:
    """A sentence for a model that used up its tokens on reasoning, where the probe judges the
    answer; None otherwise.
    """
    answer = result.answer
    if result.outcome is not Outcome.OK or not (probe.expect or probe.pinned):
        return None
    if (
        not answer.reasoning
        or answer.text
        or answer.tool_arguments
        or answer.finish_reason != "length"
    ):
        return None
    switch = (
        "raise max_tokens, or switch reasoning off with `chat_template_kwargs: "
        "{enable_thinking: false}` under sampling"
    )
    return (
        f"the model was still reasoning after {probe.max_tokens} tokens and has not "
        f"answered; {switch}"
    )


def filled(
    sample: Sample,
    result: Stream,
    before: ServerPage,
    after: ServerPage | None,
    gpus: SampleGpu,
) -> Sample:
    """The sample with every figure that the stream, the two pages and the GPUs give. Pure."""
    return replace(sample, **figures_of(result, before, after), **gpus)


def figures_of(result: Stream, before: ServerPage, after: ServerPage | None) -> dict[str, Any]:
    """The fields of a sample that follow from the stream and the two pages. Pure."""
    answer, marks = result.answer, result.marks
    return {
        "outcome": result.outcome,
        "connect_ms": marks.connect_ms,
        "ttft_ms": marks.ttft_ms,
        "ttft_visible_ms": marks.ttft_visible_ms,
        "e2e_ms": marks.e2e_ms,
        "decode_tok_s": decode_tok_s(answer) if result.outcome is Outcome.OK else None,
        "observer_lag_ms": result.observer_lag_ms,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens_received,
        "cached_tokens": answer.cached_tokens,
        "finish_reason": answer.finish_reason,
        "output": answer.text or answer.tool_arguments or None,
        **itl_figures(answer.arrivals_ns),
        **server_timing(result.outcome, answer, before, after),
        **load_figures(result.outcome, answer, before, after),
    }
