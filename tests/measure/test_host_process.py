"""What the server's own process tells, and what of it is never told."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from monitor.measure.server import host_process as hostprocess
from monitor.measure.server.host_process import (
    ProcessHiddenError,
    find_server,
    options_of,
    shown_command,
)

KEY = "sk-4f1d-never-shown"
SERVE = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/tiny")


@pytest.mark.parametrize(
    "words",
    [
        ("--api-key", KEY),
        (f"--api-key={KEY}",),
        ("--api_key", KEY),
        (f"--api_key={KEY}",),
        ("--api-key", KEY, f"{KEY}-2", f"{KEY}-3"),
        ("--api-key", KEY, "--api-key", f"{KEY}-2"),
        ("--hf-token", KEY),
        (f"--hf_token={KEY}",),
        ("--ssl-keyfile-password", KEY),
        ("--some-secret", KEY),
        ("--db-credentials", KEY),
        ("--API-KEY", KEY),
        (f'--model-loader-extra-config={{"aws_secret_access_key": "{KEY}"}}',),
        ("--model-loader-extra-config", f'{{"access_token":"{KEY}"}}'),
        ("--kv-transfer-config.password", KEY),
        (f"--otlp-traces-endpoint=https://user:{KEY}@collector:4317",),
    ],
    ids=lambda words: words[0].split("{")[0] + f"*{len(words)}",
)
def test_a_secret_of_the_command_line_is_in_neither_the_options_nor_the_shown_command(
    words: tuple[str, ...],
) -> None:
    command = (*SERVE, "--dtype", "auto", *words, "--max-num-seqs", "8")
    options = options_of(command)
    assert KEY not in str(options)
    assert KEY not in shown_command(command)
    assert (options["dtype"], options["max-num-seqs"]) == ("auto", "8")
    assert "--max-num-seqs 8" in shown_command(command)


@pytest.mark.parametrize(
    "command",
    [
        ("sudo", f"VLLM_API_KEY={KEY}", "vllm", "serve", "/models/tiny"),
        ("env", f"HF_TOKEN={KEY}", "vllm", "serve", "/models/tiny"),
        ("sh", "-c", f"vllm serve /models/tiny --api-key {KEY} --port 8000"),
        ("sh", "-c", f"VLLM_API_KEY={KEY} exec vllm serve /models/tiny"),
    ],
    ids=["sudo", "env", "shell", "shell with environment"],
)
def test_a_secret_given_to_a_launcher_is_not_shown(command: tuple[str, ...]) -> None:
    assert KEY not in shown_command(command)
    assert KEY not in str(options_of(command))
    assert "/models/tiny" in shown_command(command)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("--max-num-batched-tokens", "8192"), "max-num-batched-tokens", "8192"),
        (("--max_num_batched_tokens=8192",), "max-num-batched-tokens", "8192"),
        (("--tokenizer-mode", "slow"), "tokenizer-mode", "slow"),
        (("--enable-prompt-tokens-details",), "enable-prompt-tokens-details", True),
        (("--gpu-memory-utilization", "0.9"), "gpu-memory-utilization", "0.9"),
        (("--enforce-eager",), "enforce-eager", True),
        (("--max-logprobs", "-1"), "max-logprobs", "-1"),
        (("--lora-modules", "a=/a", "b=/b"), "lora-modules", ["a=/a", "b=/b"]),
        (("-tp", "2"), "tp", "2"),
        (("--model", "/models/tiny", "-tp", "2"), "tp", "2"),
        (('--hf-overrides={"rope_theta": 10000}',), "hf-overrides", '{"rope_theta": 10000}'),
    ],
    ids=str,
)
def test_an_option_that_changes_how_the_server_computes_is_kept_and_shown(
    words: Sequence[str], name: str, value: object
) -> None:
    assert options_of((*SERVE, *words))[name] == value
    assert shown_command((*SERVE, *words)) == " ".join((*SERVE, *words))


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "8000"),
        ("--host", "0.0.0.0"),
        ("--served-model-name", "tiny"),
        ("--max-model-len", "1024"),
        ("--uvicorn-log-level", "info"),
        ("--ssl-certfile", "/tls.crt"),
        ("--disable-log-requests",),
    ],
    ids=lambda words: words[0],
)
def test_an_option_that_has_a_field_of_its_own_or_changes_no_answer_is_left_out(
    words: Sequence[str],
) -> None:
    assert options_of((*SERVE, *words)) == {}


def test_the_order_of_options_and_the_spelling_of_their_names_make_no_difference() -> None:
    one = options_of((*SERVE, "--dtype", "auto", "--max_num_seqs=8"))
    assert one == options_of((*SERVE, "--max-num-seqs", "8", "--dtype=auto"))


class FakeProcess:
    """A process as psutil shows it."""

    def __init__(
        self, command: Sequence[str], started: float, environment: Mapping[str, str] | None
    ) -> None:
        self.command, self.started, self.environment = command, started, environment

    def cmdline(self) -> list[str]:
        return list(self.command)

    def create_time(self) -> float:
        return self.started

    def cwd(self) -> str:
        return "/srv"

    def environ(self) -> dict[str, str]:
        if self.environment is None:
            raise psutil.AccessDenied
        return dict(self.environment)


Machine = Callable[..., None]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each look over all sockets of the machine."""
    monkeypatch.setattr(hostprocess, "_last_scan", None)
    return []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, looks: list[str]) -> Machine:
    """Sets which processes there are, and which of them are seen to listen on port 8000."""

    def set_up(processes: Mapping[int, FakeProcess], listening: Sequence[int] = ()) -> None:
        def process(pid: int) -> FakeProcess:
            if pid not in processes:
                raise psutil.NoSuchProcess(pid)
            return processes[pid]

        def connections(kind: str) -> list[Any]:
            looks.append(kind)
            address = namedtuple("addr", "ip port")("127.0.0.1", 8000)
            return [
                namedtuple("conn", "status laddr pid")(psutil.CONN_LISTEN, address, pid)
                for pid in listening
            ]

        monkeypatch.setattr(psutil, "net_connections", connections)
        monkeypatch.setattr(
            psutil, "process_iter", lambda: [type("P", (), {"pid": pid}) for pid in processes]
        )
        monkeypatch.setattr(psutil, "Process", process)

    return set_up


