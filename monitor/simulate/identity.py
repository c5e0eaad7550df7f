"""What the simulated server reports about itself, and its API options: everything that a restart
with other flags or files may change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from monitor.simulate.settings import Count, HttpStatus, Seconds, Share


@dataclass(slots=True)
class Identity:
    """Field names are vLLM's flags where one exists. Changes are visible at once."""

    version: str = "0.32.0"
    served_name: str = "tiny-canary"
    root: str = "models/tiny-canary"
    max_model_len: Count = 8192
    # polite: the chat template adds a system message
    template: Literal["plain", "polite"] = "plain"
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: Share = 0.92
    quantization: str | None = None
    api_key: str | None = None
    per_request_metrics: bool = True  # --enable-per-request-metrics
    prompt_tokens_details: bool = True  # --enable-prompt-tokens-details
    # with several, the metrics page has no process_*, python_* and *_created
    api_servers: Count = 1
    fingerprint: bool = True  # False: answers without a system_fingerprint, as before 0.20
    # faults of its pages
    metrics_status: HttpStatus = 200
    metrics_delay_s: Seconds = 0.0
    # names of families that the page leaves out
    hidden_metrics: list[str] = field(default_factory=list)
    # name of a family -> its new name
    renamed_metrics: dict[str, str] = field(default_factory=dict)


def system_fingerprint(identity: Identity, engine: dict[str, object]) -> str | None:
    """`vllm-<version>-<8 hex>`: changes with what was seen to change it on vLLM 0.32 CPU, and
    with nothing else.

    It depends on model path, quantization, context length, batch limits, block size and cache
    type; not on weights at the same path, template, prefix caching, memory share, served name,
    scheduling policy, driver or GPU.
    """
    if not identity.fingerprint:
        return None
    facts: list[object] = [
        identity.root,
        identity.quantization,
        identity.max_model_len,
        identity.kv_cache_dtype,
    ]
    facts += [
        engine.get(name)
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "num_speculative_tokens",
        )
    ]
    digest = hashlib.sha256(json.dumps([identity.version, *facts]).encode()).hexdigest()
    return f"vllm-{identity.version}-{digest[:8]}"
