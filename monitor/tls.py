"""The certificate authorities that every connection of this program trusts."""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def well_known_authorities() -> ssl.SSLContext:
    """The well-known certificate authorities. Read once per process: 20 to 100 ms and 0.7 MB that
    each client would spend again.
    """
    return httpx.create_ssl_context()
