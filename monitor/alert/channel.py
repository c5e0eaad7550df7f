"""What every channel is: something that delivers one JSON object or says why it could not."""

from __future__ import annotations

from typing import Any, Protocol


class DeliveryError(Exception):
    """A notification did not arrive. The text never holds the address: it may be a secret.

    `permanent`: trying again would not help. `attempts`: it may help, but only for so many attempts
    altogether; None: for a day.
    """

    def __init__(self, text: str, permanent: bool = False, attempts: int | None = None) -> None:
        self.permanent = permanent
        self.attempts = 1 if permanent else attempts
        super().__init__(text)


class Channel(Protocol):
    """One way to reach people."""

    @property
    def name(self) -> str:
        """The name that the configuration gives it."""
        ...

    async def send(self, payload: dict[str, Any]) -> None:
        """Deliver once. Raises DeliveryError."""
        ...
