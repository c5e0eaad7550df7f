"""The words of the closed lists in which a scenario says what a monitor must report
(monitor/model/words.py; a test compares).
"""

from __future__ import annotations

KINDS = (
    *(
        "server_down",
        "hung",
        "no_samples",
        "unknown_lasting",
        "telemetry_blind",
        "gpu_fault",
        "driver_mismatch",
        "speed",
        "thermal",
    ),
    *(
        "power",
        "service_level",
        "quality",
        "near_ties",
        "config_change",
        "workload_shift",
        "pin_expired",
        "number_expired",
        "reserve",
    ),
    *("slow_start", "monitor"),
)
CAUSES = (
    *(
        "heat",
        "memory_heat",
        "power_cap",
        "power_brake",
        "hidden_limit",
        "queueing",
        "config_change",
        "kernel_fallback",
        "cache_lost",
    ),
    *(
        "uptime_decay",
        "speculation",
        "neighbour",
        "host_bound",
        "slow_state",
        "answers_changed",
        "server_fault",
        "unexplained",
    ),
)