def test_the_environment_is_an_allow_list_without_secrets(machine: Machine) -> None:
    environment = {
        "VLLM_BATCH_INVARIANT": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_P2P_DISABLE": "1",
        "VLLM_API_KEY": KEY,
        "VLLM_S3_SECRET": KEY,
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_PORT": "5",
        "HF_TOKEN": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "DATABASE_URL": KEY,
        "PATH": "/bin",
        "MY_VLLM_BATCH_INVARIANT": "1",
    }
    machine({7: FakeProcess(SERVE, 1.0, environment)}, listening=[7])
    seen = find_server(8000)
    assert seen.environment == {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_P2P_DISABLE": "1",
        "VLLM_BATCH_INVARIANT": "1",
    }
    assert KEY not in repr(seen)


def test_the_environment_of_another_users_process_is_unknown_and_not_empty(
    machine: Machine,
) -> None:
    machine({7: FakeProcess(SERVE, 1.0, None)}, listening=[7])
    assert find_server(8000).environment is None


def test_of_several_processes_on_a_port_the_launched_one_is_the_oldest(machine: Machine) -> None:
    machine(
        {9: FakeProcess((*SERVE, "worker"), 5.0, {}), 7: FakeProcess(SERVE, 1.0, {})},
        listening=[7, 9],
    )
    assert (find_server(8000).pid, find_server(8000).cwd) == (7, "/srv")


