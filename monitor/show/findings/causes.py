"""Why something is slower, as text: one entry per cause that drift detection can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.model import Cause
from monitor.show.findings.readings import BeforeAndNow, phrase, share, signed

MOST_READINGS = 3
DUTY_SHOWN = 0.02  # a smaller share of time is not worth a sentence


@dataclass(frozen=True, slots=True)
class CauseText:
    """One cause. {gpu} stands for the GPU.

    `duty`: the throttle time that shows it, with `throttled` as its words; `why` is used if that
    is not known. `readings`: what else shows it, in order.
    """

    short: str
    why: str
    readings: tuple[str, ...] = ()
    duty: str = ""
    throttled: str = ""


CAUSES: Mapping[Cause, CauseText] = {
    Cause.HEAT: CauseText(
        short="{gpu} thermally throttled",
        why="{gpu} is hot and runs at a lower clock",
        readings=("temp_c", "margin_c", "sm_clock_mhz"),
        duty="thermal_duty",
        throttled="{gpu} is thermally throttled",
    ),
    Cause.MEMORY_HEAT: CauseText(
        short="{gpu} thermally throttled on memory temperature",
        why="{gpu} has hot memory and runs at a lower clock",
        readings=("mem_temp_c", "temp_c", "sm_clock_mhz"),
        duty="thermal_duty",
        throttled="{gpu} is thermally throttled on memory temperature",
    ),
    Cause.POWER_CAP: CauseText(
        short="{gpu} power-throttled",
        why="{gpu} draws its full power limit",
        readings=("power_limit_w", "power_w", "sm_clock_mhz"),
        duty="power_duty",
        throttled="{gpu} is power-throttled",
    ),
    Cause.POWER_BRAKE: CauseText(
        short="{gpu} slowed by the external power brake",
        why="{gpu} is slowed by the external power brake",
        readings=("sm_clock_mhz", "power_w"),
        duty="brake_duty",
        throttled="{gpu} is slowed by the external power brake",
    ),
    Cause.HIDDEN_LIMIT: CauseText(
        short="{gpu} clock capped without a driver-reported reason",
        why="The clock of {gpu} is capped without a driver-reported reason",
        readings=("sm_clock_mhz", "power_w", "util"),
    ),
    Cause.QUEUEING: CauseText(
        short="requests queueing",
        why="Requests are queueing",
        readings=("waiting", "queue_ms", "kv_usage"),
    ),
    Cause.CONFIG_CHANGE: CauseText(
        short="configuration changed", why="The configuration changed just before"
    ),
    Cause.KERNEL_FALLBACK: CauseText(
        short="different kernels running",
        why="Different kernels are running at an unchanged clock",
        readings=("top_power_w", "sm_clock_mhz"),
    ),
    Cause.CACHE_LOST: CauseText(
        short="no more prefix cache hits",
        why="The prefix cache is no longer hit",
        readings=("cached_share",),
    ),
    Cause.UPTIME_DECAY: CauseText(
        short="loss grows with process uptime",
        why="The loss grows with the uptime of the process",
        readings=("sm_clock_mhz",),
    ),
    Cause.SPECULATION: CauseText(
        short="fewer drafted tokens accepted",
        why="Speculative decoding accepts fewer tokens",
        readings=("spec_acceptance",),
    ),
    Cause.NEIGHBOUR: CauseText(
        short="another process is using {gpu}",
        why="Another process is using {gpu}",
        readings=("vram_used_mib", "idle_util", "power_w"),
    ),
    Cause.HOST_BOUND: CauseText(
        short="{gpu} is waiting for the CPU",
        why="{gpu} is waiting for the CPU",
        readings=("top_util", "sm_clock_mhz"),
    ),
    Cause.SLOW_STATE: CauseText(
        short="slow since process start",
        why="The process has been slow since it started, although nothing else changed",
        readings=("sm_clock_mhz", "top_power_w"),
    ),
    Cause.UNEXPLAINED: CauseText(short="cause unknown", why="Cause unknown"),
}
ACTIONS: Mapping[Cause, str] = {
    Cause.HEAT: "Check fans, dust, intake air and neighbouring GPUs.",
    Cause.MEMORY_HEAT: (
        "Check the memory's thermal pads and air flow (nvidia-smi -q -d TEMPERATURE)."
    ),
    Cause.POWER_CAP: (
        "Check who set the power limit (nvidia-smi -q -d POWER; nvidia-smi -pl sets it)."
    ),
    Cause.POWER_BRAKE: "Check power supplies, cables and the rack's power distribution.",
    Cause.HIDDEN_LIMIT: (
        "Check locked clocks (nvidia-smi -rgc resets them), firmware and power supply."
    ),
    Cause.QUEUEING: "Check who sends the load; give batch work a lower priority or its own server.",
    Cause.CONFIG_CHANGE: (
        "Check what changed and whether it was intended: `vllm-canary fingerprint`."
    ),
    Cause.KERNEL_FALLBACK: (
        "Check the server's log of the last start: attention backend, sampler, quantization "
        "kernels, compile cache."
    ),
    Cause.CACHE_LOST: (
        "Check --enable-prefix-caching and the KV cache size in the current launch options."
    ),
    Cause.UPTIME_DECAY: (
        "Plan a restart; check the process's memory and report the problem upstream."
    ),
    Cause.SPECULATION: (
        "Check num_speculative_tokens, and that the draft model fits the traffic and the weights."
    ),
    Cause.NEIGHBOUR: "Check the processes on the GPU: nvidia-smi --query-compute-apps=pid,name.",
    Cause.HOST_BOUND: "Check CPU load, cgroup CPU limits, swapping and other work on the host.",
    Cause.SLOW_STATE: "Restart the process.",
    Cause.UNEXPLAINED: "Check the server's log, other work on the host and recent deployments.",
}


def lead(cause: Cause, gpu: str, readings: Mapping[str, BeforeAndNow]) -> str:
    """Returns the cause as a clause, with its throttle time if that is known."""
    text = CAUSES[cause]
    duty = readings.get(text.duty)
    if duty is None or duty.now < DUTY_SHOWN:
        return text.why.format(gpu=gpu)
    baseline = "" if duty.before is None else f" (baseline {share(duty.before)})"
    return f"{text.throttled.format(gpu=gpu)} {share(duty.now)} of the time{baseline}"


def shown_by(
    cause: Cause, readings: Mapping[str, BeforeAndNow], slope_pct_per_h: float | None = None
) -> list[str]:
    """Returns the two or three readings that show the cause, before and now."""
    known = [name for name in CAUSES[cause].readings if name in readings]
    shown = [phrase(name, readings[name]) for name in known]
    if cause is Cause.UPTIME_DECAY and slope_pct_per_h is not None:
        shown.insert(0, f"{signed(slope_pct_per_h, 2)} % per hour")
    return shown[:MOST_READINGS]
