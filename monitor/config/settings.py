"""`config.yaml`. Every field's description is its documentation: docs/configuration.md and the file
`init` writes come from here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from monitor.config.block import Block
from monitor.config.detector import DetectorSettings
from monitor.config.problems import ConfigError, Problem
from monitor.config.values import (
    Duration,
    DurationOrNone,
    PlainUrl,
    Secret,
    ServerUrl,
    host_port,
    is_http_address,
    is_loopback,
    read_secret,
)
from monitor.config.yamlfile import YamlFile, sentence

DEFAULT_LISTEN = "127.0.0.1:9462"
DEFAULT_TOKEN_BUDGET = 30_000


class ClassSettings(Block):
    """A traffic class: requests of one kind, judged together and never mixed with others."""

    max_wait: DurationOrNone = Field(
        default=2.0,
        description="The longest a canary of this class waits for its first token before it is "
        "cancelled and recorded as "
        "`queue_cap`; `none` waits as long as it takes.",
        examples=["2s"],
    )
    ttft: Duration | None = Field(
        default=None,
        description="The service level: at most one canary of this class in twenty may wait "
        "longer for its first token. Without one, "
        "only canaries that got none in time count against it.",
        examples=["1s"],
    )
    token_budget_per_hour: int | None = Field(
        default=None,
        gt=0,
        description="The most tokens this class's canaries may cost in an hour on one target.",
        examples=[10000],
    )


class DcgmSource(Block):
    """The GPUs of another machine, through its DCGM exporter."""

    dcgm: PlainUrl = Field(
        description="The exporter's page.", examples=["http://gpu-1:9400/metrics"]
    )


def _gpu_source(value: Any) -> Any:
    uuids = isinstance(value, list) and all(isinstance(v, str) for v in value) and value
    if uuids or isinstance(value, dict) or value in ("auto", "none"):
        return value
    raise ValueError(
        f"is {value!r}; it must be auto, none, a list of GPU UUIDs such as [GPU-…] "
        f"(nvidia-smi -L), or {{dcgm: URL}}"
    )


class TargetSettings(Block):
    """One vLLM server to watch."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.:\[\]-]+$",
        description=(
            "A short name; history and alerts carry it. Letters, digits, dot, dash, underscore."
        ),
        examples=["local"],
    )
    url: ServerUrl = Field(
        description="Where the server's API answers.", examples=["http://127.0.0.1:8000"]
    )
    metrics_url: PlainUrl | None = Field(
        default=None,
        description="Its metrics page, where that is not `/metrics` under `url`.",
        examples=["http://127.0.0.1:8000/metrics"],
    )
    model: str | None = Field(
        default=None,
        description="The served model name; needed only where the server serves several.",
        examples=["llama-3.1-8b"],
    )
    api_key_env: str | None = Field(
        default=None,
        description="The environment variable that holds the API key.",
        examples=["VLLM_API_KEY"],
    )
    api_key_file: str | None = Field(
        default=None, description="Or the file that holds it.", examples=["/run/credentials/key"]
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Extra request headers, for a gateway before the server.",
        examples=[{"X-Tenant": "canary"}],
    )
    ca_file: str | None = Field(
        default=None,
        description="The certificate authority to trust, where the server's is your own.",
        examples=["/etc/ssl/own-ca.pem"],
    )
    model_path: str | None = Field(
        default=None,
        description="The folder with the model's files on this machine, for the model hash; "
        "found by itself where the server's "
        "root is a folder here.",
        examples=["/models/llama-3.1-8b"],
    )
    gpus: Annotated[
        Literal["auto", "none"] | list[str] | DcgmSource, BeforeValidator(_gpu_source)
    ] = Field(
        default="auto",
        description="The GPUs that serve this target: `auto` (all of this machine, if the "
        "server is on it), `none`, a list of UUIDs, "
        "or `{dcgm: URL}` for those that a DCGM exporter shows.",
        examples=["auto"],
    )
    token_budget_per_hour: int = Field(
        default=DEFAULT_TOKEN_BUDGET,
        gt=0,
        description="The most prompt and answer tokens the canaries may cost in an hour; runs "
        "beyond it are skipped and counted. A fifth "
        "is kept for measuring more often when something looks wrong, and for `probe`.",
        examples=[DEFAULT_TOKEN_BUDGET],
    )
    when_idle: Literal["run", "slower", "skip"] = Field(
        default="run",
        description="What to do while nobody else has used the server for ten minutes: `run` "
        "as always, `slower` (every tenth run), or "
        "`skip`, so that a GPU at home may sleep. What is skipped is counted.",
        examples=["run"],
    )

    @model_validator(mode="after")
    def _one_key(self) -> TargetSettings:
        if self.api_key_env and self.api_key_file:
            raise ValueError("give either api_key_env or api_key_file, not both")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, so that this machine's GPUs and processes are its
        own.
        """
        return is_loopback(urlsplit(self.url).hostname)

    @property
    def metrics_page(self) -> str:
        """Where the metrics page is."""
        return self.metrics_url or f"{self.url}/metrics"

    @property
    def watches_gpus(self) -> Literal["auto", "none"] | list[str] | DcgmSource:
        """`gpus`, with `auto` meaning none for a server on another machine: its GPUs are not
        ours.
        """
        return "none" if self.gpus == "auto" and not self.is_local else self.gpus

    def api_key(self) -> Secret | None:
        """The key, read anew. Raises ValueError with a sentence when it is configured but not
        there.
        """
        return read_secret(self.api_key_env, Path(self.api_key_file) if self.api_key_file else None)


class ChannelSettings(Block):
    """Where alerts go."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="A short name for the log of deliveries.",
        examples=["ops"],
    )
    kind: Literal["webhook"] = Field(
        description="How it is delivered. `webhook` posts one JSON object.", examples=["webhook"]
    )
    url: PlainUrl | None = Field(
        default=None, description="Where to post.", examples=["https://example.org/hook"]
    )
    url_env: str | None = Field(
        default=None,
        description=(
            "Or the environment variable that holds the address, where it contains a secret."
        ),
        examples=["CANARY_WEBHOOK_URL"],
    )
    timeout: Duration = Field(
        default=10.0, description="How long one attempt may take.", examples=["10s"]
    )

    @model_validator(mode="after")
    def _one_url(self) -> ChannelSettings:
        if (self.url is None) == (self.url_env is None):
            raise ValueError(
                "give a url, or a url_env that names the environment variable with it, and not both"
            )
        return self

    def address(self) -> str:
        """The address, read anew. Raises ValueError with a sentence when the environment variable
        is not set.
        """
        if self.url is not None:
            return self.url
        secret = read_secret(self.url_env, None)
        if secret is None:  # the validator above makes sure of one of the two
            raise ValueError("the channel has no address")
        if not is_http_address(secret.reveal()):
            raise ValueError(
                f"the environment variable {self.url_env} holds no address that starts with "
                "http:// or https://"
            )
        return secret.reveal()


