"""The configuration that a command works with, and what its options choose from it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from monitor.cli.common import CommandError
from monitor.config.places import default_database, find_config
from monitor.config.probes import load_probes
from monitor.config.settings import Settings, load_settings, settings_for_url
from monitor.config.target import TargetSettings
from monitor.model import Probe


def settings_of(args: Namespace) -> Settings:
    """The settings of a command: for --url alone, or from the configuration file. Raises
    ConfigError or CommandError.
    """
    if getattr(args, "url", None) is not None:
        return settings_for_url(args.url, args.db)
    settings = found_settings(args)
    if settings is None:
        raise CommandError(
            "there is no config.yaml here and none in /etc/vllm-canary; `vllm-canary init "
            "--url URL DIR` writes one, or give --url"
        )
    return settings if args.db is None else settings.model_copy(update={"database": args.db})


def found_settings(args: Namespace) -> Settings | None:
    """The configuration if there is one, for commands that work without. Raises ConfigError."""
    path = find_config(args.config)
    return None if path is None else load_settings(path)


def database_at(config: str | None) -> str:
    """The configured database, or without a configuration the one of `--url` commands. Raises
    ConfigError.
    """
    path = find_config(config)
    return str(default_database()) if path is None else load_settings(path).database


def chosen_targets(settings: Settings, name: str | None) -> list[TargetSettings]:
    """The targets chosen by --target. Raises CommandError for an unknown name."""
    return list(settings.targets) if name is None else [known_target(settings, name)]


def known_target(settings: Settings, name: str) -> TargetSettings:
    """The configured target of this name. Raises CommandError."""
    target = settings.target(name)
    if target is None:
        names = ", ".join(t.name for t in settings.targets)
        raise CommandError(f"there is no target {name!r}; configured targets: {names}")
    return target


def chosen_probes(settings: Settings, names: Sequence[str] = ()) -> list[Probe]:
    """The probes of these names, or all of them. Raises ConfigError or CommandError."""
    probes = load_probes(Path(settings.probes), settings)
    known = {probe.name: probe for probe in probes}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandError(f"there is no probe {unknown[0]!r}; known probes: {', '.join(known)}")
    return [known[name] for name in names] if names else list(probes)
