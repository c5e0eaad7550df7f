"""The server's own process, where it runs on this machine and may be seen: its command line, options, environment and start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

DEFAULT_VLLM_PORT = 8000
# Settings that count tokens are no secrets: --max-num-batched-tokens, --tokenizer-mode, --long-prefill-token-threshold.
_SECRET = re.compile(r"key|token(?!s|iz|[-_](?:id|thresh|budget|len))|secret|passw|credential", re.IGNORECASE)
_SECRET_MEMBER = re.compile(rf'("[^"]*(?:{_SECRET.pattern})[^"]*"\s*:\s*)"[^"]*"', re.IGNORECASE)  # of a JSON object
_USER_PART = re.compile(r"://[^/@\s]*@")  # of an address
_OPTION = re.compile(r"--?[A-Za-z]")  # also vLLM's short ones, such as -tp; -1 is a value
#: Options that have a fingerprint field of their own, or that only say where the server listens and what it logs.
_NOT_A_SETTING = re.compile(
    r"^(model|served-model-name|max-model-len|tokenizer|chat-template|host|port|uds|root-path|ssl-.*|allowed-.*|allow-credentials"
    r"|uvicorn-.*|disable-uvicorn-.*|log-.*|.*-log-.*|enable-log-.*|disable-log-.*|max-log-len|disable-fastapi-docs|middleware|h11-.*)$"
)
#: Environment that changes how a server computes. An allow-list: what is not named here is never read into the history.
_ENVIRONMENT = re.compile(
    r"^(VLLM_(?!CACHE_ROOT|CONFIG_ROOT|NO_USAGE|DO_NOT|USAGE_|LOGGING_|LOG_|HOST_IP|PORT|RPC_|NCCL_SO).*"
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NCCL_.*|PYTORCH_(CUDA_)?ALLOC_CONF|OMP_NUM_THREADS|TORCH_CUDA_ARCH_LIST)$"
)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """What can be seen of a server's process. `environment` None: not ours to read."""

    pid: int
    command: tuple[str, ...]
    started_s: float
    cwd: str | None
    environment: Mapping[str, str] | None


class ProcessHiddenError(Exception):
    """The process cannot be seen; the text says why and what would help."""


def find_server(port: int) -> ServerProcess:
    """The vLLM process that listens on a port of this machine. Raises ProcessHiddenError."""
    pids = _listening_pids(port)
    candidates = [p for p in (_process(pid) for pid in pids) if p is not None] or _by_command(port)
    vllm = [p for p in candidates if any("vllm" in word.lower() for word in p.command)]
    if not vllm:
        whose = "a process that is not vLLM" if candidates else "no process that this user may see"
        raise ProcessHiddenError(f"port {port} is held by {whose}; run as the server's user or as root, or the server is in a container")
    return min(vllm, key=lambda p: p.started_s)  # workers are children of the one that was launched


def _listening_pids(port: int) -> set[int]:
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return set()
    return {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid}


def _by_command(port: int) -> list[ServerProcess]:
    """Where sockets may not be looked at, command lines usually may: the vLLM server launched with this port."""
    found = []
    for process in psutil.process_iter():
        seen = _process(process.pid)
        if seen is not None and _is_api_server(seen.command) and _port_of(seen.command) == port:
            found.append(seen)
    return found


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
    return {k: v for k, v in sorted(everything.items()) if _ENVIRONMENT.match(k) and not _SECRET.search(k)}


def options_of(command: Sequence[str], keep_all: bool = False) -> dict[str, str | bool | list[str]]:
    """The launch options by name without their dashes; secrets and what has a field of its own are left out unless `keep_all`."""
    options: dict[str, str | bool | list[str]] = {}
    # What stands before the launched program belongs to sudo, a shell or Python.
    index = next((i + 1 for i, word in enumerate(command) if word == "serve" or "api_server" in word), 0)
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
    """The command line for people: the value of everything whose name speaks of a secret is masked."""
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
