"""Pins as plain YAML for review and git, and back. An invalid file is refused as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import yaml
from pydantic import TypeAdapter, ValidationError

from monitor.errors import USAGE, UserError
from monitor.model import Pin, PinnedOutput

VERSION = 1
_PIN = TypeAdapter(Pin)
#: `to_yaml` omits unknown fields.
_UNKNOWN = {"fingerprint": None, "prompt_tokens": None, "noise_nat": None}


class PinFileError(UserError):
    """A pin file cannot be used."""

    exit_code = USAGE


def to_yaml(pins: Sequence[Pin]) -> str:
    """One document with all pins; what differs from run to run (ids) is omitted."""
    entries = []
    for pin in pins:
        entry = {
            k: v for k, v in asdict(pin).items() if k not in {"id", "retired_at"} and v is not None
        }
        entry["created_at"] = pin.created_at.isoformat()
        entry["expires_at"] = pin.expires_at.isoformat()
        entry["ttft_ms"], entry["decode_tok_s"] = list(pin.ttft_ms), list(pin.decode_tok_s)
        entry["outputs"] = [_output_entry(output) for output in pin.outputs]
        entries.append(entry)
    return yaml.safe_dump(
        {"version": VERSION, "pins": entries}, sort_keys=False, allow_unicode=True, width=120
    )


def _output_entry(output: PinnedOutput) -> dict[str, object]:
    """An output with plain lists: YAML has no tuples."""
    lists = {name: list(getattr(output, name)) for name in ("tokens", "token_ids", "logprobs")}
    return {**asdict(output), **lists, "tops": [dict(top) for top in output.tops]}


def from_yaml(text: str, name: str) -> list[Pin]:
    """The pins of a file. Raises PinFileError with the place and the error."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise PinFileError(
            f"{name}:{mark.line + 1 if mark else 1}: is not valid YAML: "
            f"{getattr(error, 'problem', error)}"
        ) from None
    if (
        not isinstance(data, dict)
        or data.get("version") != VERSION
        or not isinstance(data.get("pins"), list)
    ):
        raise PinFileError(
            f"{name}: is not a pin file (version {VERSION}); `vllm-canary pins export` writes one"
        )
    return [_pin(entry, f"{name}: pin {index + 1}") for index, entry in enumerate(data["pins"])]


def _pin(entry: object, place: str) -> Pin:
    try:
        pin = _PIN.validate_python(
            {**_UNKNOWN, **entry, "id": 0} if isinstance(entry, dict) else entry
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PinFileError(
            f"{place}: {where}: {first['msg']}" if where else f"{place}: {first['msg']}"
        ) from None
    wrong = _misfit(pin)
    if wrong is not None:
        raise PinFileError(f"{place}: {wrong}")
    return pin


def _misfit(pin: Pin) -> str | None:
    """The error that types do not catch: no reason or answers, times without a zone, or another
    number of log-probabilities than tokens.
    """
    if not pin.reason.strip() or not pin.outputs:
        return f"has no {'reason' if pin.outputs else 'outputs'}"
    if pin.created_at.tzinfo is None or pin.expires_at.tzinfo is None:
        return "created_at and expires_at need a time zone, for example 2026-11-30T12:00:00+00:00"
    for output in pin.outputs:
        count = len(output.tokens)
        if len(output.logprobs) != count or len(output.tops) not in {0, count}:
            return (
                f"has {count} tokens, {len(output.logprobs)} logprobs and "
                f"{len(output.tops)} tops; give one for each token"
            )
    return None
