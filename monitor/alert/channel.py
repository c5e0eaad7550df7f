"""The interface of a notification channel."""

from __future__ import annotations

from typing import Any, Protocol


class DeliveryError(Exception):
    """A notification was not delivered. The text never contains the address, which may be secret.

    `permanent`: retrying would not help. `attempts`: the number of attempts in total; None: retry
    for a day.
    """

    def __init__(self, text: str, permanent: bool = False, attempts: int | None = None) -> None:
        self.permanent = permanent
        self.attempts = 1 if permanent else attempts
        super().__init__(text)


class Channel(Protocol):
    """A channel that delivers JSON objects."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    async def send(self, payload: dict[str, Any]) -> None:
        """Makes one attempt. Raises DeliveryError."""
        ...
