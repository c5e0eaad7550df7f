"""The file that `init` writes and the reference in docs/configuration.md, both generated from the
fields, so that they cannot differ.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from monitor.config.detector import DetectorSettings
from monitor.config.expect import Expect
from monitor.config.probes import Message, ProbeFile, Sampling
from monitor.config.settings import ChannelSettings, ClassSettings, Settings
from monitor.config.target import TargetSettings


def sample_config(target: Mapping[str, object], database: str = "history.db") -> str:
    """A commented config.yaml for one target. Unset keys are comments with their default or an
    example.
    """
    lines = [
        "# vllm-canary: the servers to watch, and the history. `vllm-canary check` tests these "
        "settings.",
        "",
    ]
    lines += _fields(
        Settings, {"database": database}, skip={"classes", "targets", "channels", "detector"}
    )
    lines += [*_comment(Settings.model_fields["classes"]), "classes:", "  chat:"]
    lines += _fields(ClassSettings, {"max_wait": "2s"}, indent=4)
    lines += ["  batch:", "    max_wait: 10s", ""]
    lines += [*_comment(Settings.model_fields["targets"]), "targets:"]
    lines += _entry(_fields(TargetSettings, target, indent=4))
    detector = _fields(
        DetectorSettings,
        {},
        skip=set(DetectorSettings.model_fields) - {"false_alarms_per_month"},
        indent=2,
    )
    lines += [
        *_comment(Settings.model_fields["detector"]),
        "# detector:",
        *(f"# {line}".rstrip("# ") for line in detector),
    ]
    lines += [*_comment(Settings.model_fields["channels"]), "# channels:"]
    channel = _fields(
        ChannelSettings, _examples(ChannelSettings, {"name", "kind", "url"}), indent=4
    )
    lines += [f"# {line}".rstrip() for line in _entry(channel)]
    return "\n".join(lines).rstrip("\n# ") + "\n"


def _examples(model: type[BaseModel], names: set[str]) -> dict[str, object]:
    return {n: f.examples[0] for n, f in model.model_fields.items() if n in names and f.examples}


def _entry(lines: list[str]) -> list[str]:
    """The lines of one list entry: the first key gets the dash, below its comment."""
    first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith("#"))
    head = [line.replace("    ", "  ", 1) for line in lines[:first]]
    return [*head, "  - " + lines[first].strip(), *lines[first + 1 :]]


def _fields(
    model: type[BaseModel],
    given: Mapping[str, object],
    skip: set[str] | None = None,
    indent: int = 0,
) -> list[str]:
    lines: list[str] = []
    pad = " " * indent
    for name, field in model.model_fields.items():
        if name in (skip or set()):
            continue
        key = field.alias or name
        lines += _comment(field, indent)
        if name in given:
            lines.append(f"{pad}{key}: {_scalar(given[name])}")
        elif (
            field.default is not None and field.default_factory is None and not field.is_required()
        ):
            lines.append(
                f"{pad}{key}: {_scalar(field.examples[0] if field.examples else field.default)}"
            )
        elif field.examples:
            lines.append(f"{pad}# {key}: {_scalar(field.examples[0])}")
        lines.append("")
    return lines


def _comment(field: FieldInfo, indent: int = 0) -> list[str]:
    pad = " " * indent
    return [f"{pad}# {line}" for line in textwrap.wrap(field.description or "", 118 - indent)]


def _scalar(value: object) -> str:
    if isinstance(value, str) and not (
        value.replace("_", "").replace("-", "").isalnum() and yaml.safe_load(value) == value
    ):
        # Without quotes `1`, `on` and `null` would not be read as text.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def reference() -> str:
    """docs/configuration.md."""
    parts = [
        "# Configuration",
        "",
        "Generated from the code (`make docs`). Unknown keys, duplicate keys and durations without "
        "a unit are errors,",
        "each reported with its line. Durations are written `800ms`, `2s`, `5m`, `1h` or `7d`; "
        "paths are relative to the file.",
        "",
        "The file is `-c FILE`, or else the environment variable `VLLM_CANARY_CONFIG`, "
        "`./config.yaml` or",
        "`/etc/vllm-canary/config.yaml`. With `--url URL` no file is read.",
        "",
    ]
    sections: list[tuple[str, type[BaseModel]]] = [
        ("config.yaml", Settings),
        ("config.yaml: classes", ClassSettings),
        ("config.yaml: targets", TargetSettings),
        ("config.yaml: channels", ChannelSettings),
        ("config.yaml: detector", DetectorSettings),
        ("probes/NAME.yaml", ProbeFile),
        ("probes/NAME.yaml: messages", Message),
        ("probes/NAME.yaml: sampling", Sampling),
        ("probes/NAME.yaml: expect", Expect),
    ]
    for title, model in sections:
        parts += [f"## {title}", "", " ".join((model.__doc__ or "").split()), "", *_rows(model), ""]
    return "\n".join(parts).rstrip() + "\n"


def _rows(model: type[BaseModel]) -> Iterator[str]:
    yield "| key | default | meaning | example |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        default = (
            "required" if field.is_required() else "–" if field.default is None else _default(field)
        )
        example = f"`{_scalar(field.examples[0])}`" if field.examples else ""
        text = (field.description or "").replace("|", "\\|")
        yield f"| `{field.alias or name}` | {default} | {text} | {example} |"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or not isinstance(field.default, (str, int, float, bool)):
        return "–"
    shown = (
        field.examples[0] if field.examples and isinstance(field.default, float) else field.default
    )
    return f"`{_scalar(shown)}`"
