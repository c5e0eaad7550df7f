"""The schema is made by the migrations, and the tables of the program are the same schema."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from histories import History
from sqlalchemy import inspect

from monitor.store import database
from monitor.store.database import HEAD, KNOWN_REVISIONS, open_writer
from monitor.store.migrate import alembic_config, upgrade
from monitor.store.tables import metadata

DOCUMENTED = {
    *("target", "probe", "probe_revision", "process_start", "fingerprint", "sample", "output"),
    *("server_reading", "gpu_reading", "skipped_run", "finding", "incident", "incident_event"),
    *("delivery", "lease", "detector_state"),
}


def test_migrations_and_tables_agree(history: History) -> None:
    with history.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []


def test_the_documented_tables_are_there(history: History) -> None:
    assert set(inspect(history.engine).get_table_names()) >= DOCUMENTED


def test_the_newest_migration_is_the_one_the_program_names() -> None:
    folder = ScriptDirectory.from_config(alembic_config())
    assert folder.get_heads() == [HEAD]
    assert [script.revision for script in reversed(list(folder.walk_revisions()))] == list(
        KNOWN_REVISIONS
    )


def test_a_history_that_is_up_to_date_is_opened_without_loading_alembic(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "monitor.store.migrate", None)  # an import of it would fail
    open_writer(history.database).dispose()


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = database._sqlite_writer(tmp_path / "history.db")
    with writer.begin() as connection:
        # the last step of the first migration will fail
        connection.exec_driver_sql("CREATE VIEW samples AS SELECT 1")
    with pytest.raises(Exception, match="samples"):
        upgrade(writer)
    assert inspect(writer).get_table_names() == []
    writer.dispose()
