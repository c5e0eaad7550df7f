"""Where files are: the configuration, the default database, and the folders shipped with the
package.
"""

from __future__ import annotations

import os
from pathlib import Path

CONFIG_PLACES = (Path("config.yaml"), Path("/etc/vllm-canary/config.yaml"))


def find_config(explicit: str | None) -> Path | None:
    """The configuration file: as given, from VLLM_CANARY_CONFIG, in this folder, or under /etc;
    None where there is none.
    """
    named = explicit or os.environ.get("VLLM_CANARY_CONFIG")
    if named:
        return Path(named)
    return next((place for place in CONFIG_PLACES if place.exists()), None)


def default_database() -> Path:
    """`$XDG_STATE_HOME/vllm-canary/history.db`, or under ~/.local/state (XDG base directory
    specification).
    """
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "vllm-canary" / "history.db"


def shipped_probes_dir() -> Path:
    """The folder of the probes that are shipped with the package."""
    return data_dir("probes")


def data_dir(name: str) -> Path:
    """A top-level folder of the repository: inside the package when installed (pyproject.toml:
    force-include), next to it in a checkout.
    """
    package = Path(__file__).resolve().parent.parent
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name