def checked_listen(value: Any) -> str:
    """HOST:PORT on loopback. Raises ValueError with the mend."""
    if not isinstance(value, str):
        raise ValueError(f"is {value!r}; it must be HOST:PORT, for example {DEFAULT_LISTEN}")
    host, _ = host_port(value)
    if not is_loopback(host):
        raise ValueError(
            f"is {value!r}; only loopback is served, for example {DEFAULT_LISTEN} (put a proxy "
            "with a login before it)"
        )
    return value


def _default_classes() -> dict[str, ClassSettings]:
    return {
        name: ClassSettings.model_validate({"max_wait": wait})
        for name, wait in (("chat", "2s"), ("batch", "10s"))
    }


class Settings(Block):
    """The whole of `config.yaml`. Paths are relative to the file."""

    database: str = Field(
        default="history.db",
        description="Where the history is kept: a file (SQLite) or a database URL.",
        examples=["history.db"],
    )
    listen: Annotated[str, BeforeValidator(checked_listen)] = Field(
        default=DEFAULT_LISTEN,
        description=(
            "Where health, Prometheus metrics and pages are served; loopback only. "
            "Port 0 takes a free one."
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
            "Traffic classes with their limits. `chat` (2s) and `batch` (10s) are "
            "there from the start."
        ),
    )
    targets: list[TargetSettings] = Field(description="The servers to watch.", min_length=1)
    channels: list[ChannelSettings] = Field(default_factory=list, description="Where alerts go.")
    detector: DetectorSettings = Field(
        default_factory=DetectorSettings,
        description="How drift is detected; the defaults need no tuning.",
    )

    @property
    def class_names(self) -> frozenset[str]:
        """Every class that a probe may name."""
        return frozenset({*self.classes, *_default_classes()})

    def class_settings(self, name: str) -> ClassSettings | None:
        """The settings of a class, the two built-in ones included; None for an unknown one."""
        return self.classes.get(name) or _default_classes().get(name)

    def target(self, name: str) -> TargetSettings | None:
        """The target of that name, if there is one."""
        return next((target for target in self.targets if target.name == name), None)


def load_settings(path: Path) -> Settings:
    """Read `config.yaml` with its paths made absolute. Raises ConfigError with every problem of the
    file.
    """
    file = YamlFile(path, str(path))

    def names_taken(settings: Settings) -> list[Problem]:
        return [
            file.problem(
                (block, index, "name"),
                f"the name {name!r} is taken by another entry of {block}; give it one of its own",
            )
            for block, names in (
                ("targets", [t.name for t in settings.targets]),
                ("channels", [c.name for c in settings.channels]),
            )
            for index, name in enumerate(names)
            if name in names[:index]
        ]

    return _absolute(file.validated(Settings, further=names_taken), path.resolve().parent)


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


def settings_for_url(url: str, database: str | None, listen: str = DEFAULT_LISTEN) -> Settings:
    """Settings for `--url` alone: one target named by host and port, the shipped probes, no
    configuration file read.
    """
    from monitor.config.probes import shipped_probes_dir  # noqa: PLC0415 - probes.py imports Settings

    raw: dict[str, Any] = {
        "database": database or str(default_database()),
        "listen": listen,
        "probes": str(shipped_probes_dir()),
        "targets": [{"name": "target", "url": url}],
    }
    try:
        settings = Settings.model_validate(raw)
        raw["targets"][0]["name"] = urlsplit(settings.targets[0].url).netloc
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(
            [Problem("--url", None, sentence(e, Settings)) for e in error.errors()]
        ) from None


def default_database() -> Path:
    """`$XDG_STATE_HOME/vllm-canary/history.db`, or under ~/.local/state (XDG base directory
    specification).
    """
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "vllm-canary" / "history.db"


CONFIG_PLACES = (Path("config.yaml"), Path("/etc/vllm-canary/config.yaml"))


def find_config(explicit: str | None) -> Path | None:
    """The configuration file to use: named, from VLLM_CANARY_CONFIG, here, or under /etc; None
    where there is none.
    """
    named = explicit or os.environ.get("VLLM_CANARY_CONFIG")
    if named:
        return Path(named)
    return next((place for place in CONFIG_PLACES if place.exists()), None)
