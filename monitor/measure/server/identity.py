"""Reads a server's identity, field by field, each with its source or with the reason why it is
unknown. Never raises for anything that a server does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import httpx

from monitor.config.target import TargetSettings
from monitor.measure.gpu.session import GpusIdentity
from monitor.measure.server import api
from monitor.measure.server.host_process import (
    DEFAULT_VLLM_PORT,
    START_SLACK_S,
    ProcessHiddenError,
    ServerProcess,
    find_server,
    options_of,
    shown_command,
)
from monitor.measure.server.model_files import ModelFilesError, read_model_files
from monitor.model import (
    DERIVED_FIELDS,
    ROOT_FIELDS,
    SOFT_FIELDS,
    Fingerprint,
    FingerprintField,
    ServerPage,
)
from monitor.text import one_line, whole_text

#: Fixed texts, whose token ids are a fingerprint of tokenizer and template. No system role: some
#: templates refuse it.
TEMPLATE_MESSAGES = (
    {"role": "user", "content": "The canary sings at noon."},
    {"role": "assistant", "content": "It does, 3 times."},
    {"role": "user", "content": "Why?"},
)
TOKENIZER_TEXT = (
    'The canary sings at noon: 3 × 1.5 = 4.5 — naïve? {"ok": true}\n\tdef f(x): return x'
)
#: Labels of vllm:cache_config_info that are settings. kv_cache_max_concurrency is not: it is size
#: over length, and varies by itself.
KV_SETTINGS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_offloading_size",
    "num_gpu_blocks_override",
    "prefix_caching_hash_algo",
    "sliding_window",
)
LONGEST_REASON = 300  # characters
LONGEST_VALUE = 65_536
LONGEST_HEAD = 200


@dataclass(slots=True)
class Sources:
    """The sources of an identity; `None` where this target has no such source."""

    settings: TargetSettings
    http: httpx.AsyncClient
    model: str | None
    gpu: GpusIdentity | None
    gpu_reason: str | None  # why `gpu` is None
    system_fingerprint: str | None  # from the last canary of this process start


class _Fields:
    """Collects fields; the first source with a value wins."""

    def __init__(self) -> None:
        self.values: dict[str, FingerprintField] = {}

    def known(self, name: str, value: object, source: str) -> None:
        if value is None:
            return
        try:
            self.values[name] = FingerprintField(
                name, role_of(name), kept(value), one_line(source, LONGEST_REASON)
            )
        except (RecursionError, ValueError, TypeError) as error:
            self.unknown(f"the value from {source} cannot be stored: {error}", name)

    def unknown(self, reason: str, *names: str) -> None:
        for name in names:
            self.values.setdefault(
                name, FingerprintField(name, role_of(name), reason=one_line(reason, LONGEST_REASON))
            )


def kept(value: object) -> object:
    """A value as it is stored, compared and shown: printable text, portable JSON, and of limited
    length. A longer value is cut and gets its size and a hash, so that a change still shows.
    Raises ValueError for numbers that JSON does not have.
    """
    clean = _printable(value)
    text = json.dumps(clean, ensure_ascii=False, sort_keys=True, allow_nan=False)
    if len(text) <= LONGEST_VALUE:
        return clean
    return (
        f"{text[:LONGEST_HEAD]}… ({len(text)} characters, sha256 "
        f"{hashlib.sha256(text.encode()).hexdigest()[:16]})"
    )


def _printable(value: object) -> object:
    if isinstance(value, str):
        return one_line(whole_text(value), max(1, 10 * len(value)))
    if isinstance(value, Mapping):
        return {str(_printable(str(name))): _printable(inner) for name, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list | tuple) else value


def role_of(name: str) -> Literal["root", "derived", "soft"]:
    """The role of a field in an identity."""
    return "root" if name in ROOT_FIELDS else "derived" if name in DERIVED_FIELDS else "soft"


async def read_identity(sources: Sources, page: ServerPage) -> Fingerprint:
    """Reads every source; each of them is cheap."""
    fields = _Fields()
    await _from_api(sources, fields)
    await _from_tokenizer(sources, fields)
    _from_page(page, fields)
    _from_gpu(sources, fields)
    await asyncio.to_thread(_from_host, sources.settings, fields, page)
    if sources.system_fingerprint is not None:
        fields.known("system_fingerprint", sources.system_fingerprint, "answer of a canary")
    fields.unknown(
        "no canary of this start has answered yet, or the server sends none", "system_fingerprint"
    )
    fields.unknown("not read by this version", *ROOT_FIELDS, *DERIVED_FIELDS, *SOFT_FIELDS)
    order = (*ROOT_FIELDS, *DERIVED_FIELDS, *SOFT_FIELDS)
    return Fingerprint(
        sources.settings.name, datetime.now(UTC), {name: fields.values[name] for name in order}
    )


async def _from_api(sources: Sources, fields: _Fields) -> None:
    try:
        fields.known("vllm_version", await api.version(sources.http), "/version")
    except (api.ServerUnreachableError, api.ServerRefusedError) as error:
        fields.unknown(f"/version: {error}", "vllm_version")
    names = ("model_root", "model_id", "max_model_len", "served_models")
    try:
        served = await api.models(sources.http)
    except (api.ServerUnreachableError, api.ServerRefusedError) as error:
        fields.unknown(f"/v1/models: {error}", *names)
        return
    fields.known("served_models", sorted(model.id for model in served), "/v1/models")
    only = served[0] if len(served) == 1 else None
    model = next((entry for entry in served if entry.id == sources.model), only)
    if model is not None:
        fields.known("model_id", model.id, "/v1/models")
        fields.known("model_root", model.root, "/v1/models")
        fields.known("max_model_len", model.max_model_len, "/v1/models")
    fields.unknown("not in /v1/models", *names)


async def _from_tokenizer(sources: Sources, fields: _Fields) -> None:
    model = {} if sources.model is None else {"model": sources.model}
    bodies: Mapping[str, dict[str, object]] = {
        "tokenizer_hash": {"prompt": TOKENIZER_TEXT, **model},
        "template_hash": {"messages": list(TEMPLATE_MESSAGES), **model},
    }
    for name, body in bodies.items():
        try:
            tokens = await api.tokenize(sources.http, body)
        except (api.ServerUnreachableError, api.ServerRefusedError) as error:
            fields.unknown(f"/tokenize: {error}", name)
            continue
        if tokens.ids:
            fields.known(
                name, hashlib.sha256(json.dumps(tokens.ids).encode()).hexdigest()[:16], "/tokenize"
            )
        fields.unknown("/tokenize returns a count without token ids", name)
        if "max_model_len" not in fields.values or fields.values["max_model_len"].value is None:
            fields.known("max_model_len", tokens.max_model_len, "/tokenize")


def _from_page(page: ServerPage, fields: _Fields) -> None:
    config = page.cache_config
    if config is None:
        fields.unknown("not on the metrics page", "kv_cache", *SOFT_FIELDS)
        return
    source = "vllm:cache_config_info"
    fields.known("kv_cache", {name: config[name] for name in KV_SETTINGS if name in config}, source)
    for name in SOFT_FIELDS:
        value = config.get(name, "")
        fields.known(name, int(value) if value.isdecimal() and len(value) < 16 else None, source)
    fields.unknown(f"not in {source}", *SOFT_FIELDS)


def _from_gpu(sources: Sources, fields: _Fields) -> None:
    names = ("driver_version", "gpu", "cuda_version")
    read = sources.gpu
    if read is None:
        fields.unknown(sources.gpu_reason or "no GPU is watched for this target", *names)
        return
    fields.known("driver_version", read.driver_version, "NVML")
    fields.known("cuda_version", read.cuda_driver_version, "NVML (the newest the driver supports)")
    chosen = sources.settings.watches_gpus
    wanted = chosen if isinstance(chosen, list) else None
    gpus = [
        {
            "uuid": gpu.uuid,
            "name": gpu.name,
            "power_limit_w": gpu.power_limit_w,
            "max_sm_clock_mhz": gpu.max_sm_clock_mhz,
            "ecc": gpu.ecc,
            "mig": gpu.mig,
        }
        for gpu in sorted(read.gpus, key=lambda gpu: gpu.uuid)
        if wanted is None or gpu.uuid in wanted
    ]
    hidden = [uuid for uuid in read.hidden if wanted is None or uuid in wanted]
    if hidden:  # a GPU that is lost while we start has not been removed
        fields.unknown(f"{', '.join(hidden)} cannot be read", "gpu")
    else:
        fields.known("gpu", gpus or None, "NVML")
    fields.unknown("not offered by NVML", *names)


def _from_host(settings: TargetSettings, fields: _Fields, page: ServerPage) -> None:
    """Reads what only this machine has: the process and the model's files. Runs on a thread, since
    it reads /proc and files.
    """
    names = ("launch_options", "launch_command", "environment")
    process: ServerProcess | None = None
    if settings.is_local:
        try:
            process = find_server(
                urlsplit(settings.url).port or DEFAULT_VLLM_PORT, page.process_start_s
            )
        except ProcessHiddenError as error:
            fields.unknown(str(error), *names)
    else:
        fields.unknown("the server is on another machine", *names)
    if process is not None:
        source = f"command line of process {process.pid}"
        fields.known("launch_options", options_of(process.command), source)
        fields.known("launch_command", shown_command(process.command), source)
        fields.known("environment", process.environment, f"environment of process {process.pid}")
        fields.unknown("the process belongs to another user", "environment")
    _from_files(settings, fields, process, page)


def _from_files(
    settings: TargetSettings, fields: _Fields, process: ServerProcess | None, page: ServerPage
) -> None:
    names = ("model_hash", "model_family", "quantization")
    path = _model_path(settings, fields, process)
    if path is None:
        fields.unknown(
            "the model's files are not on this machine; give model_path where they are", *names
        )
        return
    try:
        files = read_model_files(path)
    except ModelFilesError as error:
        fields.unknown(str(error), *names)
        return
    source = f"files in {path}"
    started_s = page.process_start_s or (process.started_s if process else None)
    if started_s is not None and files.newest_s > started_s + START_SLACK_S:
        fields.unknown(
            f"{source} were changed after the server started; it serves older ones", *names
        )
        return
    fields.known("model_hash", files.digest, source)
    fields.known("model_family", files.family, source)
    fields.known("quantization", files.quantization, source)
    fields.unknown("not in config.json", "model_family", "quantization")


def _model_path(
    settings: TargetSettings, fields: _Fields, process: ServerProcess | None
) -> Path | None:
    """The model's folder: as configured, or the served root where that is a folder of this
    machine.
    """
    if settings.model_path is not None:
        return Path(settings.model_path)
    root = fields.values["model_root"].value
    if not settings.is_local or not isinstance(root, str):
        return None
    base = Path(process.cwd) if process is not None and process.cwd else Path("/")
    path = base / root
    try:
        return path if path.is_dir() else None
    except (OSError, ValueError):  # not readable, or not a valid file name
        return None
