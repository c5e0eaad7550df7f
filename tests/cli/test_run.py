"""`run`: what is said before the daemon starts, and what stops it from starting."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from histories import History
from standin import StandIn

from .conftest import PROBE, Command, write_config


def test_a_broken_configuration_or_probe_is_2_with_every_line(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path, server.url, a=PROBE + "colour: red\n", b=PROBE.replace("60s", "60")
    )
    ran = cli("run")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 2
    config.write_text(config.read_text() + "colour: red\n")
    ran = cli("run")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert server.state.paths == []


def test_without_a_configuration_it_is_2_and_says_what_to_do(cli: Command) -> None:
    ran = cli("run")
    assert ran.code == 2
    assert "--url" in ran.err


def test_a_port_in_use_is_2_and_nothing_is_written(cli: Command, config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = cli("run", "--listen", f"127.0.0.1:{port}")
    assert ran.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ran.err
    assert not (config.parent / "history.db").exists()


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:9462", "9462", "127.0.0.1:99999", "127.example.com:80"]
)
def test_an_address_that_is_not_on_loopback_is_2(listen: str, cli: Command, config: Path) -> None:
    ran = cli("run", "--listen", listen)
    assert ran.code == 2
    assert "--listen" in ran.err


def test_a_database_of_a_newer_version_is_2_and_not_waited_for(
    cli: Command, config: Path, history: History
) -> None:
    history.do(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    ran = cli("run")
    assert ran.code == 2
    assert "upgrade vllm-canary" in ran.err


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", ""])
def test_an_address_of_a_server_that_is_nonsense_is_2(url: str, cli: Command) -> None:
    ran = cli("run", "--url", url)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
