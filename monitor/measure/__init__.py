"""How a server and its GPU are looked at: streams, metrics pages, NVML, identity. Knows nothing of
the database.
"""
