"""The tables of conclusions: incidents and their messages, pins, reviews, and the state of drift
detection.

Units and names are those of tables.py, which exports these tables too.
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
    text,
)

from monitor.store.schema import metadata

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
#: One open incident per key, enforced by the database and not only by the code that opens them.
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
    # A stable id, by which the receiver recognises a repeated delivery.
    Column("id", Text, primary_key=True),
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
    # the identity of the server at pinning
    Column("fingerprint_id", Integer, ForeignKey("fingerprint.id")),
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    # Replaced by a newer pin, or retired by a person; the row is kept.
    Column("retired_at_us", BigInteger),
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

detector_state = Table(
    "detector_state",
    metadata,
    Column("target_id", Integer, ForeignKey("target.id"), primary_key=True, autoincrement=False),
    # When it was written; a writer that finds another time here loads the stored state.
    Column("at_us", BigInteger, nullable=False),
    Column("version", Text, nullable=False),  # of the state's format
    # JSON, as text: its figures must be read back to the last digit.
    Column("state", Text, nullable=False),
    # which parts are armed and which still learn, for commands that only read
    Column("armed", JSON, nullable=False),
    Column("note", Text),  # why the baselines were rebuilt
    # The last rows that are in it, so that a restart continues exactly there.
    Column("sample_id", Integer, nullable=False),
    Column("server_reading_id", Integer, nullable=False),
    Column("gpu_reading_id", Integer, nullable=False),
    Column("pin_id", Integer, nullable=False),
)
