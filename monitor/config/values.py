"""The types of values in configuration files: durations with a unit, addresses, and secrets that
are never shown.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator

from monitor.user_files import duration_s


def parse_duration(value: object) -> float:
    """Seconds from `800ms`, `2s`, `5m`, `1h` or `7d`. Raises ValueError with what to do."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be a duration with a unit, for example 800ms or 2s")
    seconds = duration_s(str(value))
    if seconds is None:
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", str(value)):
            raise ValueError(f"is {value}; give it a unit, for example {value}ms or 2s")
        raise ValueError(
            f"is {value!r}; a duration is a number with ms, s, m, h or d, for example 800ms or 2s"
        )
    if seconds <= 0:
        raise ValueError(f"is {value}; it must be longer than 0")
    return seconds


def _duration_or_none(value: object) -> float | None:
    return None if value == "none" else parse_duration(value)


def _server_url(value: str) -> str:
    parts = _checked_url(value)
    # People paste the OpenAI base URL; our paths add /v1 themselves.
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _plain_url(value: str) -> str:
    _checked_url(value)
    return value


def is_http_address(value: str) -> bool:
    """Whether a secret is an HTTP address; unlike in a file, it may contain a user name and a
    password.
    """
    try:
        parts = urlsplit(value)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and " " not in parts.netloc
            and parts.port != 0
        )
    except ValueError:
        return False


def _checked_url(value: str) -> SplitResult:
    try:
        parts = urlsplit(value.strip())
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not a valid address: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(
            f"is {value!r}; an address starts with http:// or https://, for example "
            "http://127.0.0.1:8000"
        )
    if any(c.isspace() or not c.isprintable() for c in parts.netloc):
        raise ValueError(f"is {value!r}; an address contains no spaces")
    if parts.username or parts.password:
        raise ValueError(
            "contains a user name or password; remove it and use api_key_env or api_key_file"
        )
    return parts


Duration = Annotated[float, BeforeValidator(parse_duration)]
DurationOrNone = Annotated[float | None, BeforeValidator(_duration_or_none)]
ServerUrl = Annotated[str, AfterValidator(_server_url)]
PlainUrl = Annotated[str, AfterValidator(_plain_url)]


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine's loopback."""
    try:
        return host == "localhost" or (host is not None and ipaddress.ip_address(host).is_loopback)
    except ValueError:  # any other name, even 127.example.org, may be anywhere
        return False


def host_port(value: str) -> tuple[str, int]:
    """`127.0.0.1:9462` or `[::1]:9462` in its parts. Raises ValueError with what to do."""
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise ValueError(f"is {value!r}; it must be HOST:PORT, for example 127.0.0.1:9462")
    return host, port


class Secret:
    """A key that is never printed: its text form is a mask."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself, for a request header and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__


def read_secret(env: str | None, file: Path | None) -> Secret | None:
    """Reads a secret from an environment variable or a file. Raises ValueError with what to do when
    it is missing.
    """
    if env is not None:
        value = os.environ.get(env)
        if not value:
            raise ValueError(
                f"the environment variable {env} is not set; set it where the command or "
                "service starts"
            )
        return _usable(value.strip(), f"the environment variable {env}")
    if file is not None:
        try:
            value = file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"the key file {file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"the key file {file} is not a text file") from None
        if not value:
            raise ValueError(f"the key file {file} is empty")
        return _usable(value, f"the key file {file}")
    return None


def _usable(value: str, place: str) -> Secret:
    """The secret, checked for characters that a header cannot contain: the HTTP library would quote
    it in its error.
    """
    if not (value.isascii() and value.isprintable()):
        raise ValueError(
            f"{place} contains more than one line, or characters that are not allowed in a header"
        )
    return Secret(value)
