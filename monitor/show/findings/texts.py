"""The texts of a finding, and the name of a GPU in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Texts:
    """A finding as text: one line, one paragraph, and lines of detail."""

    headline: str
    paragraph: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuName:
    """A GPU's index and model, as `nvidia-smi -L` lists them."""

    index: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class GpuNames:
    """Index and model of the known GPUs, by UUID."""

    known: Mapping[str, GpuName] = field(default_factory=dict)

    def of(self, uuid: str) -> str:
        """Returns "GPU 0 (H100, GPU-a100…01)", without what is unknown."""
        name = self.known.get(uuid, GpuName())
        index = "GPU" if name.index is None else f"GPU {name.index}"
        if name == GpuName():
            return f"GPU {short_uuid(uuid)}"
        return f"{index} ({', '.join(filter(None, (name.model, short_uuid(uuid))))})"


def short_model(name: str | None) -> str | None:
    """Returns "H100" for "NVIDIA H100 80GB HBM3", and "RTX 4090" for "NVIDIA GeForce RTX 4090"."""
    if name is None:
        return None
    words = re.sub(r"\b(NVIDIA|GeForce|Tesla)\b", "", name).split()
    found = " ".join(words[:2] if words[:1] == ["RTX"] else words[:1])
    return found.partition("-")[0] or name


def short_uuid(uuid: str) -> str:
    """Returns the beginning and the end of a UUID, enough to tell two GPUs of a machine apart."""
    return uuid if len(uuid) <= 16 else f"{uuid[:8]}…{uuid[-2:]}"
