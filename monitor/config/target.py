"""The block of one target under `targets:`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from monitor.config.block import ConfigBlock
from monitor.config.values import PlainUrl, Secret, ServerUrl, is_loopback, read_secret

V = TypeVar("V")
DEFAULT_TOKEN_BUDGET = 30_000


class DcgmSource(ConfigBlock):
    """The GPUs of another machine, from its DCGM exporter."""

    dcgm: PlainUrl = Field(
        description="The address of the exporter's page.", examples=["http://gpu-1:9400/metrics"]
    )


def _is_exporter(value: object) -> bool:
    """Whether it is a valid {dcgm: URL}: of a union, each member would report errors of its own."""
    try:
        DcgmSource.model_validate(value)
    except ValidationError:
        return False
    return True


def _gpu_source(value: V) -> V:
    uuids = isinstance(value, list) and all(isinstance(v, str) for v in value) and value
    if uuids or _is_exporter(value) or value in ("auto", "none"):
        return value
    raise ValueError(
        f"is {value!r}; it must be auto, none, a list of GPU UUIDs such as [GPU-…] "
        f"(nvidia-smi -L), or {{dcgm: URL}}"
    )


class TargetSettings(ConfigBlock):
    """One vLLM server to watch."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.:\[\]-]+$",
        description=(
            "A short name for history and alerts. Letters, digits, dot, dash, underscore."
        ),
        examples=["local"],
    )
    url: ServerUrl = Field(
        description="The address of the server's API.", examples=["http://127.0.0.1:8000"]
    )
    metrics_url: PlainUrl | None = Field(
        default=None,
        description="The address of its metrics page, if it is not `/metrics` under `url`.",
        examples=["http://127.0.0.1:8000/metrics"],
    )
    model: str | None = Field(
        default=None,
        description="The served model name; needed only if the server serves several models.",
        examples=["llama-3.1-8b"],
    )
    api_key_env: str | None = Field(
        default=None,
        description="The environment variable with the API key.",
        examples=["VLLM_API_KEY"],
    )
    api_key_file: str | None = Field(
        default=None,
        description="The file with the API key, instead of `api_key_env`.",
        examples=["/run/credentials/key"],
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Extra request headers, for a gateway in front of the server.",
        examples=[{"X-Tenant": "canary"}],
    )
    ca_file: str | None = Field(
        default=None,
        description="The certificate authority to trust, if the server uses a private one.",
        examples=["/etc/ssl/own-ca.pem"],
    )
    model_path: str | None = Field(
        default=None,
        description="The folder with the model's files on this machine, for the model hash; found "
        "automatically if the server's model root is a folder of this machine.",
        examples=["/models/llama-3.1-8b"],
    )
    gpus: Annotated[
        Literal["auto", "none"] | list[str] | DcgmSource, BeforeValidator(_gpu_source)
    ] = Field(
        default="auto",
        description=(
            "The GPUs that serve this target: `auto` (all GPUs of this machine, if the server runs "
            "on it), `none`, a list of UUIDs, or `{dcgm: URL}` for those of a DCGM exporter."
        ),
        examples=["auto"],
    )
    token_budget_per_hour: int = Field(
        default=DEFAULT_TOKEN_BUDGET,
        gt=0,
        description="The maximum number of prompt and answer tokens per hour for canaries; runs "
        "beyond it are skipped and counted. A fifth is reserved for measuring more often after a "
        "suspected problem, and for `probe`.",
        examples=[DEFAULT_TOKEN_BUDGET],
    )
    when_idle: Literal["run", "slower", "skip"] = Field(
        default="run",
        description=(
            "What to do after ten minutes without other requests to the server: `run` as always, "
            "`slower` (every tenth run), or `skip`, so that an idle GPU can save power. Skipped "
            "runs are counted."
        ),
        examples=["run"],
    )

    @model_validator(mode="after")
    def _one_key(self) -> TargetSettings:
        if self.api_key_env and self.api_key_file:
            raise ValueError("give either api_key_env or api_key_file, not both")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine, and so uses its GPUs and processes."""
        return is_loopback(urlsplit(self.url).hostname)

    @property
    def metrics_page(self) -> str:
        """The address of the metrics page."""
        return self.metrics_url or f"{self.url}/metrics"

    @property
    def watches_gpus(self) -> Literal["auto", "none"] | list[str] | DcgmSource:
        """`gpus`, where `auto` means none for a server on another machine."""
        return "none" if self.gpus == "auto" and not self.is_local else self.gpus

    def api_key(self) -> Secret | None:
        """Reads the key. Raises ValueError with a sentence when it is configured but missing."""
        return read_secret(self.api_key_env, Path(self.api_key_file) if self.api_key_file else None)
