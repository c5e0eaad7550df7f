"""guidellm against the same reference server: what another tool reads where the truth is known."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from accuracy import reference
from common import percentile

GUIDELLM = "guidellm==0.8.1"
HOME = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    / "vllm-canary"
    / "guidellm-0.8.1"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tool says of its answers, beside the truth of the same answers, and how far apart
    they are. Milliseconds.
    """

    ttft: list[tuple[float, float]]
    itl: list[tuple[float, float]]

    def sentence(self) -> str:
        """The row in words."""
        return (
            f"guidellm 0.8.1 reads {_told(self.ttft, 'time to first token')}; "
            f"{_told(self.itl, 'time between tokens')}."
        )


def _told(pairs: list[tuple[float, float]], what: str) -> str:
    read, true = (statistics.median(side) for side in zip(*pairs, strict=True))
    errors = [abs(a - b) for a, b in pairs]
    digits = 1 if true > 100 else 3
    return (
        f"{read:.{digits}f} ms where {true:.{digits}f} ms is true ({what}, medians of "
        f"{len(pairs)}; error median "
        f"{statistics.median(errors):.{digits + 1}f} ms, p95 "
        f"{percentile(errors, 0.95):.{digits + 1}f} ms)"
    )


def install() -> str | None:
    """Into a virtual environment of its own, once; a sentence when it cannot be."""
    if (HOME / "bin" / "guidellm").exists():
        return None
    try:
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
        pip = [
            str(HOME / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            GUIDELLM,
        ]
        subprocess.run(pip, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"guidellm is left out: it cannot be installed ({error})."
    return None


def guidellm(requests: int) -> Reading:
    """Let it send the same number of requests, one after the other, and read its report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth, prompts, report = (
            folder / "truth.jsonl",
            folder / "prompts.jsonl",
            folder / "report.json",
        )
        lines = [
            json.dumps(
                {"prompt": f"What is the capital of country {i}?", "output_tokens_count": 50}
            )
            for i in range(requests + 1)
        ]
        prompts.write_text("\n".join(lines) + "\n")
        with reference(truth) as url:
            command = [str(HOME / "bin" / "guidellm"), "run", "--disable-console"]
            command += ["--backend", f"kind=openai_http,target={url},model=ref"]
            command += [
                "--profile",
                "kind=synchronous",
                "--constraint",
                f"kind=max_requests,count={requests + 1}",
            ]
            command += [
                "--data",
                f"kind=json_file,path={prompts}",
                "--output",
                f"kind=json,path={report}",
            ]
            subprocess.run(
                command, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
            )
        true = [json.loads(line) for line in truth.read_text().splitlines()]
        read = json.loads(report.read_text())["benchmarks"][0]["requests"]["successful"]
    if len(read) != len(true):
        raise RuntimeError(
            f"guidellm reports {len(read)} answers, the reference server gave {len(true)}"
        )
    read.sort(key=lambda answer: answer["info"]["timings"]["request_start"])
    pairs = list(zip(read, true, strict=True))[1:]  # the first warms up, as in our own measurement
    ttft = [(r["time_to_first_token_ms"], t["ttft"] * 1e3) for r, t in pairs]
    itl = [
        (r["inter_token_latency_ms"], (t["last"] - t["ttft"]) / (t["n"] - 1) * 1e3)
        for r, t in pairs
    ]
    return Reading(ttft, itl)


def note(requests: int) -> str:
    """The sentence below the table."""
    missing = install()
    if missing is not None:
        return missing
    try:
        return guidellm(requests).sentence()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"guidellm is left out: it does not run here ({error})."


if __name__ == "__main__":
    print(note(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
