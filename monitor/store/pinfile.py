"""Pins as plain YAML for review and git, and back. A file that does not fit is refused whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import yaml

from monitor.errors import USAGE, Told
from monitor.model import Pin, PinnedOutput

VERSION = 1


class PinFileError(Told):
    """A file of pins cannot be taken up."""

    exit_code = USAGE


def to_yaml(pins: Sequence[Pin]) -> str:
    """One document with all pins; what differs from run to run (ids) is left out."""
    entries = []
    for pin in pins:
        entry = {k: v for k, v in asdict(pin).items() if k not in {"id", "retired_at"} and v is not None}
        entry["created_at"], entry["expires_at"] = pin.created_at.isoformat(), pin.expires_at.isoformat()
        entry["ttft_ms"], entry["decode_tok_s"] = list(pin.ttft_ms), list(pin.decode_tok_s)
        entry["outputs"] = [_output_entry(output) for output in pin.outputs]
        entries.append(entry)
    return yaml.safe_dump({"version": VERSION, "pins": entries}, sort_keys=False, allow_unicode=True, width=120)


def _output_entry(output: PinnedOutput) -> dict[str, Any]:
    """Tuples as plain lists: YAML knows no others."""
    lists = {name: list(getattr(output, name)) for name in ("tokens", "token_ids", "logprobs")}
    return {**asdict(output), **lists, "tops": [dict(top) for top in output.tops]}


def from_yaml(text: str, name: str) -> list[Pin]:
    """The pins of a file. Raises PinFileError with the place and what is wrong."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise PinFileError(f"{name}:{mark.line + 1 if mark else 1}: is not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("pins"), list):
        raise PinFileError(f"{name}: is no file of pins (version {VERSION}); `vllm-canary pins export` writes one")
    return [_pin(entry, f"{name}: pin {index + 1}") for index, entry in enumerate(data["pins"])]


def _pin(entry: Any, place: str) -> Pin:
    try:
        outputs = tuple(
            PinnedOutput(
                text=str(o["text"]),
                tokens=tuple(o["tokens"]),
                token_ids=tuple(o["token_ids"]),
                logprobs=tuple(o["logprobs"]),
                finish_reason=o.get("finish_reason"),
                count=int(o.get("count", 1)),
                tops=tuple(dict(top) for top in o.get("tops", ())),
            )
            for o in entry["outputs"]
        )
        pin = Pin(
            id=0,
            target=str(entry["target"]),
            probe=str(entry["probe"]),
            revision=str(entry["revision"]),
            fingerprint=entry.get("fingerprint"),
            reason=str(entry["reason"]),
            author=str(entry["author"]),
            created_at=datetime.fromisoformat(entry["created_at"]),
            expires_at=datetime.fromisoformat(entry["expires_at"]),
            outputs=outputs,
            prompt_tokens=entry.get("prompt_tokens"),
            noise_nat=entry.get("noise_nat"),
            ttft_ms=tuple(entry.get("ttft_ms", ())),
            decode_tok_s=tuple(entry.get("decode_tok_s", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PinFileError(f"{place}: {error!r} is missing or of the wrong kind") from None
    if not pin.reason.strip() or not outputs:
        raise PinFileError(f"{place}: has no {'reason' if outputs else 'outputs'}")
    return pin
