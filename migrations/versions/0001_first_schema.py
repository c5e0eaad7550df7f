"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Times in views are ISO 8601 in UTC with microseconds; the expression depends on the database.
ISO = {
    "sqlite": (
        "strftime('%Y-%m-%dT%H:%M:%S', {us} / 1000000, 'unixepoch') || printf('.%06dZ', "
        "{us} % 1000000)"
    ),
    "postgresql": (
        "to_char(to_timestamp({us} / 1000000.0) AT TIME ZONE 'UTC', "
        '\'YYYY-MM-DD"T"HH24:MI:SS.US"Z"\')'
    ),
}

#: The documented interface of the history: exactly the fields of a sample (docs/units.md), for
#: people's own SQL.
SAMPLES_VIEW = """
CREATE VIEW samples AS SELECT
    s.id AS id,
    t.name AS target,
    p.name AS probe,
    r."class" AS "class",
    {started_at} AS started_at,
    s.phase AS phase,
    s.outcome AS outcome,
    s.verdict AS verdict,
    s.stale AS stale,
    f.digest AS fingerprint,
    s.pin AS pin,
    s.priority AS priority,
    {process_start} AS process_start,
    s.idle_before_s AS idle_before_s,
    s.connect_ms AS connect_ms,
    s.ttft_ms AS ttft_ms,
    s.ttft_visible_ms AS ttft_visible_ms,
    s.e2e_ms AS e2e_ms,
    s.decode_tok_s AS decode_tok_s,
    s.itl_p50_ms AS itl_p50_ms,
    s.itl_p95_ms AS itl_p95_ms,
    s.itl_max_ms AS itl_max_ms,
    s.observer_lag_ms AS observer_lag_ms,
    s.prompt_tokens AS prompt_tokens,
    s.completion_tokens AS completion_tokens,
    s.cached_tokens AS cached_tokens,
    s.finish_reason AS finish_reason,
    o.text AS output,
    s.spec_acceptance AS spec_acceptance,
    s.queue_ms AS queue_ms,
    s.prefill_ms AS prefill_ms,
    s.decode_ms AS decode_ms,
    s.server_timing AS server_timing,
    s.running AS running,
    s.waiting AS waiting,
    s.kv_usage AS kv_usage,
    s.preemptions AS preemptions,
    s.other_prompt_tokens AS other_prompt_tokens,
    s.other_generation_tokens AS other_generation_tokens,
    s.gpu_uuid AS gpu_uuid,
    s.gpu_temp_c AS gpu_temp_c,
    s.gpu_mem_temp_c AS gpu_mem_temp_c,
    s.gpu_margin_c AS gpu_margin_c,
    s.sm_clock_mhz AS sm_clock_mhz,
    s.mem_clock_mhz AS mem_clock_mhz,
    s.gpu_util AS gpu_util,
    s.power_w AS power_w,
    s.power_limit_w AS power_limit_w,
    s.energy_j AS energy_j,
    s.vram_used_mib AS vram_used_mib,
    s.throttle_thermal_ms AS throttle_thermal_ms,
    s.throttle_power_ms AS throttle_power_ms,
    s.throttle_brake_ms AS throttle_brake_ms,
    s.gpu_age_ms AS gpu_age_ms,
    s.first_divergence AS first_divergence,
    s.logprob_shift AS logprob_shift
FROM sample s
JOIN target t ON t.id = s.target_id
JOIN probe_revision r ON r.id = s.revision_id
JOIN probe p ON p.id = r.probe_id
LEFT JOIN process_start b ON b.id = s.process_start_id
LEFT JOIN fingerprint f ON f.id = s.fingerprint_id
LEFT JOIN output o ON o.id = s.output_id
"""