@pytest.mark.parametrize(("port", "pid"), [(8000, 7), (8001, 8)])
def test_where_sockets_are_hidden_the_command_line_tells_the_port(
    machine: Machine, port: int, pid: int
) -> None:
    api_server = ("python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "8001")
    machine(
        {
            5: FakeProcess(("bash",), 0.0, {}),
            7: FakeProcess(SERVE, 1.0, {}),
            8: FakeProcess(api_server, 2.0, {}),
        }
    )
    assert find_server(port).pid == pid


def test_a_port_of_another_program_is_told(machine: Machine) -> None:
    machine({7: FakeProcess(("/usr/sbin/nginx",), 1.0, {})}, listening=[7])
    with pytest.raises(ProcessHiddenError, match="port 8000 is held by a process that is not vLLM"):
        find_server(8000)


def test_a_process_that_may_not_be_seen_is_told_with_the_mend(machine: Machine) -> None:
    machine({})
    with pytest.raises(ProcessHiddenError, match="run as the server's user or as root"):
        find_server(8000)


def test_one_look_over_the_machine_serves_all_servers_of_a_fleet(
    machine: Machine, looks: list[str]
) -> None:
    machine({7: FakeProcess(SERVE, 1.0, {})}, listening=[7])
    long_ago = time.time() - 3600
    assert [find_server(8000, long_ago).pid for _ in range(5)] == [7] * 5
    for port in (
        8001,
        8002,
    ):  # also for those that are not seen here, such as a server in a container
        with pytest.raises(ProcessHiddenError):
            find_server(port, long_ago)
    assert len(looks) == 1


def test_a_look_from_before_the_servers_start_is_not_taken_for_it(
    machine: Machine, looks: list[str]
) -> None:
    machine({7: FakeProcess(SERVE, 1.0, {})}, listening=[7])
    assert find_server(8000, time.time() - 3600).pid == 7
    machine(
        {7: FakeProcess(SERVE, 1.0, {}), 9: FakeProcess((*SERVE, "--max-num-seqs", "8"), 2.0, {})},
        listening=[9],
    )
    assert find_server(8000, time.time()).pid == 9
    assert len(looks) == 2


def test_where_the_start_is_not_told_each_call_looks_anew(
    machine: Machine, looks: list[str]
) -> None:
    machine({7: FakeProcess(SERVE, 1.0, {})}, listening=[7])
    assert (find_server(8000).pid, find_server(8000).pid, len(looks)) == (7, 7, 2)


def test_a_look_is_shared_for_half_a_minute_only(
    machine: Machine, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({7: FakeProcess(SERVE, 1.0, {})}, listening=[7])
    find_server(8000, 1.0)
    monkeypatch.setattr(hostprocess, "SHARED_S", 0.0)
    find_server(8000, 1.0)
    assert len(looks) == 2


def test_where_sockets_are_hidden_the_command_lines_are_read_once_for_all(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({7: FakeProcess(SERVE, 1.0, {})})
    assert find_server(8000, 1.0).pid == 7
    monkeypatch.setattr(psutil, "process_iter", lambda: pytest.fail("read again"))
    assert find_server(8000, 1.0).pid == 7


@contextmanager
def launched(tmp_path: Path, *words: str) -> Iterator[int]:
    """A real process that looks like a launched vLLM; gives its port."""
    script = tmp_path / "vllm"
    script.write_text(
        "import http.server, sys\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\n"
        "print(server.server_port, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, str(script), "serve", "/models/tiny", *words]
    environment = {"VLLM_BATCH_INVARIANT": "1", "VLLM_API_KEY": KEY}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_a_real_process_is_found_by_its_port(tmp_path: Path) -> None:
    with launched(tmp_path, "--max-num-seqs", "8", "--api-key", KEY) as port:
        seen = find_server(port)
    assert options_of(seen.command) == {"max-num-seqs": "8"}
    assert seen.environment == {"VLLM_BATCH_INVARIANT": "1"}
    assert seen.cwd == str(tmp_path)
    assert KEY not in shown_command(seen.command)
