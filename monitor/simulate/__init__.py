"""A simulated vLLM server with cards that heat up: a peer of the daemon, spoken to over HTTP
only.
"""
