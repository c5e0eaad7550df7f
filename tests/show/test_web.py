"""The daemon's HTTP face on a thread of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from processes import get

from monitor.show.web import ListenError, WebServer, application

alive_problems: list[str] = []
ready_problems: list[str] = []


@pytest.fixture
def web() -> Iterator[str]:
    """A running server; its answers follow the lists above."""
    alive_problems.clear()
    ready_problems.clear()
    server = WebServer(
        application(lambda: b"canary 1\n", lambda: alive_problems, lambda: ready_problems),
        "127.0.0.1",
        0,
    )
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


def test_health_and_readiness_are_good_without_complaints(web: str) -> None:
    assert [
        (get(web + page)[0], json.loads(get(web + page)[1])) for page in ("/healthz", "/readyz")
    ] == [(200, {"status": "good", "problems": []})] * 2


def test_a_complaint_is_a_503_that_says_it_and_the_two_are_apart(web: str) -> None:
    ready_problems.append("the database is not open")
    status, text = get(web + "/readyz")
    assert (status, json.loads(text)["problems"]) == (503, ["the database is not open"])
    assert get(web + "/healthz")[0] == 200


def test_the_metrics_page_is_what_the_exporter_says(web: str) -> None:
    assert get(web + "/metrics") == (200, "canary 1\n")


def test_another_page_is_not_there(web: str) -> None:
    assert get(web + "/secret")[0] == 404


def test_an_address_in_use_is_a_sentence_and_2_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ListenError,
            match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use; .*listen",
        ) as told:
            WebServer(application(bytes, list, list), "127.0.0.1", port)
    assert told.value.exit_code == 2


def test_it_answers_while_the_thread_that_measures_is_busy(web: str) -> None:
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(get(web + "/healthz")[0]))
    asking.start()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        sum(range(1000))
    asking.join(5)
    assert answers == [200]


def test_it_stops_in_time_with_a_client_that_never_ends_its_request() -> None:
    server = WebServer(application(bytes, list, list), "127.0.0.1", 0)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        time.sleep(0.2)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4
