"""One bundled probe tried on a server and adapted to it: does it fit the context, is it answered,
is the answer as expected?
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from monitor.config import shipped_probes_dir
from monitor.daemon.budget import hourly_cost
from monitor.judge.quality.expect import judge_answer
from monitor.measure.canary import Measurement
from monitor.measure.server.preflight import Preflight
from monitor.model import Outcome, Probe, Verdict
from monitor.show.terminal import progress_console

LEAST_ANSWER = 8  # tokens; with fewer a probe measures nothing


@dataclass(frozen=True, slots=True)
class Written:
    """A probe as `init` writes it. `text` None: left out. `note`: what was adapted, or why it was
    left out.
    """

    name: str
    text: str | None
    note: str
    tokens_per_hour: float | None = None


async def try_probe(flight: Preflight, probe: Probe, text: str) -> Written:
    """Runs a probe once; `text` is its file."""
    shown = progress_console()
    if shown is not None:
        shown.print(
            f"trying {probe.name} … (the first answers of a new server can take a while)",
            style="dim",
        )
    await flight.probe_lengths([probe], shipped_probes_dir())
    length = flight.lengths.get(probe.name)
    fitted, note = fit(probe, length, flight.max_model_len)
    if fitted is None:
        return Written(probe.name, None, note)
    measured = await flight.trial(fitted, await flight.page.read())
    sample = measured.sample
    if sample.outcome is not Outcome.OK:
        return Written(probe.name, None, f"left out: {measured.detail or sample.outcome.value}")
    if fitted.max_tokens != probe.max_tokens:
        text = with_fewer_tokens(text, fitted.max_tokens)
    if measured.answer.reasoning and not measured.answer.text:
        return Written(probe.name, without_expectation(text), _still_reasoning(fitted))
    return _answered(fitted, text, note, measured, length)


def _answered(
    probe: Probe, text: str, note: str, measured: Measurement, length: int | None
) -> Written:
    sample = measured.sample
    judgement = judge_answer(probe, sample.outcome, sample.output)
    if judgement.verdict is Verdict.FAIL:
        text, note = without_expectation(text), f"its expectation was left out: {judgement.reason}"
    cost = hourly_cost(probe, sample.prompt_tokens or length or 0)
    return Written(probe.name, text, note or f"answered after {sample.ttft_ms or 0:,.0f} ms", cost)


def _still_reasoning(probe: Probe) -> str:
    return (
        f"the model was still reasoning after {probe.max_tokens} tokens; raise max_tokens, or "
        "switch reasoning off with `chat_template_kwargs: {enable_thinking: false}` under sampling"
    )


def fit(probe: Probe, length: int | None, max_model_len: int | None) -> tuple[Probe | None, str]:
    """The probe with as many answer tokens as fit into the context; None if too few do. The text
    says what was changed.
    """
    if length is None or max_model_len is None or length + probe.max_tokens <= max_model_len:
        return probe, ""
    free = max_model_len - length
    if free < LEAST_ANSWER:
        return None, f"left out: its prompt has {length} tokens, the context {max_model_len}"
    sampling = dict(probe.sampling)
    if sampling.get("min_tokens", 0) > free:
        sampling["min_tokens"] = free
    note = f"shortened to {free} answer tokens by the context of {max_model_len}"
    return replace(probe, max_tokens=free, sampling=sampling), note


def with_fewer_tokens(text: str, max_tokens: int) -> str:
    """The probe's text with max_tokens set, and min_tokens lowered to it."""
    text = re.sub(r"(?m)^max_tokens:.*$", f"max_tokens: {max_tokens}", text)
    return re.sub(
        r"(?m)^(\s+min_tokens:) (\d+)$", lambda m: f"{m[1]} {min(int(m[2]), max_tokens)}", text
    )


def without_expectation(text: str) -> str:
    """The probe's text with its `expect:` block commented out: this model answers differently,
    which is not a fault.
    """
    lines, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("expect:") or (inside and line.startswith((" ", "-")))
        lines.append(f"# {line}" if inside else line)
    return "\n".join(lines) + "\n"
