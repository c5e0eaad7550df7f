"""The server's own process, where it runs on this machine and may be read: its command line,
options, environment and start.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

DEFAULT_VLLM_PORT = 8000
SHARED_S = 30.0  # how long one scan of this machine's processes serves all targets
#: process_start_time_seconds is based on the kernel's boot time in whole seconds, and a server's
#: files and socket are opened after its start.
START_SLACK_S = 2.0
# Settings that count tokens are not secrets: --max-num-batched-tokens, --tokenizer-mode,
# --long-prefill-token-threshold.
_SECRET = re.compile(
    r"key|token(?!s|iz|[-_](?:id|thresh|budget|len))|secret|passw|credential", re.IGNORECASE
)
#: Of a JSON object.
_SECRET_MEMBER = re.compile(rf'("[^"]*(?:{_SECRET.pattern})[^"]*"\s*:\s*)"[^"]*"', re.IGNORECASE)
_USER_PART = re.compile(r"://[^/@\s]*@")  # of an address
_OPTION = re.compile(r"--?[A-Za-z]")  # also vLLM's short ones, such as -tp; -1 is a value
#: Options that have a fingerprint field of their own, or that only configure the address and logs.
_NOT_A_SETTING = re.compile(
    r"^(model|served-model-name|max-model-len|tokenizer|chat-template|host|port|uds|root-path"
    r"|ssl-.*|allowed-.*|allow-credentials|uvicorn-.*|disable-uvicorn-.*|log-.*|.*-log-.*"
    r"|enable-log-.*|disable-log-.*|max-log-len|disable-fastapi-docs|middleware|h11-.*)$"
)
#: Environment variables that change how a server computes. An allow-list: no other variable ever
#: enters the history.
_ENVIRONMENT = re.compile(
    r"^(VLLM_(?!CACHE_ROOT|CONFIG_ROOT|NO_USAGE|DO_NOT|USAGE_|LOGGING_|LOG_|HOST_IP|PORT|RPC_"
    r"|NCCL_SO).*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NCCL_.*|PYTORCH_(CUDA_)?ALLOC_CONF"
    r"|OMP_NUM_THREADS|TORCH_CUDA_ARCH_LIST)$"
)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server's process as this user may read it. `environment` None: not readable."""

    pid: int
    command: tuple[str, ...]
    started_s: float
    cwd: str | None
    environment: Mapping[str, str] | None


class ProcessHiddenError(Exception):
    """The process cannot be read; the text says why and what to do."""


@dataclass(slots=True)
class _Scan:
    """One scan of all processes of this machine."""

    at_s: float  # Unix time, to be compared with a server's start
    age_from_s: float  # monotonic
    listening: Mapping[int, frozenset[int]]  # pids of listening processes by port
    # API servers by the port of their command line; None: not searched for yet
    launched: list[tuple[int, ServerProcess]] | None = None

    def is_fresh(self, started_s: float | None) -> bool:
        """Whether it serves for a server that started then; an earlier scan has that server's
        predecessor.
        """
        return (
            started_s is not None
            and self.at_s > started_s + START_SLACK_S
            and time.monotonic() - self.age_from_s < SHARED_S
        )


_last_scan: _Scan | None = None


def find_server(port: int, started_s: float | None = None) -> ServerProcess:
    """The vLLM process that listens on a port of this machine. Raises ProcessHiddenError.

    A scan of all processes takes 50 ms of Python, and one serves all targets for half a minute:
    `started_s`, the server's start in Unix time where its metrics page has it, says which scans
    include this server. Without it each call scans again.
    """
    scan = _scan(started_s)
    listening = [_process(pid) for pid in scan.listening.get(port, frozenset())]
    candidates = [p for p in listening if p is not None] or _by_command(scan, port)
    vllm = [p for p in candidates if any("vllm" in word.lower() for word in p.command)]
    if not vllm:
        whose = "a process that is not vLLM" if candidates else "no process that this user may read"
        raise ProcessHiddenError(
            f"port {port} is held by {whose}; run as the server's user or as root, or the "
            "server is in a container"
        )
    return min(vllm, key=lambda p: p.started_s)  # workers are children of the one that was launched


