"""Bringing the schema up to date with the migrations that travel in the package."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

from monitor.config.probes import data_dir


def alembic_config() -> Config:
    """Alembic's settings, made in code: an installed program has no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(data_dir("migrations")).replace("%", "%%"))
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Run the missing migrations in one transaction, so that nothing is left half done."""
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
