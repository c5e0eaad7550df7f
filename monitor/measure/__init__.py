"""How a server and its card are looked at: streams, metrics pages, NVML, identity. Knows nothing of
the database.
"""
