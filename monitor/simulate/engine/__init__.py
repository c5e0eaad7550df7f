"""A vLLM V1 engine in virtual time."""
