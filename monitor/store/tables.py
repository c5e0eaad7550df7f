"""The tables of the history. Times are integer UTC microseconds (`_us`), other units stand in the names as everywhere; NULL is unknown.

The schema is made by the migrations (migrations/versions); a test holds the two together. The public face is the view `samples`.
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
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

target = Table(
    "target",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("url", Text, nullable=False),
    Column("first_seen_us", BigInteger, nullable=False),
    Column("probes", JSON),  # what the daemon runs now: {name: seconds between runs}, so that a reader knows what is overdue
    Column("fingerprint_id", Integer),  # the current one; no foreign key, since that table points back here
    Column("process_start_id", Integer),  # likewise
)

probe = Table("probe", metadata, Column("id", Integer, primary_key=True), Column("name", Text, nullable=False, unique=True))

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
    Column("started_at_us", BigInteger),  # unknown where the server does not tell (several API servers)
    Column("seen_at_us", BigInteger, nullable=False),
    Column("source", Text, nullable=False),  # metrics | counter_fell | after_outage | first_seen
    Column("first_answer_at_us", BigInteger),  # when our first good canary of this start got its first token
)

fingerprint = Table(
    "fingerprint",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("digest", Text, nullable=False),
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
    Index("ix_sample_target_id_started_at_us", "target_id", "started_at_us"),  # history and summary of one target
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

incident = Table(
    "incident",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("cause", Text),
    Column("summary", Text, nullable=False),
    Column("changes", JSON, nullable=False),
    Column("evidence", JSON, nullable=False),
    Column("opened_at_us", BigInteger, nullable=False),
    Column("acknowledged_at_us", BigInteger),
    Column("closed_at_us", BigInteger),
    Column("close_reason", Text),
)
#: One open incident a key, held by the database itself and not only by the code that opens them.
Index(
    "uq_incident_open_key",
    incident.c.kind,
    incident.c.target,
    incident.c.subject,
    unique=True,
    sqlite_where=text("closed_at_us IS NULL"),
    postgresql_where=text("closed_at_us IS NULL"),
)

incident_event = Table(
    "incident_event",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident_id", Integer, ForeignKey("incident.id"), nullable=False, index=True),
    Column("at_us", BigInteger, nullable=False),
    Column("event", Text, nullable=False),  # opened | updated | resolved | acknowledged | note
    Column("text", Text),
)

finding = Table(
    "finding",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident_id", Integer, ForeignKey("incident.id"), nullable=False, index=True),
    Column("at_us", BigInteger, nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Column("severity", Text, nullable=False),
    Column("cause", Text),
    Column("summary", Text, nullable=False),
    Column("evidence", JSON, nullable=False),
)

delivery = Table(
    "delivery",
    metadata,
    Column("id", Text, primary_key=True),  # a stable id: the receiver can tell a repeated delivery by it
    Column("incident_id", Integer, ForeignKey("incident.id"), index=True),  # NULL: a test alert
    Column("channel", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("state", Text, nullable=False),  # pending | sent | failed
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at_us", BigInteger),
    Column("sent_at_us", BigInteger),
    Column("last_error", Text),
    Index("ix_delivery_state_next_attempt_at_us", "state", "next_attempt_at_us"),
)

pin = Table(
    "pin",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("target_id", Integer, ForeignKey("target.id"), nullable=False),
    Column("revision_id", Integer, ForeignKey("probe_revision.id"), nullable=False),
    Column("fingerprint_id", Integer, ForeignKey("fingerprint.id")),  # what was served when it was taken
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("retired_at_us", BigInteger),  # a newer pin took its place, or somebody ended it; it is kept
    Column("prompt_tokens", Integer),
    Column("noise_nat", Float),
    Column("ttft_ms", JSON, nullable=False),
    Column("decode_tok_s", JSON, nullable=False),
    Index("ix_pin_target_id_retired_at_us", "target_id", "retired_at_us"),
)

pin_output = Table(
    "pin_output",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pin_id", Integer, ForeignKey("pin.id"), nullable=False, index=True),
    Column("output_id", Integer, ForeignKey("output.id"), nullable=False),
    Column("tokens", JSON, nullable=False),
    Column("token_ids", JSON, nullable=False),
    Column("logprobs", JSON, nullable=False),
    Column("tops", JSON, nullable=False),
    Column("finish_reason", Text),
    Column("count", Integer, nullable=False),
)

review = Table(
    "review",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("sample_id", Integer, ForeignKey("sample.id"), nullable=False, index=True),
    Column("at_us", BigInteger, nullable=False),
    Column("author", Text, nullable=False),
    Column("verdict", Text, nullable=False),  # right | wrong | corrected
    Column("minutes", Float),
    Column("note", Text),
)

lease = Table(
    "lease",
    metadata,
    Column("name", Text, primary_key=True),  # target, or target/uncapped: one canary at a time in each lane
    Column("holder", Text, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
)
