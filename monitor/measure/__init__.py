"""Measurements of a server and its GPUs: streams, metrics pages, NVML, identity. Independent of the
database.
"""
