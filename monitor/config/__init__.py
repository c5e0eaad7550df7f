"""Settings and probes from YAML files: strict, and with every error of a file at once, each with
its line and what to do.
"""

from monitor.config.places import shipped_probes_dir
from monitor.config.probes import load_probes
from monitor.config.problems import ConfigError, FileProblem
from monitor.config.settings import (
    ChannelSettings,
    ClassSettings,
    Settings,
    load_settings,
    settings_for_url,
)
from monitor.config.target import TargetSettings

__all__ = [
    "ChannelSettings",
    "ClassSettings",
    "ConfigError",
    "FileProblem",
    "Settings",
    "TargetSettings",
    "load_probes",
    "load_settings",
    "settings_for_url",
    "shipped_probes_dir",
]
