"""The model's files on this machine: a hash that changes when weights are replaced, without reading
gigabytes.

The hash covers the names, sizes and modification times of the weight files and the contents of the
small files. Hashing the weights themselves would take minutes to hours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SMALL_FILES = (
    "config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "generation_config.json",
)


class ModelFilesError(Exception):
    """The files cannot be read; the text says which and why."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's folder: its hash, its newest modification, and family and quantization from
    config.json.
    """

    digest: str
    newest_s: float
    family: str | None
    quantization: object


def read_model_files(path: Path) -> ModelFiles:
    """Reads a model's folder. Raises ModelFilesError."""
    try:
        weights = sorted(p for p in path.iterdir() if p.suffix in WEIGHTS)
        small = [p for p in (path / name for name in SMALL_FILES) if p.exists()]
        contents = {p.name: p.read_bytes() for p in small}
        # stat() follows the links of the Hugging Face cache to the blobs, whose times are those of
        # the download.
        stats = {p.name: p.stat() for p in weights}
        newest_s = max((p.stat().st_mtime for p in [*weights, *small]), default=0.0)
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error.strerror}") from None
    if not contents.get("config.json") and not weights:
        raise ModelFilesError(f"{path} contains neither config.json nor weight files")
    digest = hashlib.sha256()
    for name, data in sorted(contents.items()):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    for name, stat in stats.items():
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    config = _json(contents.get("config.json"))
    family = config.get("model_type")
    return ModelFiles(
        digest.hexdigest()[:16],
        newest_s,
        family if isinstance(family, str) else None,
        config.get("quantization_config"),
    )


def _json(data: bytes | None) -> Mapping[str, object]:
    try:
        # NaN is not JSON, and would never be equal to itself.
        parsed = json.loads(data or b"{}", parse_constant=str)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
