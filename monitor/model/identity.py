"""The identity of a server, field by field, and changes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

#: A change to one of these opens `config_change`, and effects are attributed to it.
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
#: These follow from the root fields: shown, and reported only when no root field explains them.
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
#: These vary a little from start to start, for example with the GPU memory that is free then.
SOFT_FIELDS = ("num_gpu_blocks", "kv_cache_size_tokens")
#: Fields that two samples must share to be comparable: the root fields, and the derived fields that
#: are often the only evidence of a change on a remote server.
DIGEST_FIELDS = (*ROOT_FIELDS, "system_fingerprint", "quantization", "kv_cache")


@dataclass(frozen=True, slots=True)
class FingerprintField:
    """One field of an identity. `value` None = unknown, and `reason` says why."""

    name: str
    role: Literal["root", "derived", "soft"]
    value: Any = None
    source: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a server as read at `at`; `digest` is set once it is stored."""

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