#: Readings of the metrics page with the changes since the previous one, which are NULL for a
#: counter that fell and for the first reading of a start.
READINGS_VIEW = """
CREATE VIEW server_readings AS
WITH step AS (
    SELECT r.*, t.name AS target,
        (r.at_us - lag(r.at_us) OVER w) / 1000000.0 AS seconds,
        {deltas}
    FROM server_reading r JOIN target t ON t.id = r.target_id
    WHERE r.state = 'ok'
    WINDOW w AS (PARTITION BY r.target_id, r.process_start_id ORDER BY r.at_us)
)
SELECT target, {at} AS at, seconds, running, waiting, kv_usage,
    CASE WHEN d_engine_steps >= 0 AND seconds > 0
        THEN d_engine_steps / seconds END AS engine_steps_s,
    CASE WHEN d_prompt_tokens >= 0 AND seconds > 0
        THEN d_prompt_tokens / seconds END AS prompt_tok_s,
    CASE WHEN d_generation_tokens >= 0 AND seconds > 0
        THEN d_generation_tokens / seconds END AS generation_tok_s,
    CASE WHEN d_preemptions >= 0 THEN d_preemptions END AS preemptions,
    CASE WHEN d_requests_finished >= 0 THEN d_requests_finished END AS requests_finished,
    CASE WHEN d_requests_aborted >= 0 THEN d_requests_aborted END AS requests_aborted,
    CASE WHEN d_queue_count > 0 AND d_queue_s_sum >= 0
        THEN 1000 * d_queue_s_sum / d_queue_count END AS queue_mean_ms,
    CASE WHEN d_prefill_count > 0 AND d_prefill_s_sum >= 0
        THEN 1000 * d_prefill_s_sum / d_prefill_count END AS prefill_mean_ms,
    CASE WHEN d_draft_tokens > 0 AND d_accepted_tokens >= 0
        THEN d_accepted_tokens / d_draft_tokens END AS spec_acceptance
FROM step
"""
COUNTERS = (
    "engine_steps",
    "prompt_tokens",
    "generation_tokens",
    "preemptions",
    "requests_finished",
    "requests_aborted",
    "queue_s_sum",
    "queue_count",
    "prefill_s_sum",
    "prefill_count",
    "draft_tokens",
    "accepted_tokens",
)

#: Every start of a server's process, with the time to our first answer.
STARTS_VIEW = """
CREATE VIEW process_starts AS
SELECT t.name AS target, {started_at} AS started_at, {seen_at} AS seen_at, p.source AS source,
    {first_answer_at} AS first_answer_at,
    (p.first_answer_at_us - p.started_at_us) / 1000000.0 AS startup_s
FROM process_start p JOIN target t ON t.id = p.target_id
"""