def _scan(started_s: float | None) -> _Scan:
    global _last_scan  # noqa: PLW0603 - processes belong to the machine, not to a target
    if _last_scan is None or not _last_scan.is_fresh(started_s):
        _last_scan = _Scan(time.time(), time.monotonic(), _listening())
    return _last_scan


def _listening() -> Mapping[int, frozenset[int]]:
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return {}
    found: dict[int, frozenset[int]] = {}
    for c in connections:
        if c.status == psutil.CONN_LISTEN and c.laddr and c.pid:
            found[c.laddr.port] = found.get(c.laddr.port, frozenset()) | {c.pid}
    return found


def _by_command(scan: _Scan, port: int) -> list[ServerProcess]:
    """The vLLM server launched with this port: where sockets may not be read, command lines usually
    may.
    """
    if scan.launched is None:
        found = [_process(process.pid) for process in psutil.process_iter()]
        scan.launched = [
            (_port_of(p.command), p) for p in found if p is not None and _is_api_server(p.command)
        ]
    return [process for its_port, process in scan.launched if its_port == port]


def _is_api_server(command: Sequence[str]) -> bool:
    text = " ".join(command)
    return "vllm.entrypoints.openai.api_server" in text or ("vllm" in text and "serve" in command)


def _port_of(command: Sequence[str]) -> int:
    value = options_of(command, keep_all=True).get("port")
    return int(value) if isinstance(value, str) and value.isdigit() else DEFAULT_VLLM_PORT


def _process(pid: int) -> ServerProcess | None:
    try:
        process = psutil.Process(pid)
        command, started_s = tuple(process.cmdline()), process.create_time()
    except (psutil.Error, OSError):
        return None
    if not command:
        return None
    return ServerProcess(pid, command, started_s, _cwd(process), _environment(process))


def _cwd(process: psutil.Process) -> str | None:
    try:
        return process.cwd()
    except (psutil.Error, OSError):
        return None


def _environment(process: psutil.Process) -> Mapping[str, str] | None:
    try:
        everything = process.environ()
    except (psutil.Error, OSError):
        return None
    return {
        k: v
        for k, v in sorted(everything.items())
        if _ENVIRONMENT.match(k) and not _SECRET.search(k)
    }


def options_of(command: Sequence[str], keep_all: bool = False) -> dict[str, str | bool | list[str]]:
    """The launch options by name without their dashes; secrets and options with a fingerprint field
    of their own are left out unless `keep_all`.
    """
    options: dict[str, str | bool | list[str]] = {}
    # Options before the launched program belong to sudo, a shell or Python.
    index = next(
        (i + 1 for i, word in enumerate(command) if word == "serve" or "api_server" in word), 0
    )
    while index < len(command):
        word = command[index]
        index += 1
        if not _OPTION.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        values = [value] if equals else []
        while not equals and index < len(command) and not _OPTION.match(command[index]):
            values.append(command[index])
            index += 1
        if keep_all or not (_SECRET.search(name) or _NOT_A_SETTING.match(name)):
            values = [shown_command((value,)) for value in values]
            options[name] = True if not values else values[0] if len(values) == 1 else values
    return options


def shown_command(command: Sequence[str]) -> str:
    """The command line with the values of secrets masked, for display."""
    words: list[str] = []
    hide_next = False
    for word in command:
        is_option = bool(_OPTION.match(word))
        if hide_next and not is_option:
            words.append("***")
            continue
        hide_next = is_option and "=" not in word and bool(_SECRET.search(word))
        shown = _USER_PART.sub("://***@", _SECRET_MEMBER.sub(r'\1"***"', word))
        name, equals, _ = shown.partition("=")
        if " " in shown:  # sh -c "vllm serve … --api-key …"
            words.append(shown_command(shown.split(" ")))
        else:
            words.append(f"{name}=***" if equals and _SECRET.search(name) else shown)
    return " ".join(words)
