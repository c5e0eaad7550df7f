"""The service in a booted container, installed as docs/run-as-a-service.md says, with a server and
a webhook receiver.
"""

from __future__ import annotations

import json
import re
from typing import Any

from systemd.container import REPOSITORY, Container

SERVER, WEBHOOK = "http://127.0.0.1:8000", "http://127.0.0.1:9000"
DATABASE = "/var/lib/vllm-canary/history.db"
DELIVERIES = "/run/deliveries.jsonl"
UNIT = "vllm-canary.service"

CONFIG = f"""\
database: {DATABASE}
probes: /etc/vllm-canary/probes
targets:
  - name: local
    url: {SERVER}
channels:
  - name: ops
    kind: webhook
    url_env: CANARY_WEBHOOK_URL
"""
PROBE = """\
class: chat
every: 2s
messages:
  - role: user
    content: Is the sky blue? Answer yes or no.
max_tokens: 8
sampling: {logprobs: 5}
expect:
  - contains: "Yes"
"""


#: Sends GET, or POST if there is a body; a minimal Debian has no curl.
REQUEST = """\
import sys, urllib.request
address, body = sys.argv[1:]
data = None if body == "{}" else body.encode()
print(urllib.request.urlopen(address, data, 5).read().decode())
"""


def documented_commands(heading: str) -> str:
    """The shell block under a heading of the how-to: the tests run the documented commands."""
    text = (REPOSITORY / "docs" / "run-as-a-service.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"no heading {heading!r} in the how-to"
    block = re.search(r"^```sh\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)
    assert block, f"no shell block under {heading!r}"
    return block[1]


class Service:
    """The unit in its container, with a stand-in for the vLLM server and a webhook receiver."""

    def __init__(self, container: Container) -> None:
        self.container = container

    def set_up(self) -> None:
        """Installs as documented, from wheels, and starts the server and the receiver."""
        self.container.shell(
            documented_commands("Install"),
            env={
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": "/mnt/project /mnt/wheels",
                "PIP_NO_COMPILE": "1",
            },
            timeout=240,
        )
        # one fast probe instead of the shipped ones
        self.container.shell("rm -f /etc/vllm-canary/probes/*")
        self.container.write("/etc/vllm-canary/probes/sky.yaml", PROBE)
        self.container.write("/etc/vllm-canary/config.yaml", CONFIG)
        self.container.write("/etc/vllm-canary/environment", f"CANARY_WEBHOOK_URL={WEBHOOK}/hook\n")
        self._background("receiver", "/mnt/tests/systemd/receiver.py", "9000", DELIVERIES)
        self.start_server()

    def start_server(self) -> None:
        """Starts the stand-in for vLLM and waits until it answers."""
        self._background(
            "standin", "/mnt/tests/standin.py", "--port", "8000", "--max-model-len", "4096"
        )
        self.container.wait_until(self.server_state, 20, "the stand-in answers")

    def stop_server(self) -> None:
        """Stops the stand-in for vLLM."""
        self.container.run("systemctl", "stop", "standin")

    def _background(self, name: str, *command: str) -> None:
        self.container.run("systemd-run", f"--unit={name}", "--quiet", "/usr/bin/python3", *command)

    def start(self) -> None:
        """Starts the unit, unless it runs, and waits until it is ready."""
        self.container.run("systemctl", "start", UNIT, timeout=100)

    def server_state(self, **changes: Any) -> dict[str, Any]:
        """Changes the stand-in's state; returns the state, empty while it does not answer."""
        answer = self.container.run(
            "python3",
            "-c",
            REQUEST,
            f"{SERVER}/-/control",
            json.dumps(changes),
            check=bool(changes),
        )
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def command(self, *arguments: str, user: str = "root") -> dict[str, Any]:
        """The output of `vllm-canary … --json`, which must succeed."""
        printed: dict[str, Any] = json.loads(
            self.container.run("vllm-canary", *arguments, "--json", user=user).stdout
        )
        return printed

    def samples(self, user: str = "root") -> list[dict[str, Any]]:
        """The samples that `history` shows to a user of the machine."""
        samples: list[dict[str, Any]] = self.command("history", user=user)["samples"]
        return samples

    def wait_for_samples(self, more: int, seconds: float = 90) -> list[dict[str, Any]]:
        """Waits for `more` new samples and returns them."""
        there = ["test", "-s", DATABASE]
        self.container.wait_until(
            lambda: self.container.run(*there, check=False).returncode == 0,
            seconds,
            f"{DATABASE} is there",
        )
        last = max((sample["id"] for sample in self.samples()), default=0)

        def new() -> list[dict[str, Any]]:
            return [sample for sample in self.samples() if sample["id"] > last]

        self.container.wait_until(
            lambda: len(new()) >= more, seconds, f"{more} more samples in the history"
        )
        return new()

    def deliveries(self, event: str, kind: str) -> list[dict[str, Any]]:
        """The incidents of one kind in the deliveries of an event: `opened`, `updated` or
        `resolved`.
        """
        sent = [json.loads(line) for line in self.container.read(DELIVERIES).splitlines()]
        return [
            body["incident"]
            for body in sent
            if (body["event"], body["incident"]["kind"]) == (event, kind)
        ]

    def evidence(self) -> str:
        """Status, log and deliveries for the report of a failed test."""
        status = self.container.run(
            "systemctl", "status", "--no-pager", "--lines=0", UNIT, check=False
        ).stdout
        return (
            f"{status}\n{self.container.journal(UNIT)}\ndeliveries:\n"
            f"{self.container.read(DELIVERIES)}"
        )
