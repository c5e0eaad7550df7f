"""The webhook: one POST; every way it can fail, and the address never shown."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from webhooks import Receiver

from monitor.alert.channel import DeliveryError
from monitor.alert.outbox import BACK_OFF
from monitor.alert.webhook import ATTEMPTS, Webhook
from monitor.config.settings import ChannelSettings

PAYLOAD = {
    "version": 1,
    "id": "b6b9",
    "event": "opened",
    "incident": {"summary": "max_model_len 4096 → 2048"},
}


def webhook(url: str, timeout: str = "2s") -> Webhook:
    """A channel to an address."""
    return Webhook(
        ChannelSettings.model_validate(
            {"name": "ops", "kind": "webhook", "url": url, "timeout": timeout}
        )
    )


async def failure(hook: Webhook) -> DeliveryError:
    """Why a message does not arrive."""
    with pytest.raises(DeliveryError) as told:
        await hook.send(PAYLOAD)
    return told.value


async def test_it_posts_the_object_as_it_is_with_its_id_as_idempotency_key(
    receiver: Receiver,
) -> None:
    await webhook(receiver.url).send(PAYLOAD)
    assert receiver.deliveries == [PAYLOAD]
    headers = receiver.headers[0]
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == "b6b9"
    assert headers["user-agent"].startswith("vllm-canary/")


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_2xx_is_an_arrival(status: int, receiver: Receiver) -> None:
    receiver.statuses = [status]
    await webhook(receiver.url).send(PAYLOAD)


@pytest.mark.parametrize("status", [400, 410, 413, 415, 422])
async def test_a_client_error_is_final(status: int, receiver: Receiver) -> None:
    receiver.statuses = [status]
    told = await failure(webhook(receiver.url))
    assert (str(told), told.permanent, told.attempts) == (f"answered HTTP {status}", True, 1)


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_what_a_receiver_that_is_put_up_anew_may_answer_is_tried_for_as_long_as_that_takes(
    status: int, receiver: Receiver
) -> None:
    receiver.statuses = [status]
    told = await failure(webhook(receiver.url))
    assert (str(told), told.permanent, told.attempts) == (
        f"answered HTTP {status}",
        False,
        ATTEMPTS,
    )
    assert (
        timedelta(minutes=10) < sum(BACK_OFF[: ATTEMPTS - 1], timedelta()) < timedelta(minutes=20)
    )


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 302])
async def test_what_may_pass_is_tried_again(status: int, receiver: Receiver) -> None:
    receiver.statuses = [status]
    told = await failure(webhook(receiver.url))
    assert (told.permanent, told.attempts) == (False, None)


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.statuses = [307]
    await failure(webhook(receiver.url))
    assert len(receiver.deliveries) == 1


async def test_nobody_there_is_tried_again(receiver: Receiver) -> None:
    receiver.stop()
    told = await failure(webhook(receiver.url))
    assert (told.permanent, "no connection" in str(told)) == (False, True)


async def test_no_answer_in_time_is_tried_again(receiver: Receiver) -> None:
    receiver.delay_s = 1.0
    began = time.monotonic()
    told = await failure(webhook(receiver.url, "200ms"))
    assert time.monotonic() - began < 0.8
    assert (told.permanent, str(told)) == (False, "no answer within 0.2 s")


async def test_an_answer_that_drips_for_ever_ends_with_the_time_out_too() -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
            gone.set()

    gone = asyncio.Event()
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.monotonic()
    told = await failure(webhook(f"http://127.0.0.1:{port}/", "300ms"))
    assert time.monotonic() - began < 1.5
    assert not told.permanent
    await gone.wait()  # the peer has noticed that we left, and its end of the connection is closed
    server.close()


async def test_a_peer_that_is_no_http_server_is_tried_again() -> None:
    async def rude(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    told = await failure(webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/T0KEN"))
    assert (told.permanent, "T0KEN" in str(told)) == (False, False)
    server.close()


@pytest.mark.parametrize(
    "address",
    [
        "T0KEN",
        "//T0KEN",
        "http://[T0KEN",
        "http:///T0KEN",
        "http://127.0.0.1:99999/T0KEN",
        "http://127.0.0.1:port/T0KEN",
        "http://127.0.0.1 /T0KEN",
        "ftp://127.0.0.1/T0KEN",
    ],
    ids=lambda address: address.replace("T0KEN", "secret"),
)
async def test_an_address_in_the_environment_that_is_none_is_a_failure_that_does_not_show_it(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CANARY_TEST_HOOK", address)
    told = await failure(
        Webhook(ChannelSettings(name="ops", kind="webhook", url_env="CANARY_TEST_HOOK"))
    )
    assert "T0KEN" not in f"{told}{caplog.text}".replace("CANARY_TEST_HOOK", "")


async def test_a_missing_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_TEST_HOOK", raising=False)
    told = await failure(
        Webhook(ChannelSettings(name="ops", kind="webhook", url_env="CANARY_TEST_HOOK"))
    )
    assert "CANARY_TEST_HOOK is not set" in str(told)


@pytest.mark.parametrize("status", [204, 404, 500])
async def test_a_token_in_the_address_is_in_no_error(status: int, receiver: Receiver) -> None:
    receiver.statuses = [status]
    try:
        await webhook(receiver.url).send(PAYLOAD)
    except DeliveryError as error:
        assert "T0KEN" not in f"{error!r} {error.__cause__!r}"


async def test_a_proxy_of_the_environment_is_not_used_for_loopback(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        await webhook(receiver.url).send(PAYLOAD)
    assert len(receiver.deliveries) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_certificate_authorities_are_not_read_on_the_loop_that_takes_time_stamps(
    scheme: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    read = ssl.SSLContext.load_verify_locations

    def noted(self: ssl.SSLContext, *args: Any, **kwargs: Any) -> None:
        threads.append(threading.get_ident())
        read(self, *args, **kwargs)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    receiver.stop()
    await failure(webhook(receiver.url.replace("http", scheme)))
    assert threading.get_ident() not in threads


def test_the_libraries_that_log_addresses_are_kept_quiet_by_the_daemon() -> None:
    from monitor.cli.run import set_up_logging

    before = {name: logging.getLogger(name).level for name in ("httpx", "httpcore", "monitor")}
    set_up_logging(verbose=True)
    try:
        assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
        assert not logging.getLogger("httpcore").isEnabledFor(logging.DEBUG)
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
