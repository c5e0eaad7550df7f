"""A booted Debian in systemd-nspawn, discarded after use; no Docker.

The root filesystem and the wheels are built once and kept under `$XDG_CACHE_HOME/vllm-canary`
(~/.cache); a container runs on an overlay in memory, so that the cache does not change. Needs root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv")
CLEAN_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


def cache_dir() -> Path:
    """The folder of the root filesystem and the wheels between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-canary"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _built_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Returns `path`, built now or in an earlier run; a failed build leaves nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_name(f"{path.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(path)
    return path


def _run(*command: str | Path, timeout: float = 600) -> str:
    """Runs a program on this machine; RuntimeError with its output when it fails."""
    result = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(
            f"{command[0]} exited with "
            f"{result.returncode}:\n{result.stdout[-4000:]}{result.stderr[-4000:]}"
        )
    return result.stdout


def install_tools() -> None:
    """Installs debootstrap and systemd-nspawn where they are missing."""
    tools = {
        "debootstrap": "debootstrap",
        "systemd-nspawn": "systemd-container",
        "nsenter": "util-linux",
    }
    if missing := [package for tool, package in tools.items() if shutil.which(tool) is None]:
        _run("apt-get", "update")
        install = ("apt-get", "install", "-y", "--no-install-recommends", *missing)
        _run("env", "DEBIAN_FRONTEND=noninteractive", *install)


def root_filesystem() -> Path:
    """A minimal system of this machine's release, from its own package mirror."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    targets = _run(
        "apt-get",
        "indextargets",
        "--format",
        "$(SITE) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
    )
    sources = [line.split() for line in targets.splitlines()]
    sites = [site for site, suite, _ in sources if suite == release]
    if not sites:
        raise RuntimeError(f"apt on this machine has no mirror of {release}")
    # python3-venv is in main on Debian and in universe on Ubuntu
    components = sorted(
        {component for site, suite, component in sources if (site, suite) == (sites[0], release)}
    )

    def build(path: Path) -> None:
        options = [
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            f"--components={','.join(components)}",
        ]
        _run("debootstrap", *options, release, path, sites[0], timeout=900)
        shutil.rmtree(path / "var/cache/apt/archives", ignore_errors=True)

    return _built_once(cache_dir() / f"root-{release}-{_digest(*PACKAGES)}", build)


def project_wheel(folder: Path) -> Path:
    """Builds the wheel of this checkout into `folder`."""
    pip = (sys.executable, "-m", "pip")
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY)
    return next(folder.glob("vllm_canary-*.whl"))


def dependency_wheels(wheel: Path, root: Path) -> Path:
    """A folder with the dependencies of `wheel` for the Python of the root filesystem."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    needed = sorted(
        line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line
    )
    python = (root / "usr/bin/python3").readlink().name.removeprefix("python")

    def build(path: Path) -> None:
        options = ["--only-binary=:all:", f"--python-version={python}", f"--dest={path}"]
        _run(sys.executable, "-m", "pip", "download", *options, *needed)

    return _built_once(
        cache_dir() / f"wheels-{_digest(python, platform.machine(), *needed)}", build
    )


class Container:
    """One booted container."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.leader = self._wait_for_leader()
        # degraded: a unit of the system cannot run in a container; not ours
        states = ("running", "degraded")
        self.wait_until(
            lambda: (
                self.run("systemctl", "is-system-running", check=False).stdout.strip() in states
            ),
            60,
            "systemd is up",
        )

    def _wait_for_leader(self) -> int:
        """The process with PID 1 inside: a child of systemd-nspawn, after some short-lived ones."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            children = (
                Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
                .read_text()
                .split()
            )
            for child in children:
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except FileNotFoundError:  # one of the short-lived ones
                    continue
                inside = re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
                if inside and inside[1] == "1" and "Name:\tsystemd\n" in status:
                    return int(child)
            time.sleep(0.1)
        raise RuntimeError(
            f"the container did not boot:\n{self.log.read_text(errors='replace')[-4000:]}"
        )

    def run(
        self,
        *command: str,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - as subprocess calls it
        timeout: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program inside, as root or as another user."""
        inside = [*(["runuser", "-u", user, "--"] if user else []), *command]
        result = subprocess.run(
            ["nsenter", "--target", str(self.leader), "--all", "--", *inside],
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**CLEAN_ENVIRONMENT, **(env or {})},
        )
        if check and result.returncode:
            raise AssertionError(
                f"{' '.join(command)} exited with "
                f"{result.returncode}:\n{result.stdout}{result.stderr}"
            )
        return result

    def shell(self, script: str, **options: object) -> str:
        """Runs a shell script that stops at the first error; returns its output."""
        return self.run("sh", "-eu", input=script, **options).stdout  # type: ignore[arg-type]

    def write(self, path: str, text: str) -> None:
        """Writes a file inside, and creates its folders."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path, input=text)

    def read(self, path: str) -> str:
        """The text of a file inside; empty when it does not exist."""
        return self.run("cat", path, check=False).stdout

    def property(self, unit: str, name: str) -> str:
        """A property of a unit, from `systemctl show`."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        """The last lines of a unit's log."""
        return self.run(
            "journalctl", "--no-pager", "--lines=60", f"--unit={unit}", check=False
        ).stdout

    def wait_until(self, true: Callable[[], object], seconds: float, what: str) -> None:
        """Waits for a condition; AssertionError with its name after `seconds`."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.5)

    def power_off(self) -> None:
        """Shuts the container down."""
        if self.process.poll() is None:
            self.run("systemctl", "poweroff", check=False, timeout=20)


@contextmanager
def booted(root: Path, log: Path, read_only: Mapping[Path, str]) -> Iterator[Container]:
    """Boots `root` with folders of this machine mounted read-only; the network inside is loopback
    only. Afterwards the container is shut down, or killed.
    """
    binds = [f"--bind-ro={here}:{there}" for here, there in read_only.items()]
    command: Sequence[str] = (
        "systemd-nspawn",
        f"--directory={root}",
        "--boot",
        "--volatile=overlay",
        "--private-network",
        "--register=no",
        "--keep-unit",
        f"--machine=vllm-canary-{os.getpid()}",
        *binds,
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        container = Container(process, log)
        try:
            yield container
        finally:
            container.power_off()
            process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
