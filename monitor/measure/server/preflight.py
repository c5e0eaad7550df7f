"""The checks of `check` and `init` on a server before it is watched: each with its state, its
meaning and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import httpx

from monitor.config.probes import misfit
from monitor.config.problems import FileProblem
from monitor.measure.canary import Canary, Measurement
from monitor.measure.server import api
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.answer import Answer
from monitor.measure.stream.long_prompt import lengthened
from monitor.model import Outcome, Phase, Probe, ServerPage

State = Literal["good", "bad", "unknown"]
SHORT_ANSWER = 16  # tokens: enough to tell single tokens from bursts
#: No server generates the tokens of one stream this close together: that is 5,000 per second.
TOGETHER_MS = 0.2
#: A loop that was blocked for this long may have caused a burst itself.
BUSY_MS = 20.0
NEEDED = (
    "running",
    "waiting",
    "kv_usage",
    "engine_steps",
    "generation_tokens",
    "queue_count",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `check`. `mend` says what to do, and what happens otherwise."""

    name: str
    state: State
    detail: str
    mend: str | None = None


@dataclass(slots=True)
class Preflight:
    """The checks of one server."""

    name: str
    http: httpx.AsyncClient
    page: MetricsPage
    model: str | None
    checks: list[Check] = field(default_factory=list)
    max_model_len: int | None = None
    lengths: dict[str, int] = field(default_factory=dict)  # prompt tokens by probe
    misfits: list[FileProblem] = field(
        default_factory=list
    )  # probes that cannot run in this context

    def say(self, what: str, state: State, detail: str, mend: str | None = None) -> None:
        """Adds one line."""
        self.checks.append(
            Check(f"{self.name}: {what}" if what else self.name, state, detail, mend)
        )

    async def server(self, served: Sequence[api.ServedModel]) -> None:
        """Checks version and model; `served` was read by the caller, who knows which failures are
        fatal.
        """
        try:
            version = await api.version(self.http)
        except (api.ServerUnreachableError, api.ServerRefusedError):
            version = None
        self.say(
            "server", "good", f"vLLM {version or 'of unknown version'} at {self.http.base_url}"
        )
        model = next((entry for entry in served if entry.id == self.model), None)
        if model is None:
            known = ", ".join(entry.id for entry in served) or "none"
            mend = f"set `model:` to a model that it serves: {known}"
            self.say("model", "bad", f"the server does not serve {self.model}", mend)
            return
        self.max_model_len = model.max_model_len
        context = (
            f"context {model.max_model_len} tokens"
            if model.max_model_len
            else "unknown context length"
        )
        self.say("model", "good", f"{model.id} from {model.root or 'an unknown path'}, {context}")

    async def metrics(self) -> ServerPage:
        """Checks the metrics page, and whether any needed figure is missing."""
        page = await self.page.read()
        if page.state != "ok":
            mend = (
                "set its address with metrics_url; without it queue, load, idle time and "
                "hangs are unknown"
            )
            self.say("metrics page", "bad", f"could not be read ({page.state})", mend)
            return page
        missing = [name for name in NEEDED if getattr(page, name) is None]
        if missing:
            mend = (
                "start the server without --disable-log-stats; the missing figures are "
                "unknown in the history"
            )
            self.say("metrics page", "unknown", f"read, but without {', '.join(missing)}", mend)
        else:
            self.say("metrics page", "good", "read, with every needed figure")
        if page.process_start_s is None:
            detail = "not reported (several API servers); restarts are detected by falling counters"
            self.say("process start", "unknown", detail)
        if page.asleep:
            detail = "the server sleeps; requests would hang"
            self.say("engine", "bad", detail, "wake it: POST /wake_up")
        return page

    async def probe_lengths(self, probes: Sequence[Probe], directory: Path) -> None:
        """Checks each probe's length against the context; `directory` holds their files."""
        for probe in probes:
            try:
                length = await api.prompt_length(self.http, await self.fitted(probe), self.model)
            except (api.ServerUnreachableError, api.ServerRefusedError) as error:
                self.say(f"probe {probe.name}", "unknown", f"length unknown: {error}")
                continue
            self.lengths[probe.name] = length
            problem = (
                misfit(probe, length, self.max_model_len, directory) if self.max_model_len else None
            )
            if problem is not None:
                self.misfits.append(problem)
                mend = "until then the server refuses every run of it"
                self.say(f"probe {probe.name}", "bad", str(problem), mend)
            else:
                of = f" of {self.max_model_len}" if self.max_model_len else ""
                detail = f"{length} prompt and up to {probe.max_tokens} answer tokens{of}"
                self.say(f"probe {probe.name}", "good", detail)

    async def trial(self, probe: Probe, page: ServerPage) -> Measurement:
        """Sends a probe once, with the time limits of a cold start."""
        canary = Canary(self.name, self.http, self.page, self.model)
        return await canary.measure(await self.fitted(probe), Phase.COLD, page, None)

    async def learn_context(self) -> None:
        """Reads the context length, where the server reports it. Raises the errors of
        monitor.measure.server.api.
        """
        served = await api.models(self.http)
        self.max_model_len = next(
            (model.max_model_len for model in served if model.id == self.model), None
        )

    async def fitted(self, probe: Probe) -> Probe:
        """The probe as sent to this server: one with a `context_share` is lengthened."""
        if probe.context_share is None or self.max_model_len is None:
            return probe
        return await lengthened(self.http, probe, self.model, self.max_model_len)

    async def answer_details(self, probe: Probe, page: ServerPage) -> None:
        """Sends one short request, and checks the stream, the server's timings and its cached
        tokens.
        """
        sampling = {"temperature": 0.0, "seed": 0, "ignore_eos": True, "min_tokens": SHORT_ANSWER}
        short = replace(probe, max_tokens=SHORT_ANSWER, sampling=sampling, timeout_s=60.0)
        measured = await self.trial(short, page)
        if measured.sample.outcome is not Outcome.OK:
            detail = measured.detail or f"a request ended as {measured.sample.outcome.value}"
            self.say("answer", "bad", detail, "see the server's log")
            return
        self.say("answer", "good", f"first token after {measured.sample.ttft_ms or 0:.0f} ms")
        self._stream(measured)
        self._reasoning(measured.answer)
        self._options(measured.answer)

    def _reasoning(self, answer: Answer) -> None:
        if not answer.reasoning:
            return
        detail = "the model reasons before it answers, which may use up max_tokens"
        mend = (
            "`vllm-canary init` tries each probe; raise max_tokens, or switch it off "
            "with `chat_template_kwargs` under sampling"
        )
        self.say("reasoning", "unknown", detail, mend)

    def _options(self, answer: Answer) -> None:
        """Checks for the figures that the server sends only with certain launch options."""
        if answer.server_metrics is None:
            mend = (
                "start the server with --enable-per-request-metrics; otherwise queue time is "
                "known only when a canary was alone"
            )
            self.say("per-request metrics", "unknown", "not in the answers", mend)
        else:
            detail = "in the answers: queue, prefill and decode time of every canary are exact"
            self.say("per-request metrics", "good", detail)
        if answer.cached_tokens is None:
            mend = (
                "start the server with --enable-prompt-tokens-details; otherwise it is "
                "unknown whether the prefix cache works"
            )
            self.say("cached tokens", "unknown", "not in the answers", mend)
        else:
            self.say("cached tokens", "good", "in the answers")

    def _stream(self, measured: Measurement) -> None:
        """Checks whether the answer came token by token; adds no line where it did."""
        if not is_buffered(measured.answer):
            return
        lag_ms = measured.sample.observer_lag_ms or 0.0
        if lag_ms > BUSY_MS:
            detail = (
                "tokens arrived in bursts, but this machine itself was busy for "
                f"{lag_ms:.0f} ms, which may be the cause"
            )
            self.say("stream", "unknown", detail, "run check again when this machine is less busy")
            return
        detail = "tokens arrived in bursts: something between here and the server buffers streams"
        mend = (
            "switch buffering off on the way (nginx: proxy_buffering off); until then TTFT "
            "is the time until a buffer was full"
        )
        self.say("stream", "bad", detail, mend)


def is_buffered(answer: Answer) -> bool:
    """Whether tokens came in bursts, although the server generates them one by one."""
    gaps_ms = [(later - earlier) / 1e6 for earlier, later in pairwise(answer.arrivals_ns)]
    together = sum(gap < TOGETHER_MS for gap in gaps_ms)
    return len(answer.arrivals_ns) >= SHORT_ANSWER // 2 and 2 * together >= len(gaps_ms)
