"""The webhook channel: POSTs one JSON object."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from monitor.__about__ import __version__
from monitor.alert.channel import DeliveryError
from monitor.config.settings import ChannelSettings
from monitor.config.values import is_loopback
from monitor.tls import well_known_authorities

#: Client errors that may pass with time: request time-out, conflict, too early, too many requests.
TRY_AGAIN = frozenset({408, 409, 425, 429})
#: Client errors that a proxy also returns while the receiver behind it restarts or its key is
#: rotated: retried for 13 minutes (outbox.BACK_OFF), then given up. All others are final.
MAY_COME_BACK = frozenset({401, 403, 404, 405})
ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class Webhook:
    """Posts to one address. The `Idempotency-Key` header and the body carry the delivery's id."""

    settings: ChannelSettings

    @property
    def name(self) -> str:
        """The channel's name."""
        return self.settings.name

    async def send(self, payload: dict[str, Any]) -> None:
        """Makes one attempt; any 2xx is a success. Raises DeliveryError."""
        try:
            address = self.settings.address()
        except ValueError as error:
            raise DeliveryError(str(error)) from None
        headers = {
            "User-Agent": f"vllm-canary/{__version__}",
            "Idempotency-Key": str(payload.get("id", "")),
        }
        parts = urlsplit(address)
        try:
            # Plain HTTP needs no authorities, and no redirect leads from it to HTTPS.
            verify = (
                await asyncio.to_thread(well_known_authorities)
                if parts.scheme == "https"
                else False
            )
            async with (
                # for the whole request: httpx times each read, and an answer may come in drips
                asyncio.timeout(self.settings.timeout),
                httpx.AsyncClient(
                    timeout=self.settings.timeout,
                    trust_env=not is_loopback(parts.hostname),
                    verify=verify,
                ) as http,
            ):
                response = await http.post(address, json=payload, headers=headers)
        except (httpx.TimeoutException, TimeoutError):
            raise DeliveryError(f"no answer within {self.settings.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DeliveryError(f"no connection ({type(error).__name__})") from None
        if not response.is_success:
            raise refusal(response.status_code)


def refusal(status: int) -> DeliveryError:
    """Returns the error for a status other than 2xx, with how often to retry."""
    text = f"answered HTTP {status}"
    if status in MAY_COME_BACK:
        return DeliveryError(text, attempts=ATTEMPTS)
    return DeliveryError(text, permanent=400 <= status < 500 and status not in TRY_AGAIN)
