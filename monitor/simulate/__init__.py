"""A simulated vLLM server with GPUs that heat up: a peer, spoken to over HTTP only."""
