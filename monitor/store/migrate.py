"""Runs the migrations that are shipped in the package."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

from monitor.config.places import data_dir


def alembic_config() -> Config:
    """Alembic's settings, in code: an installed program has no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(data_dir("migrations")).replace("%", "%%"))
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Runs the missing migrations in one transaction, so that a failure leaves no partial
    schema.
    """
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
