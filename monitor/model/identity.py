"""What is being served, field by field, and what changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

#: A change of one of these is a trigger, and attribution speaks of them.
ROOT_FIELDS = (
    "vllm_version",
    "model_root",
    "model_hash",
    "tokenizer_hash",
    "template_hash",
    "max_model_len",
    "launch_options",
    "served_models",
    "environment",
    "image_digest",
    "driver_version",
    "gpu",
    "gpu_neighbours",
)
#: These follow from the roots: shown, and a trigger only when no root explains them.
DERIVED_FIELDS = (
    "system_fingerprint",
    "model_id",
    "model_family",
    "quantization",
    "kv_cache",
    "cuda_version",
    "attention_backend",
    "launch_command",
)
#: These move a little by themselves, for example with what else lies in the GPU's memory at start.
SOFT_FIELDS = ("num_gpu_blocks", "kv_cache_size_tokens")
#: What two samples must share to be comparable: the roots, and the derived fields that are often
#: the only sign on a remote server.
DIGEST_FIELDS = (*ROOT_FIELDS, "system_fingerprint", "quantization", "kv_cache")


@dataclass(frozen=True, slots=True)
class FingerprintField:
    """One thing that must stay the same. `value` None = unknown, and `reason` says why."""

    name: str
    role: Literal["root", "derived", "soft"]
    value: Any = None
    source: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is being served, as far as it could be read at `at`; `digest` is set once it is
    stored.
    """

    target: str
    at: datetime
    fields: Mapping[str, FingerprintField]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One field before and after. Values are JSON values."""

    field: str
    before: Any
    after: Any
