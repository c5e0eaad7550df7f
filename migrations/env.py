"""Alembic's entry point: the connection comes from the program (monitor/store/migrate.py); there is
no alembic.ini.
"""

from alembic import context

from monitor.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit(
        "migrations are run by vllm-canary itself: it opens the database and updates it"
    )
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
