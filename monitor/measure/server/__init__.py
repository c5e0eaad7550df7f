"""Readings of a server: API, metrics page, identity, files and process."""
