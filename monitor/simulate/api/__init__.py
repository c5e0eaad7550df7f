"""vLLM's HTTP API, and the DCGM exporter's page."""
