"""What `check` and `init` find out about a server before it is watched: each finding with its
state, its meaning and its mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import httpx

from monitor.config.probes import misfit
from monitor.config.problems import Problem
from monitor.measure.canary import Canary, Measurement
from monitor.measure.server import api
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.answer import Answer
from monitor.measure.stream.long_prompt import lengthened
from monitor.model import Outcome, Phase, Probe, ServerPage

State = Literal["good", "bad", "unknown"]
SHORT_ANSWER = 16  # tokens: enough to see whether they come one after the other
TOGETHER_MS = (
    0.2  # no server makes the tokens of one stream so close together: it would be 5,000 a second
)
BUSY_MS = (
    20.0  # a loop that stood still for so long may have found tokens in a heap that it made itself
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `check`. `mend` says what to do about it, and what it costs to leave it."""

    name: str
    state: State
    detail: str
    mend: str | None = None


@dataclass(slots=True)
class Preflight:
    """One server under examination."""

    name: str
    http: httpx.AsyncClient
    page: MetricsPage
    model: str | None
    checks: list[Check] = field(default_factory=list)
    max_model_len: int | None = None
    lengths: dict[str, int] = field(default_factory=dict)  # prompt tokens by probe
    misfits: list[Problem] = field(default_factory=list)  # probes that cannot run in this context

    def say(self, what: str, state: State, detail: str, mend: str | None = None) -> None:
        """Note one finding."""
        self.checks.append(
            Check(f"{self.name}: {what}" if what else self.name, state, detail, mend)
        )

    async def server(self, served: Sequence[api.ServedModel]) -> None:
        """Version and model; `served` were read by the caller, who knows which failures end
        everything.
        """
        try:
            version = await api.version(self.http)
        except (api.ServerUnreachableError, api.ServerRefusedError):
            version = None
        self.say(
            "server", "good", f"vLLM {version or 'of unknown version'} at {self.http.base_url}"
        )
        model = next((c for c in served if c.id == self.model), None)
        if model is None:
            known = ", ".join(c.id for c in served) or "none"
            self.say(
                "model",
                "bad",
                f"the server does not serve {self.model}",
                f"set `model:` to one that it does: {known}",
            )
            return
        self.max_model_len = model.max_model_len
        context = (
            f"context {model.max_model_len} tokens"
            if model.max_model_len
            else "context length not told"
        )
        self.say("model", "good", f"{model.id} from {model.root or 'an unknown place'}, {context}")

    async def metrics(self) -> ServerPage:
        """The metrics page, and which of the figures we need it lacks."""
        page = await self.page.read()
        if page.state != "ok":
            mend = (
                "give its address with metrics_url; without it queue, load, idle time and "
                "hangs stay unknown"
            )
            self.say("metrics page", "bad", f"could not be read ({page.state})", mend)
            return page
        needed = (
            "running",
            "waiting",
            "kv_usage",
            "engine_steps",
            "generation_tokens",
            "queue_count",
        )
        missing = [name for name in needed if getattr(page, name) is None]
        if missing:
            mend = (
                "start the server without --disable-log-stats; what is missing stays "
                "unknown in the history"
            )
            self.say("metrics page", "unknown", f"read, but without {', '.join(missing)}", mend)
        else:
            self.say("metrics page", "good", "read, with every figure that is needed")
        if page.process_start_s is None:
            self.say(
                "process start",
                "unknown",
                "not told (several API servers); restarts are seen by counters that fall",
            )
        if page.asleep:
            self.say(
                "engine", "bad", "the server sleeps; requests would hang", "wake it: POST /wake_up"
            )
        return page

    async def probe_lengths(self, probes: Sequence[Probe], directory: Path) -> None:
        """Each probe's length against the context; `directory` is where their files are."""
        for probe in probes:
            try:
                length = await api.prompt_length(self.http, await self.fitted(probe), self.model)
            except (api.ServerUnreachableError, api.ServerRefusedError) as error:
                self.say(f"probe {probe.name}", "unknown", f"its length cannot be told: {error}")
                continue
            self.lengths[probe.name] = length
            problem = (
                misfit(probe, length, self.max_model_len, directory) if self.max_model_len else None
            )
            if problem is not None:
                self.misfits.append(problem)
                self.say(
                    f"probe {probe.name}",
                    "bad",
                    str(problem),
                    "until then the server refuses it at every run",
                )
            else:
                of = f" of {self.max_model_len}" if self.max_model_len else ""
                self.say(
                    f"probe {probe.name}",
                    "good",
                    f"{length} prompt and up to {probe.max_tokens} answer tokens{of}",
                )

    async def trial(self, probe: Probe, page: ServerPage) -> Measurement:
        """Send a probe once, with the patience of a cold start."""
        canary = Canary(self.name, self.http, self.page, self.model)
        return await canary.measure(await self.fitted(probe), Phase.COLD, page, None)

    async def learn_context(self) -> None:
        """The context's length, where the server tells it. Raises what monitor.measure.server.api
        raises.
        """
        served = await api.models(self.http)
        self.max_model_len = next(
            (model.max_model_len for model in served if model.id == self.model), None
        )

    async def fitted(self, probe: Probe) -> Probe:
        """The probe as it is sent here: one that fills a share of the context is lengthened to
        it.
        """
        if probe.context_share is None or self.max_model_len is None:
            return probe
        return await lengthened(self.http, probe, self.model, self.max_model_len)

    async def answer_details(self, probe: Probe, page: ServerPage) -> None:
        """One short answer shows whether the server tells its own timings and its cached tokens."""
        sampling = {"temperature": 0.0, "seed": 0, "ignore_eos": True, "min_tokens": SHORT_ANSWER}
        short = replace(probe, max_tokens=SHORT_ANSWER, sampling=sampling, timeout_s=60.0)
        measured = await self.trial(short, page)
        if measured.sample.outcome is not Outcome.OK:
            self.say(
                "answer",
                "bad",
                measured.detail or f"a request ended as {measured.sample.outcome.value}",
                "see the server's log",
            )
            return
        self.say("answer", "good", f"first token after {measured.sample.ttft_ms or 0:.0f} ms")
        self._stream(measured)
        if measured.answer.reasoning:
            mend = (
                "`vllm-canary init` tries each probe; raise max_tokens, or switch it off "
                "with `chat_template_kwargs` under sampling"
            )
            self.say(
                "reasoning",
                "unknown",
                "the model reasons before it answers, and its max_tokens may be used up by then",
                mend,
            )
        if measured.answer.server_metrics is None:
            mend = (
                "start the server with --enable-per-request-metrics; else queue time is "
                "known only when a canary was alone"
            )
            self.say("per-request metrics", "unknown", "not in the answers", mend)
        else:
            self.say(
                "per-request metrics",
                "good",
                "in the answers: queue, prefill and decode time of every canary are exact",
            )
        if measured.answer.cached_tokens is None:
            mend = (
                "start the server with --enable-prompt-tokens-details; else it stays "
                "unknown whether the prefix cache works"
            )
            self.say("cached tokens", "unknown", "not in the answers", mend)
        else:
            self.say("cached tokens", "good", "in the answers")

    def _stream(self, measured: Measurement) -> None:
        """Whether the answer came as it was made; nothing is said where it did."""
        if not is_buffered(measured.answer):
            return
        lag_ms = measured.sample.observer_lag_ms or 0.0
        if lag_ms > BUSY_MS:
            detail = (
                "tokens arrived in heaps, but this machine itself was busy for "
                f"{lag_ms:.0f} ms: that may be the cause"
            )
            self.say("stream", "unknown", detail, "run check again when this machine is quieter")
            return
        mend = (
            "switch buffering off on the way (nginx: proxy_buffering off); until then TTFT "
            "is the time until a buffer was full"
        )
        self.say(
            "stream",
            "bad",
            "tokens arrived in heaps: something between us and the server buffers the stream",
            mend,
        )


def is_buffered(answer: Answer) -> bool:
    """Whether tokens came in heaps, whole or block by block, though their server made them one
    after the other.
    """
    gaps_ms = [(later - earlier) / 1e6 for earlier, later in pairwise(answer.arrivals_ns)]
    together = sum(gap < TOGETHER_MS for gap in gaps_ms)
    return len(answer.arrivals_ns) >= SHORT_ANSWER // 2 and 2 * together >= len(gaps_ms)
