"""Settings and probes from YAML files: strict, every error of a file at once, each with its line
and its mend.
"""

from monitor.config.probes import load_probes, shipped_probes_dir
from monitor.config.problems import ConfigError, Problem
from monitor.config.settings import (
    ChannelSettings,
    ClassSettings,
    Settings,
    TargetSettings,
    load_settings,
    settings_for_url,
)

__all__ = [
    "ChannelSettings",
    "ClassSettings",
    "ConfigError",
    "Problem",
    "Settings",
    "TargetSettings",
    "load_probes",
    "load_settings",
    "settings_for_url",
    "shipped_probes_dir",
]
