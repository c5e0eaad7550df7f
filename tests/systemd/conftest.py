"""The fixture shared by the tests of the service."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from systemd.container import (
    REPOSITORY,
    booted,
    dependency_wheels,
    install_tools,
    project_wheel,
    root_filesystem,
)
from systemd.installed import UNIT, Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The installed service; tests start and stop its unit."""
    if os.geteuid() != 0:
        reason = "needs root to boot a container (make test-systemd as root)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; must not be skipped in CI")
        pytest.skip(reason)
    install_tools()
    root = root_filesystem()
    folder = tmp_path_factory.mktemp("systemd")
    wheel = project_wheel(folder)
    wheels = dependency_wheels(wheel, root)
    read_only = {folder: "/mnt/project", wheels: "/mnt/wheels", REPOSITORY / "tests": "/mnt/tests"}
    with booted(root, folder / "console.log", read_only) as container:
        running = Service(container)
        running.set_up()
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the unit's log to the report of a failed test."""
    report = yield
    service = getattr(item, "funcargs", {}).get("service")
    if call.when == "call" and report.failed and isinstance(service, Service):
        report.sections.append((f"journalctl -u {UNIT}", service.evidence()))
    return report
