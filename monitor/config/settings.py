"""`config.yaml`. The description of a field is its documentation: docs/configuration.md and the
file that `init` writes are generated from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from monitor.config.block import ConfigBlock
from monitor.config.detector import DetectorSettings
from monitor.config.places import default_database, shipped_probes_dir
from monitor.config.problems import ConfigError, FileProblem
from monitor.config.target import TargetSettings
from monitor.config.values import (
    Duration,
    DurationOrNone,
    PlainUrl,
    host_port,
    is_http_address,
    is_loopback,
    read_secret,
)
from monitor.config.yamlfile import YamlFile, sentence

DEFAULT_LISTEN = "127.0.0.1:9462"


class ClassSettings(ConfigBlock):
    """A traffic class: requests of one kind, judged together and separately from other classes."""

    max_wait: DurationOrNone = Field(
        default=2.0,
        description="The maximum time that a canary of this class waits for its first token before "
        "it is cancelled and recorded as `queue_cap`; `none` waits without a limit.",
        examples=["2s"],
    )
    ttft: Duration | None = Field(
        default=None,
        description="The service level: at most one canary of this class in twenty may wait longer "
        "for its first token. Without it, only canaries without a first token within `max_wait` "
        "count as too slow.",
        examples=["1s"],
    )
    token_budget_per_hour: int | None = Field(
        default=None,
        gt=0,
        description="The maximum number of tokens per hour and target for canaries of this class.",
        examples=[10000],
    )


class ChannelSettings(ConfigBlock):
    """A receiver of alerts."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="A short name for logs.",
        examples=["ops"],
    )
    kind: Literal["webhook"] = Field(
        description="The kind of delivery. `webhook` posts one JSON object.", examples=["webhook"]
    )
    url: PlainUrl | None = Field(
        default=None, description="The address to post to.", examples=["https://example.org/hook"]
    )
    url_env: str | None = Field(
        default=None,
        description="The environment variable with the address, instead of `url`, for an address "
        "that contains a secret.",
        examples=["CANARY_WEBHOOK_URL"],
    )
    timeout: Duration = Field(
        default=10.0, description="The time limit of one attempt.", examples=["10s"]
    )

    @model_validator(mode="after")
    def _one_url(self) -> ChannelSettings:
        if (self.url is None) == (self.url_env is None):
            raise ValueError(
                "give either url or url_env (the name of an environment variable), not both"
            )
        return self

    def address(self) -> str:
        """Reads the address. Raises ValueError with a sentence when the environment variable is not
        set.
        """
        if self.url is not None:
            return self.url
        secret = read_secret(self.url_env, None)
        if secret is None:  # the validator above requires one of the two
            raise ValueError("the channel has no address")
        if not is_http_address(secret.reveal()):
            raise ValueError(
                f"the environment variable {self.url_env} does not contain an address that starts "
                "with http:// or https://"
            )
        return secret.reveal()


def checked_listen(value: object) -> str:
    """HOST:PORT on loopback. Raises ValueError with what to do."""
    if not isinstance(value, str):
        raise ValueError(f"is {value!r}; it must be HOST:PORT, for example {DEFAULT_LISTEN}")
    host, _ = host_port(value)
    if not is_loopback(host):
        raise ValueError(
            f"is {value!r}; it must be a loopback address, for example {DEFAULT_LISTEN} (for "
            "remote access put a proxy with a login in front of it)"
        )
    return value


def _default_classes() -> dict[str, ClassSettings]:
    return {
        name: ClassSettings.model_validate({"max_wait": wait})
        for name, wait in (("chat", "2s"), ("batch", "10s"))
    }


class Settings(ConfigBlock):
    """The whole `config.yaml`. Paths are relative to the file."""

    database: str = Field(
        default="history.db",
        description="The history: a file (SQLite) or a database URL.",
        examples=["history.db"],
    )
    listen: Annotated[str, BeforeValidator(checked_listen)] = Field(
        default=DEFAULT_LISTEN,
        description=(
            "The address that serves health checks and Prometheus metrics; loopback only. Port "
            "0 selects a free port."
        ),
        examples=[DEFAULT_LISTEN],
    )
    probes: str = Field(
        default="probes",
        description="The folder with the canary prompts, one YAML file each.",
        examples=["probes"],
    )
    classes: dict[str, ClassSettings] = Field(
        default_factory=_default_classes,
        description=(
            "Traffic classes with their limits. `chat` (2s) and `batch` (10s) are built in."
        ),
    )
    targets: list[TargetSettings] = Field(description="The servers to watch.", min_length=1)
    channels: list[ChannelSettings] = Field(
        default_factory=list, description="The receivers of alerts."
    )
    detector: DetectorSettings = Field(
        default_factory=DetectorSettings,
        description="The settings of drift detection; the defaults need no tuning.",
    )

    @property
    def class_names(self) -> frozenset[str]:
        """All classes that a probe may use."""
        return frozenset({*self.classes, *_default_classes()})

    def class_settings(self, name: str) -> ClassSettings | None:
        """The settings of a class, the two built-in ones included; None for an unknown one."""
        return self.classes.get(name) or _default_classes().get(name)

    def target(self, name: str) -> TargetSettings | None:
        """The target of that name, or None."""
        return next((target for target in self.targets if target.name == name), None)


def load_settings(path: Path) -> Settings:
    """Reads `config.yaml`, with absolute paths. Raises ConfigError with every problem of the
    file.
    """
    file = YamlFile(path, str(path))

    def duplicate_names(settings: Settings) -> list[FileProblem]:
        return [
            file.problem(
                (block, index, "name"),
                f"the name {name!r} is used by another entry of {block}; choose another one",
            )
            for block, names in (
                ("targets", [t.name for t in settings.targets]),
                ("channels", [c.name for c in settings.channels]),
            )
            for index, name in enumerate(names)
            if name in names[:index]
        ]

    return _absolute(file.validated(Settings, further=duplicate_names), path.resolve().parent)


def _absolute(settings: Settings, base: Path) -> Settings:
    def target(t: TargetSettings) -> TargetSettings:
        paths = {
            k: str(base / v)
            for k in ("api_key_file", "ca_file", "model_path")
            if (v := getattr(t, k)) is not None
        }
        return t.model_copy(update=paths)

    database = settings.database if "://" in settings.database else str(base / settings.database)
    return settings.model_copy(
        update={
            "database": database,
            "probes": str(base / settings.probes),
            "targets": [target(t) for t in settings.targets],
        }
    )


def settings_for_url(url: str, database: str | None) -> Settings:
    """Settings for `--url` alone: one target named by host and port, the shipped probes, no
    configuration file read.
    """
    target = {"name": "target", "url": url}
    raw = {
        "database": database or str(default_database()),
        "probes": str(shipped_probes_dir()),
        "targets": [target],
    }
    try:
        settings = Settings.model_validate(raw)
        target["name"] = urlsplit(settings.targets[0].url).netloc
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(
            [FileProblem("--url", None, sentence(e, Settings)) for e in error.errors()]
        ) from None