def upgrade() -> None:
    op.create_table(
        "gpu_reading",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("temp_c_min", sa.Float()),
        sa.Column("temp_c_median", sa.Float()),
        sa.Column("temp_c_max", sa.Float()),
        sa.Column("sm_clock_mhz_min", sa.Float()),
        sa.Column("sm_clock_mhz_median", sa.Float()),
        sa.Column("sm_clock_mhz_max", sa.Float()),
        sa.Column("power_w_min", sa.Float()),
        sa.Column("power_w_median", sa.Float()),
        sa.Column("power_w_max", sa.Float()),
        sa.Column("util_min", sa.Float()),
        sa.Column("util_median", sa.Float()),
        sa.Column("util_max", sa.Float()),
        sa.Column("mem_temp_c", sa.Float()),
        sa.Column("margin_c", sa.Float()),
        sa.Column("mem_clock_mhz", sa.Float()),
        sa.Column("vram_used_mib", sa.Float()),
        sa.Column("power_limit_w", sa.Float()),
        sa.Column("event_reasons", sa.Integer()),
        sa.Column("energy_j", sa.Float()),
        sa.Column("throttle_thermal_ns", sa.BigInteger()),
        sa.Column("throttle_power_ns", sa.BigInteger()),
        sa.Column("throttle_brake_ns", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_reading")),
    )
    with op.batch_alter_table("gpu_reading", schema=None) as batch_op:
        batch_op.create_index("ix_gpu_reading_gpu_uuid_at_us", ["gpu_uuid", "at_us"], unique=False)

    op.create_table(
        "gpu_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("xid", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_event")),
    )
    with op.batch_alter_table("gpu_event", schema=None) as batch_op:
        batch_op.create_index("ix_gpu_event_gpu_uuid_at_us", ["gpu_uuid", "at_us"], unique=False)

    op.create_table(
        "incident",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("opened_at_us", sa.BigInteger(), nullable=False),
        sa.Column("acknowledged_at_us", sa.BigInteger()),
        sa.Column("closed_at_us", sa.BigInteger()),
        sa.Column("close_reason", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident")),
    )
    with op.batch_alter_table("incident", schema=None) as batch_op:
        batch_op.create_index(
            "uq_incident_open_key",
            ["kind", "target", "subject"],
            unique=True,
            sqlite_where=sa.text("closed_at_us IS NULL"),
            postgresql_where=sa.text("closed_at_us IS NULL"),
        )

    op.create_table(
        "lease",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )
    op.create_table(
        "output",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_output")),
        sa.UniqueConstraint("sha256", name=op.f("uq_output_sha256")),
    )
    op.create_table(
        "probe",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probe")),
        sa.UniqueConstraint("name", name=op.f("uq_probe_name")),
    )
    op.create_table(
        "target",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("first_seen_us", sa.BigInteger(), nullable=False),
        sa.Column("probes", sa.JSON()),
        sa.Column("cards", sa.JSON()),
        sa.Column("fingerprint_id", sa.Integer()),
        sa.Column("process_start_id", sa.Integer()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_target")),
        sa.UniqueConstraint("name", name=op.f("uq_target_name")),
    )
    op.create_table(
        "delivery",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("incident_id", sa.Integer()),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at_us", sa.BigInteger()),
        sa.Column("sent_at_us", sa.BigInteger()),
        sa.Column("last_error", sa.Text()),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incident.id"], name=op.f("fk_delivery_incident_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_delivery")),
    )
    with op.batch_alter_table("delivery", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_delivery_incident_id"), ["incident_id"], unique=False)
        batch_op.create_index(
            "ix_delivery_state_next_attempt_at_us", ["state", "next_attempt_at_us"], unique=False
        )

    op.create_table(
        "finding",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incident.id"], name=op.f("fk_finding_incident_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_finding")),
    )
    with op.batch_alter_table("finding", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_finding_incident_id"), ["incident_id"], unique=False)

    op.create_table(
        "fingerprint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("earlier", sa.JSON(), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("first_seen_us", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_fingerprint_target_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fingerprint")),
        sa.UniqueConstraint("target_id", "digest", name=op.f("uq_fingerprint_target_id_digest")),
    )
    op.create_table(
        "incident_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incident_id", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("text", sa.Text()),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incident.id"], name=op.f("fk_incident_event_incident_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident_event")),
    )
    with op.batch_alter_table("incident_event", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_incident_event_incident_id"), ["incident_id"], unique=False
        )

    op.create_table(
        "probe_revision",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("probe_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("class", sa.Text(), nullable=False),
        sa.Column("parameter_set", sa.Text(), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("first_seen_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["probe_id"], ["probe.id"], name=op.f("fk_probe_revision_probe_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probe_revision")),
        sa.UniqueConstraint("probe_id", "digest", name=op.f("uq_probe_revision_probe_id_digest")),
    )
    op.create_table(
        "process_start",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger()),
        sa.Column("seen_at_us", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("first_answer_at_us", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_process_start_target_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_process_start")),
    )
    op.create_table(
        "skipped_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("probe", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_skipped_run_target_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skipped_run")),
    )
    with op.batch_alter_table("skipped_run", schema=None) as batch_op:
        batch_op.create_index(
            "ix_skipped_run_target_id_at_us", ["target_id", "at_us"], unique=False
        )

    op.create_table(
        "sample",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("revision_id", sa.Integer(), nullable=False),
        sa.Column("process_start_id", sa.Integer()),
        sa.Column("fingerprint_id", sa.Integer()),
        sa.Column("output_id", sa.Integer()),
        sa.Column("started_at_us", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("retry_of", sa.Integer()),
        sa.Column("detail", sa.Text()),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("stale", sa.Integer()),
        sa.Column("pin", sa.Integer()),
        sa.Column("priority", sa.Integer()),
        sa.Column("idle_before_s", sa.Float()),
        sa.Column("connect_ms", sa.Float()),
        sa.Column("ttft_ms", sa.Float()),
        sa.Column("ttft_visible_ms", sa.Float()),
        sa.Column("e2e_ms", sa.Float()),
        sa.Column("decode_tok_s", sa.Float()),
        sa.Column("itl_p50_ms", sa.Float()),
        sa.Column("itl_p95_ms", sa.Float()),
        sa.Column("itl_max_ms", sa.Float()),
        sa.Column("observer_lag_ms", sa.Float()),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("completion_tokens", sa.Integer()),
        sa.Column("cached_tokens", sa.Integer()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("spec_acceptance", sa.Float()),
        sa.Column("queue_ms", sa.Float()),
        sa.Column("prefill_ms", sa.Float()),
        sa.Column("decode_ms", sa.Float()),
        sa.Column("server_timing", sa.Text()),
        sa.Column("running", sa.Float()),
        sa.Column("waiting", sa.Float()),
        sa.Column("kv_usage", sa.Float()),
        sa.Column("preemptions", sa.Float()),
        sa.Column("other_prompt_tokens", sa.Float()),
        sa.Column("other_generation_tokens", sa.Float()),
        sa.Column("gpu_uuid", sa.Text()),
        sa.Column("gpu_temp_c", sa.Float()),
        sa.Column("gpu_mem_temp_c", sa.Float()),
        sa.Column("gpu_margin_c", sa.Float()),
        sa.Column("sm_clock_mhz", sa.Float()),
        sa.Column("mem_clock_mhz", sa.Float()),
        sa.Column("gpu_util", sa.Float()),
        sa.Column("power_w", sa.Float()),
        sa.Column("power_limit_w", sa.Float()),
        sa.Column("energy_j", sa.Float()),
        sa.Column("vram_used_mib", sa.Float()),
        sa.Column("throttle_thermal_ms", sa.Float()),
        sa.Column("throttle_power_ms", sa.Float()),
        sa.Column("throttle_brake_ms", sa.Float()),
        sa.Column("gpu_age_ms", sa.Float()),
        sa.Column("first_divergence", sa.Integer()),
        sa.Column("logprob_shift", sa.Float()),
        sa.ForeignKeyConstraint(
            ["fingerprint_id"], ["fingerprint.id"], name=op.f("fk_sample_fingerprint_id")
        ),
        sa.ForeignKeyConstraint(["output_id"], ["output.id"], name=op.f("fk_sample_output_id")),
        sa.ForeignKeyConstraint(
            ["process_start_id"], ["process_start.id"], name=op.f("fk_sample_process_start_id")
        ),
        sa.ForeignKeyConstraint(
            ["revision_id"], ["probe_revision.id"], name=op.f("fk_sample_revision_id")
        ),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_sample_target_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sample")),
    )
    with op.batch_alter_table("sample", schema=None) as batch_op:
        batch_op.create_index("ix_sample_started_at_us", ["started_at_us"], unique=False)
        batch_op.create_index(
            "ix_sample_target_id_started_at_us", ["target_id", "started_at_us"], unique=False
        )

    op.create_table(
        "server_reading",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("process_start_id", sa.Integer()),
        sa.Column("running", sa.Float()),
        sa.Column("waiting", sa.Float()),
        sa.Column("kv_usage", sa.Float()),
        sa.Column("engine_steps", sa.Float()),
        sa.Column("preemptions", sa.Float()),
        sa.Column("prompt_tokens", sa.Float()),
        sa.Column("generation_tokens", sa.Float()),
        sa.Column("requests_finished", sa.Float()),
        sa.Column("requests_aborted", sa.Float()),
        sa.Column("draft_tokens", sa.Float()),
        sa.Column("accepted_tokens", sa.Float()),
        sa.Column("queue_s_sum", sa.Float()),
        sa.Column("queue_count", sa.Float()),
        sa.Column("prefill_s_sum", sa.Float()),
        sa.Column("prefill_count", sa.Float()),
        sa.ForeignKeyConstraint(
            ["process_start_id"],
            ["process_start.id"],
            name=op.f("fk_server_reading_process_start_id"),
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_server_reading_target_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_reading")),
    )
    with op.batch_alter_table("server_reading", schema=None) as batch_op:
        batch_op.create_index(
            "ix_server_reading_target_id_at_us", ["target_id", "at_us"], unique=False
        )
    op.create_table(
        "pin",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("revision_id", sa.Integer(), nullable=False),
        sa.Column("fingerprint_id", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.Column("retired_at_us", sa.BigInteger()),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("noise_nat", sa.Float()),
        sa.Column("ttft_ms", sa.JSON(), nullable=False),
        sa.Column("decode_tok_s", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fingerprint_id"], ["fingerprint.id"], name=op.f("fk_pin_fingerprint_id")
        ),
        sa.ForeignKeyConstraint(
            ["revision_id"], ["probe_revision.id"], name=op.f("fk_pin_revision_id")
        ),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_pin_target_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pin")),
    )
    with op.batch_alter_table("pin", schema=None) as batch_op:
        batch_op.create_index(
            "ix_pin_target_id_retired_at_us", ["target_id", "retired_at_us"], unique=False
        )
    op.create_table(
        "pin_output",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("pin_id", sa.Integer(), nullable=False),
        sa.Column("output_id", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.JSON(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("logprobs", sa.JSON(), nullable=False),
        sa.Column("tops", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["output_id"], ["output.id"], name=op.f("fk_pin_output_output_id")),
        sa.ForeignKeyConstraint(["pin_id"], ["pin.id"], name=op.f("fk_pin_output_pin_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pin_output")),
    )
    with op.batch_alter_table("pin_output", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_pin_output_pin_id"), ["pin_id"], unique=False)
    op.create_table(
        "review",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sample_id", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("minutes", sa.Float()),
        sa.Column("note", sa.Text()),
        sa.ForeignKeyConstraint(["sample_id"], ["sample.id"], name=op.f("fk_review_sample_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review")),
    )
    with op.batch_alter_table("review", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_review_sample_id"), ["sample_id"], unique=False)
    op.create_table(
        "detector_state",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("armed", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("sample_id", sa.Integer(), nullable=False),
        sa.Column("server_reading_id", sa.Integer(), nullable=False),
        sa.Column("gpu_reading_id", sa.Integer(), nullable=False),
        sa.Column("pin_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_detector_state_target_id")
        ),
        sa.PrimaryKeyConstraint("target_id", name=op.f("pk_detector_state")),
    )
    _create_views(ISO[op.get_bind().dialect.name])


def _create_views(iso: str) -> None:
    """Creates the public views; `iso` formats the microseconds of a column as text in this
    database.
    """

    def at(column: str) -> str:
        return f"CASE WHEN {column} IS NULL THEN NULL ELSE {iso.replace('{us}', column)} END"

    _view(
        SAMPLES_VIEW,
        started_at=at("s.started_at_us"),
        process_start=at("coalesce(b.started_at_us, b.seen_at_us)"),
    )
    deltas = ",\n        ".join(f"r.{name} - lag(r.{name}) OVER w AS d_{name}" for name in COUNTERS)
    _view(READINGS_VIEW, deltas=deltas, at=at("at_us"))
    _view(
        STARTS_VIEW,
        started_at=at("p.started_at_us"),
        seen_at=at("p.seen_at_us"),
        first_answer_at=at("p.first_answer_at_us"),
    )


def _view(text: str, **parts: str) -> None:
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    op.execute(sa.text(text.replace(":", "\\:")))  # a colon would start a bound parameter
