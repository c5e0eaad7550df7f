"""vllm-canary: watches a live vLLM server the way its users feel it."""

from monitor.__about__ import __version__

__all__ = ["__version__"]
