"""Draws docs/summary.svg, the picture in the README, from a history.

    python docs/picture.py history.db

The history comes from a real vLLM under the load of tests/vllm: 24 batch requests on 4 slots.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from monitor.judge.percentiles import Group, summarise
from monitor.model import Sample
from monitor.show.terminal import cell, milliseconds, number, percentile_text, table
from monitor.store.database import reading
from monitor.store.queries import SampleFilter, samples

HERE = Path(__file__).resolve().parent
SHOWN = 12
HISTORY = (
    "probe",
    "class",
    "phase",
    "outcome",
    "TTFT ms",
    "queue ms",
    "tokens/s",
    "running",
    "waiting",
)
SUMMARY = ("class", "phase", "count", "no first token", "TTFT p50 ms", "TTFT p95 ms")


def main(database: str) -> None:
    """Draws the picture."""
    console = Console(
        record=True,
        width=118,
        file=Path("/dev/null").open("w"),  # noqa: SIM115 - open until the program ends
        force_terminal=True,
        highlight=False,
    )
    with reading(database) as connection:
        found = samples(connection, SampleFilter())
    console.print(Text("$ vllm-canary history", "bold"))
    console.print(table(list(HISTORY), [_sample_row(s) for s in chosen(found)]))
    console.print(Text("\n$ vllm-canary summary", "bold"))
    console.print(table(list(SUMMARY), [_row(g) for g in summarise(found)]))
    svg = console.export_svg(title="vllm-canary", clear=False)
    # without web fonts: the reader's own monospace font is used
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code,monospace", "monospace")
    (HERE / "summary.svg").write_text(svg, encoding="utf-8")


def chosen(found: Sequence[Sample]) -> list[Sample]:
    """The samples around the last capped one, and the last long wait of the uncapped probe."""
    last_capped = max(i for i, s in enumerate(found) if s.outcome.value == "queue_cap")
    uncapped = max(
        i for i, s in enumerate(found) if s.probe == "chat-uncapped" and (s.ttft_ms or 0) > 5000
    )
    around = range(max(0, last_capped - SHOWN + 3), min(len(found), last_capped + 3))
    return [found[i] for i in sorted({uncapped, *around})]


def _sample_row(s: Sample) -> list[object]:
    return [
        s.probe,
        s.traffic_class,
        s.phase.value,
        s.outcome.value,
        milliseconds(s.ttft_ms),
        milliseconds(s.queue_ms),
        number(s.decode_tok_s, 1),
        number(s.running),
        number(s.waiting),
    ]


def _row(group: Group) -> list[object]:
    return [
        group.traffic_class,
        group.phase,
        group.count,
        cell(group.censored + group.unavailable),
        percentile_text(group.ttft_ms["p50"], group.count),
        percentile_text(group.ttft_ms["p95"], group.count),
    ]


if __name__ == "__main__":
    main(sys.argv[1])
