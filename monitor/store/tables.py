"""The tables of the history. Times are integer UTC microseconds (`_us`), other units are in the
names as everywhere; NULL is unknown.

The migrations create the schema (migrations/versions); a test compares the two. The public
interface is the view `samples`. The tables of measurements are here, those of conclusions in
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
    # The daemon's schedule, {name: seconds between runs, or a cron line}: readers need it to tell
    # what is overdue.
    Column("probes", JSON),
    # The UUIDs of the GPUs that serve it, as far as they are known. The column of existing
    # databases has the former name; renaming it would take a migration.
    Column("cards", JSON, key="gpus"),
    # The current ones; no foreign keys, since those tables reference this one.
    Column("fingerprint_id", Integer),
    Column("process_start_id", Integer),
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
    # NULL where the server does not report it (several API servers)
    Column("started_at_us", BigInteger),
    Column("seen_at_us", BigInteger, nullable=False),
    Column("source", Text, nullable=False),  # metrics | counter_fell | after_outage | first_seen
    # when the first OK canary of this start got its first token
    Column("first_answer_at_us", BigInteger),
)

fingerprint = Table(
    "fingerprint",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("digest", Text, nullable=False),
    # Its digests while fewer of its fields were known: pin files may contain them.
    Column("earlier", JSON, nullable=False, default=list),
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
    Column("detail", Text),  # a sentence about a failure; never a secret or the answer
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
    # for the history and summary of one target
    Index("ix_sample_target_id_started_at_us", "target_id", "started_at_us"),
    # for the history of all targets
    Index("ix_sample_started_at_us", "started_at_us"),
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
    Column("count", Integer, nullable=False),  # readings in this window
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
    Column("at_us", BigInteger, nullable=False),  # when it was read: the driver reports no time
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
    # target, or target/uncapped: one canary at a time in each lane
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
)
