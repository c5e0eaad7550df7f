"""The tables of the history. Times are integer UTC microseconds (`_us`), other units stand in the
names as everywhere; NULL is unknown.

The schema is made by the migrations (migrations/versions); a test holds the two together. The
public face is the view `samples`. Here is what was measured; what was concluded from it is in
judgedtables.py.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
)

from monitor.store.judgedtables import (
    delivery,
    detector_state,
    finding,
    incident,
    incident_event,
    pin,
    pin_output,
    review,
)
from monitor.store.schema import metadata

__all__ = [
    "delivery",
    "detector_state",
    "finding",
    "fingerprint",
    "gpu_event",
    "gpu_reading",
    "incident",
    "incident_event",
    "lease",
    "metadata",
    "output",
    "pin",
    "pin_output",
    "probe",
    "probe_revision",
    "process_start",
    "review",
    "sample",
    "server_reading",
    "skipped_run",
    "target",
]

target = Table(
    "target",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("url", Text, nullable=False),
    Column("first_seen_us", BigInteger, nullable=False),
    Column(
        "probes",
        JSON,
        # what the daemon runs now: {name: seconds between runs, or a cron line}: a reader knows
        # what is overdue
    ),
    # the UUIDs of the GPUs that serve it, as far as they were ever seen
    Column("cards", JSON, key="gpus"),
    Column(
        "fingerprint_id", Integer
    ),  # the current one; no foreign key, since that table points back here
    Column("process_start_id", Integer),  # likewise
)

probe = Table(
    "probe",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)

probe_revision = Table(
    "probe_revision",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("probe_id", Integer, ForeignKey("probe.id"), nullable=False),
    Column("digest", Text, nullable=False),
    Column("class", Text, nullable=False),
    Column("parameter_set", Text, nullable=False),
    Column("definition", JSON, nullable=False),
    Column("first_seen_us", BigInteger, nullable=False),
    UniqueConstraint("probe_id", "digest"),
)

process_start = Table(
    "process_start",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column(
        "started_at_us", BigInteger
    ),  # unknown where the server does not tell (several API servers)
    Column("seen_at_us", BigInteger, nullable=False),
    Column("source", Text, nullable=False),  # metrics | counter_fell | after_outage | first_seen
    Column(
        "first_answer_at_us", BigInteger
    ),  # when our first good canary of this start got its first token
)

fingerprint = Table(
    "fingerprint",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("digest", Text, nullable=False),
    Column(
        "earlier", JSON, nullable=False, default=list
    ),  # its digests while less of it was known: files of pins may name them
    Column("fields", JSON, nullable=False),
    Column("first_seen_us", BigInteger, nullable=False),
    Column("last_seen_us", BigInteger, nullable=False),
    UniqueConstraint("target_id", "digest"),
)

output = Table(
    "output",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("sha256", Text, nullable=False, unique=True),
    Column("text", Text, nullable=False),
)

sample = Table(
    "sample",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("revision_id", Integer, ForeignKey("probe_revision.id"), nullable=False),
    Column("process_start_id", Integer, ForeignKey("process_start.id")),
    Column("fingerprint_id", Integer, ForeignKey("fingerprint.id")),
    Column("output_id", Integer, ForeignKey("output.id")),
    Column("started_at_us", BigInteger, nullable=False),
    Column("phase", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("retry_of", Integer),  # the sample whose near tie this run decides
    Column("detail", Text),  # a sentence about what went wrong; never a secret, never the answer
    Column("verdict", Text, nullable=False),
    Column("stale", Integer),
    Column("pin", Integer),
    Column("priority", Integer),
    Column("idle_before_s", Float),
    Column("connect_ms", Float),
    Column("ttft_ms", Float),
    Column("ttft_visible_ms", Float),
    Column("e2e_ms", Float),
    Column("decode_tok_s", Float),
    Column("itl_p50_ms", Float),
    Column("itl_p95_ms", Float),
    Column("itl_max_ms", Float),
    Column("observer_lag_ms", Float),
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("finish_reason", Text),
    Column("spec_acceptance", Float),
    Column("queue_ms", Float),
    Column("prefill_ms", Float),
    Column("decode_ms", Float),
    Column("server_timing", Text),
    Column("running", Float),
    Column("waiting", Float),
    Column("kv_usage", Float),
    Column("preemptions", Float),
    Column("other_prompt_tokens", Float),
    Column("other_generation_tokens", Float),
    Column("gpu_uuid", Text),
    Column("gpu_temp_c", Float),
    Column("gpu_mem_temp_c", Float),
    Column("gpu_margin_c", Float),
    Column("sm_clock_mhz", Float),
    Column("mem_clock_mhz", Float),
    Column("gpu_util", Float),
    Column("power_w", Float),
    Column("power_limit_w", Float),
    Column("energy_j", Float),
    Column("vram_used_mib", Float),
    Column("throttle_thermal_ms", Float),
    Column("throttle_power_ms", Float),
    Column("throttle_brake_ms", Float),
    Column("gpu_age_ms", Float),
    Column("first_divergence", Integer),
    Column("logprob_shift", Float),
    Index(
        "ix_sample_target_id_started_at_us", "target_id", "started_at_us"
    ),  # history and summary of one target
    Index("ix_sample_started_at_us", "started_at_us"),  # history over all targets, retention
)

server_reading = Table(
    "server_reading",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("state", Text, nullable=False),  # ok | refused | timeout | http_error | unreadable
    Column("process_start_id", Integer, ForeignKey("process_start.id")),
    Column("running", Float),
    Column("waiting", Float),
    Column("kv_usage", Float),
    Column("engine_steps", Float),
    Column("preemptions", Float),
    Column("prompt_tokens", Float),
    Column("generation_tokens", Float),
    Column("requests_finished", Float),
    Column("requests_aborted", Float),
    Column("draft_tokens", Float),
    Column("accepted_tokens", Float),
    Column("queue_s_sum", Float),
    Column("queue_count", Float),
    Column("prefill_s_sum", Float),
    Column("prefill_count", Float),
    Index("ix_server_reading_target_id_at_us", "target_id", "at_us"),
)

gpu_reading = Table(
    "gpu_reading",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("gpu_uuid", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),  # looks in this window
    *(
        Column(f"{name}_{kind}", Float)
        for name in ("temp_c", "sm_clock_mhz", "power_w", "util")
        for kind in ("min", "median", "max")
    ),
    Column("mem_temp_c", Float),
    Column("margin_c", Float),
    Column("mem_clock_mhz", Float),
    Column("vram_used_mib", Float),
    Column("power_limit_w", Float),
    Column("event_reasons", Integer),
    Column("energy_j", Float),
    Column("throttle_thermal_ns", BigInteger),
    Column("throttle_power_ns", BigInteger),
    Column("throttle_brake_ns", BigInteger),
    Index("ix_gpu_reading_gpu_uuid_at_us", "gpu_uuid", "at_us"),
)

gpu_event = Table(
    "gpu_event",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("gpu_uuid", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),  # when we took it up: the driver gives no time
    Column("xid", Integer, nullable=False),
    Index("ix_gpu_event_gpu_uuid_at_us", "gpu_uuid", "at_us"),
)

skipped_run = Table(
    "skipped_run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("probe", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),  # pause | still_running | token_budget | lease | idle
    Column("count", Integer, nullable=False),
    Index("ix_skipped_run_target_id_at_us", "target_id", "at_us"),
)

lease = Table(
    "lease",
    metadata,
    Column(
        "name", Text, primary_key=True
    ),  # target, or target/uncapped: one canary at a time in each lane
    Column("holder", Text, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
)
