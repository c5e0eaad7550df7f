"""guidellm against the same reference server: another tool's errors on known true times."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy import reference
from common import CACHE, environment, percentile

GUIDELLM = "guidellm==0.8.1"
HOME = CACHE / "guidellm-0.8.1"
Pairs = list[tuple[float, float]]  # measured and true


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tool's figures of its answers, each with its true value, in milliseconds."""

    ttft: Pairs
    itl: Pairs

    def sentence(self) -> str:
        """The comparison in one sentence."""
        return (
            f"guidellm 0.8.1 measures {_compared(self.ttft, 'time to first token')}; "
            f"{_compared(self.itl, 'time between tokens')}."
        )


def _compared(pairs: Pairs, what: str) -> str:
    read, true = (statistics.median(side) for side in zip(*pairs, strict=True))
    errors = [abs(a - b) for a, b in pairs]
    digits = 1 if true > 100 else 3
    return (
        f"{read:.{digits}f} ms where {true:.{digits}f} ms is true ({what}, medians of "
        f"{len(pairs)}; error median "
        f"{statistics.median(errors):.{digits + 1}f} ms, p95 "
        f"{percentile(errors, 0.95):.{digits + 1}f} ms)"
    )


def guidellm(requests: int) -> Comparison:
    """Runs the tool with the same number of requests, one after another, and reads its report."""
    program = environment(HOME, [GUIDELLM]).with_name("guidellm")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth, report = folder / "truth.jsonl", folder / "report.json"
        prompts = _prompts(folder / "prompts.jsonl", requests + 1)
        with reference(truth) as url:
            command = [
                *(str(program), "run", "--disable-console"),
                *("--backend", f"kind=openai_http,target={url},model=ref"),
                *("--profile", "kind=synchronous"),
                *("--constraint", f"kind=max_requests,count={requests + 1}"),
                *("--data", f"kind=json_file,path={prompts}"),
                *("--output", f"kind=json,path={report}"),
            ]
            offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
            subprocess.run(command, check=True, capture_output=True, env=offline)
        true = [json.loads(line) for line in truth.read_text().splitlines()]
        read = json.loads(report.read_text())["benchmarks"][0]["requests"]["successful"]
    return _comparison(read, true)


def _prompts(file: Path, count: int) -> Path:
    prompts = [f"What is the capital of country {i}?" for i in range(count)]
    lines = [json.dumps({"prompt": prompt, "output_tokens_count": 50}) for prompt in prompts]
    file.write_text("\n".join(lines) + "\n")
    return file


def _comparison(read: list[dict[str, Any]], true: list[dict[str, float]]) -> Comparison:
    if len(read) != len(true):
        raise RuntimeError(
            f"guidellm reports {len(read)} answers, the reference server gave {len(true)}"
        )
    read.sort(key=lambda answer: float(answer["info"]["timings"]["request_start"]))
    # the first answer warms up and is not counted, as in our own measurement
    pairs = list(zip(read, true, strict=True))[1:]
    ttft = [(r["time_to_first_token_ms"], t["ttft"] * 1e3) for r, t in pairs]
    itl = [
        (r["inter_token_latency_ms"], (t["last"] - t["ttft"]) / (t["n"] - 1) * 1e3)
        for r, t in pairs
    ]
    return Comparison(ttft, itl)


def note(requests: int) -> str:
    """The sentence below the accuracy table."""
    try:
        return guidellm(requests).sentence()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"guidellm is left out: it cannot be installed or does not run here ({error})."


if __name__ == "__main__":
    print(note(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
