"""Histories in virtual time: what the daemon would have stored of a simulated server."""
