"""The service under a real systemd: it starts, measures, alerts and stops as documented."""

from __future__ import annotations

import time

import pytest

from systemd.installed import CONFIG, DATABASE, SERVER, UNIT, Service, documented_commands

CONFIG_FILE = "/etc/vllm-canary/config.yaml"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/test.conf"

# the first run also builds the root filesystem
pytestmark = [pytest.mark.systemd, pytest.mark.timeout(900)]


def test_systemd_finds_no_fault_with_the_unit(service: Service) -> None:
    verified = service.container.run(
        "systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}", check=False
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_the_unit_becomes_active_when_the_daemon_is_ready_and_runs_as_its_own_user(
    service: Service,
) -> None:
    service.container.shell(documented_commands("Configure"))
    assert service.container.property(UNIT, "ActiveState") == "active"
    assert service.container.property(UNIT, "UnitFileState") == "enabled"
    main = service.container.property(UNIT, "MainPID")
    assert (
        service.container.run("stat", "-c", "%U", f"/proc/{main}").stdout.strip() == "vllm-canary"
    )


def test_samples_reach_the_history_and_any_user_may_read_it(service: Service) -> None:
    service.start()
    samples = service.wait_for_samples(2)
    owner = service.container.run("stat", "-c", "%U", DATABASE).stdout.strip()
    assert owner == "vllm-canary"
    assert {(s["target"], s["probe"], s["outcome"]) for s in samples} == {("local", "sky", "ok")}
    assert {s["id"] for s in samples} <= {s["id"] for s in service.samples(user="nobody")}


def test_a_shorter_context_sends_one_alert_that_names_it(service: Service) -> None:
    service.start()
    service.wait_for_samples(2)  # the first fingerprint is known
    service.server_state(
        max_model_len=2048, process_start=time.time(), system_fingerprint="vllm-0.32.0-0badcafe"
    )

    service.container.wait_until(
        lambda: service.deliveries("opened", "config_change"), 150, "an alert about the change"
    )
    service.wait_for_samples(3)  # time in which a second alert would arrive
    (incident,) = service.deliveries("opened", "config_change")
    changes = {change["field"]: change for change in incident["changes"]}
    assert (changes["max_model_len"]["before"], changes["max_model_len"]["after"]) == (4096, 2048)
    assert incident["target"] == "local"


def test_it_starts_without_the_server_and_continues_when_the_server_starts(
    service: Service,
) -> None:
    service.container.run("systemctl", "stop", UNIT, timeout=60)
    service.stop_server()
    service.start()
    assert service.container.property(UNIT, "ActiveState") == "active"
    service.container.wait_until(
        lambda: service.deliveries("opened", "server_down"), 60, "an alert that the server is down"
    )
    service.start_server()
    service.container.wait_until(
        lambda: service.deliveries("resolved", "server_down"),
        60,
        "an alert that the server is up again",
    )
    assert len(service.deliveries("opened", "server_down")) == 1


def test_stop_ends_it_cleanly_and_the_history_stays_readable(service: Service) -> None:
    service.start()
    service.wait_for_samples(1)
    began = time.monotonic()
    service.container.run("systemctl", "stop", UNIT, timeout=60)
    assert time.monotonic() - began < 20
    # "failed" after a kill or an exit code
    assert service.container.property(UNIT, "ActiveState") == "inactive"
    assert service.container.property(UNIT, "ExecMainStatus") == "0"
    assert service.samples(user="nobody")


def test_the_history_of_a_killed_daemon_is_readable_by_any_user_and_goes_on(
    service: Service,
) -> None:
    service.start()
    last = service.wait_for_samples(1)[-1]["id"]
    service.container.write(DROP_IN, "[Service]\nRestart=no\n")
    try:
        service.container.shell(f"systemctl daemon-reload; systemctl kill --signal=KILL {UNIT}")
        service.container.wait_until(
            lambda: service.container.property(UNIT, "ActiveState") == "failed",
            20,
            "the daemon is dead",
        )
        assert service.container.run("test", "-s", f"{DATABASE}-wal", check=False).returncode == 0
        assert max(sample["id"] for sample in service.samples(user="nobody")) >= last
    finally:
        service.container.shell(
            f"rm {DROP_IN}; systemctl daemon-reload; systemctl reset-failed {UNIT}; systemctl "
            f"start {UNIT}"
        )
    assert service.wait_for_samples(1)


def test_a_stopped_daemon_is_restarted_by_the_watchdog(service: Service) -> None:
    service.container.write(DROP_IN, "[Service]\nWatchdogSec=4\nRestartSec=1\n")
    try:
        service.container.shell(f"systemctl daemon-reload; systemctl restart {UNIT}")
        before = service.container.property(UNIT, "MainPID")
        # longer than WatchdogSec: a working daemon reports in time
        service.wait_for_samples(3)
        assert service.container.property(UNIT, "MainPID") == before
        service.container.run("systemctl", "kill", "--signal=STOP", UNIT)
        service.container.wait_until(
            lambda: service.container.property(UNIT, "NRestarts") == "1",
            60,
            "systemd restarted the daemon",
        )
        service.wait_for_samples(1)
    finally:
        service.container.shell(f"rm {DROP_IN}; systemctl daemon-reload; systemctl restart {UNIT}")


def test_a_key_from_a_systemd_credential_is_accepted_by_the_server(service: Service) -> None:
    key_file = "/run/credentials/vllm-canary.service/vllm-key"
    service.container.write("/etc/vllm-canary/vllm-key", "the-key\n")
    service.container.run("chmod", "600", "/etc/vllm-canary/vllm-key")
    service.container.write(
        DROP_IN, "[Service]\nLoadCredential=vllm-key:/etc/vllm-canary/vllm-key\n"
    )
    service.container.write(
        CONFIG_FILE,
        CONFIG.replace(f"url: {SERVER}\n", f"url: {SERVER}\n    api_key_file: {key_file}\n"),
    )
    try:
        service.server_state(api_key="the-key")
        service.container.shell(f"systemctl daemon-reload; systemctl restart {UNIT}")
        assert {sample["outcome"] for sample in service.wait_for_samples(2)} == {"ok"}
    finally:
        service.server_state(api_key=None)
        service.container.write(CONFIG_FILE, CONFIG)
        service.container.shell(f"rm {DROP_IN}; systemctl daemon-reload; systemctl restart {UNIT}")


def test_an_error_in_the_configuration_leaves_it_stopped_and_the_log_names_the_line(
    service: Service,
) -> None:
    service.container.run("systemctl", "stop", UNIT, timeout=60)
    try:
        service.container.write(CONFIG_FILE, CONFIG + "listen: 127.0.0.1:notaport\n")
        service.container.run("systemctl", "start", UNIT, check=False)
        time.sleep(7)  # longer than RestartSec, so that a restart would be visible
        assert service.container.property(UNIT, "ActiveState") == "failed"
        assert service.container.property(UNIT, "ExecMainStatus") == "2"
        assert service.container.property(UNIT, "NRestarts") == "0"
        assert f"{CONFIG_FILE}:{len(CONFIG.splitlines()) + 1}" in service.container.journal(UNIT)
    finally:
        service.container.write(CONFIG_FILE, CONFIG)
        service.container.run("systemctl", "reset-failed", UNIT, check=False)
