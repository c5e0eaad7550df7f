"""The model's files on this machine: a hash that moves when weights are replaced, without reading
gigabytes.

Names, sizes and modification times of the weight files and the contents of the small files stand
for the model; deep hashing of the weights themselves is slower by hours and comes only where it is
asked for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """What lies at a path: the hash, the newest change, and what config.json says of family and
    quantization.
    """

    digest: str
    newest_s: float
    family: str | None
    quantization: Any


def read_model_files(path: Path) -> ModelFiles:
    """Look at a model's folder. Raises ModelFilesError."""
    try:
        weights = sorted(p for p in path.iterdir() if p.suffix in WEIGHTS)
        small = [p for p in (path / name for name in SMALL_FILES) if p.exists()]
        contents = {p.name: p.read_bytes() for p in small}
        # stat() follows the links of the Hugging Face cache to the blobs, whose times are the
        # download's.
        stats = {p.name: p.stat() for p in weights}
        newest_s = max((p.stat().st_mtime for p in [*weights, *small]), default=0.0)
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error.strerror}") from None
    if not contents.get("config.json") and not weights:
        raise ModelFilesError(f"{path} holds neither config.json nor weight files")
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


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        parsed = json.loads(
            data or b"{}", parse_constant=str
        )  # NaN is no JSON, and would never be equal to itself
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
