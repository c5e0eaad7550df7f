"""The load that others put on the server."""
