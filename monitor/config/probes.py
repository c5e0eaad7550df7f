"""Probe files: `probes/NAME.yaml`, one canary prompt each."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from monitor.config.block import ConfigBlock
from monitor.config.cron import check_cron
from monitor.config.expect import Expect
from monitor.config.problems import ConfigError, FileProblem
from monitor.config.settings import Settings
from monitor.config.values import Duration, DurationOrNone
from monitor.config.yamlfile import YamlFile
from monitor.model import Probe


class Message(ConfigBlock):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"] = Field(
        description="The role of the speaker.", examples=["user"]
    )
    content: str = Field(
        description="The text of the message.", examples=["What is the capital of France?"]
    )


class Sampling(ConfigBlock):
    """The sampling parameters. Temperature 0 and a seed are always sent, so that answers can be
    compared.
    """

    temperature: float = Field(
        default=0.0, ge=0, description="0 always selects the most likely token.", examples=[0]
    )
    seed: int = Field(default=0, description="The seed sent with each request.", examples=[0])
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=20,
        description="The number of alternatives per token; the quality gate needs them.",
        examples=[5],
    )
    ignore_eos: bool | None = Field(
        default=None,
        description="Continue past the end of the answer, for a fixed length.",
        examples=[True],
    )
    min_tokens: int | None = Field(
        default=None,
        ge=1,
        description="The minimum number of tokens in the answer.",
        examples=[128],
    )
    stop: list[str] | None = Field(default=None, description="Texts that end the answer.")
    response_format: dict[str, Any] | None = Field(
        default=None, description="The OpenAI field for JSON answers."
    )
    structured_outputs: dict[str, Any] | None = Field(
        default=None, description="The vLLM field for structured answers."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="Passed to the chat template, for example to switch reasoning off.",
    )


class ProbeFile(ConfigBlock):
    """One canary prompt. The file's name is the probe's name."""

    traffic_class: str = Field(
        alias="class", description="The traffic class that the probe represents.", examples=["chat"]
    )
    every: Duration | None = Field(
        default=None, description="The interval between runs.", examples=["60s"]
    )
    cron: str | None = Field(
        default=None,
        description="The times of runs, instead of `every`: a cron expression (five fields, UTC).",
        examples=["*/5 * * * *"],
    )
    endpoint: Literal["chat", "completions"] = Field(
        default="chat", description="The API to call.", examples=["chat"]
    )
    messages: list[Message] | None = Field(
        default=None, description="The chat to send (endpoint chat).", min_length=1
    )
    prompt: str | None = Field(
        default=None, description="The text to complete (endpoint completions).", min_length=1
    )
    max_tokens: int = Field(
        gt=0, description="The maximum number of tokens in the answer.", examples=[32]
    )
    sampling: Sampling = Field(default_factory=Sampling, description="The sampling parameters.")
    max_wait: DurationOrNone = Field(
        default=None,
        description=(
            "The maximum wait for the first token; by default that of the class; "
            "`none` waits without a limit."
        ),
        examples=["2s"],
    )
    timeout: Duration = Field(
        default=300.0,
        description="The maximum time from the first token to the end of the answer.",
        examples=["5m"],
    )
    expect: list[Expect] = Field(
        default_factory=list,
        description="The conditions on the answer; all must hold.",
    )
    priority: int | None = Field(
        default=None, description="vLLM's request priority; lower is served first.", examples=[0]
    )
    context_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description=(
            "Lengthen the prompt with a fixed text until it fills this share of the "
            "server's context."
        ),
        examples=[0.5],
    )
    context_at_most: int = Field(
        default=4000,
        gt=0,
        description="The maximum number of tokens for `context_share`, whatever the context size.",
        examples=[4000],
    )
    same_salt_twice: bool = Field(
        default=False,
        description=(
            "Send the prompt a second time with the same cache salt, recorded as NAME-again: "
            "with a working prefix cache the second run has cached tokens and a shorter TTFT."
        ),
        examples=[True],
    )
    repeats: int = Field(
        default=3,
        ge=1,
        le=50,
        description="The number of most recent runs that the quality gate considers.",
        examples=[3],
    )
    require: int = Field(
        default=2,
        ge=1,
        description="The number of those runs that must pass; fewer is a finding (per probe).",
        examples=[2],
    )
    reason: str | None = Field(
        default=None, description="The purpose of this probe.", examples=["what a chat user feels"]
    )

    @model_validator(mode="after")
    def _consistent(self) -> ProbeFile:
        if self.require > self.repeats:
            raise ValueError(
                f"give require no more than repeats ({self.repeats}); it is {self.require}"
            )
        if any(e.pinned for e in self.expect) and self.sampling.logprobs is None:
            raise ValueError(
                "give `logprobs: 5` under sampling; a pinned answer is judged by log-probabilities"
            )
        if self.context_share is not None and self.endpoint != "chat":
            raise ValueError("give context_share only with the endpoint chat")
        if (self.every is None) == (self.cron is None):
            raise ValueError("give either every (for example 60s) or cron")
        if self.endpoint == "chat" and (self.messages is None or self.prompt is not None):
            raise ValueError("give messages, and no prompt, for the endpoint chat")
        if self.endpoint == "completions" and (self.prompt is None or self.messages is not None):
            raise ValueError("give a prompt, and no messages, for the endpoint completions")
        if self.sampling.min_tokens is not None and self.sampling.min_tokens > self.max_tokens:
            raise ValueError(
                f"give min_tokens no more than max_tokens ({self.max_tokens}); it is "
                f"{self.sampling.min_tokens}"
            )
        return self

    @field_validator("traffic_class")
    @classmethod
    def _known_class(cls, value: str, info: ValidationInfo) -> str:
        known = (info.context or {}).get("classes")
        if known is not None and value not in known:
            raise ValueError(
                f"is {value!r}; known classes: {', '.join(sorted(known))} (add others under "
                "classes in config.yaml)"
            )
        return value

    @field_validator("cron")
    @classmethod
    def _usable_cron(cls, value: str | None) -> str | None:
        if value is not None:
            check_cron(value)
        return value


def load_probes(directory: Path, settings: Settings) -> tuple[Probe, ...]:
    """Reads all probes of a folder, by name. Raises ConfigError with every problem of every
    file.
    """
    if not directory.is_dir():
        text = "is not a folder; `vllm-canary init` creates one with probes"
        raise ConfigError([FileProblem(str(directory), None, text)])
    probes: list[Probe] = []
    problems: list[FileProblem] = []
    paths = sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])
    for path in paths:
        twin = path.with_suffix(".yaml")
        if path != twin and twin in paths:
            text = f"is the same probe as {twin.name}; keep one of the two files"
            problems.append(FileProblem(str(path), None, text))
        try:
            probes.append(load_probe(path, settings))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    if not probes:
        text = "contains no probe (*.yaml); `vllm-canary init` writes some"
        raise ConfigError([FileProblem(str(directory), None, text)])
    return tuple(probes)


def load_probe(path: Path, settings: Settings) -> Probe:
    """Reads one probe file. Raises ConfigError with every problem of the file."""
    file = YamlFile(path, str(path))
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", path.stem):
        text = "the file's name is the probe's name: use letters, digits, dot, dash, underscore"
        file.problems.append(FileProblem(str(path), None, text))
    parsed = file.validated(ProbeFile, {"classes": settings.class_names})
    known_class = settings.class_settings(parsed.traffic_class)
    # None is a value too: no limit.
    if "max_wait" in parsed.model_fields_set or known_class is None:
        return _probe(path.stem, parsed, parsed.max_wait)
    return _probe(path.stem, parsed, known_class.max_wait)


def _probe(name: str, parsed: ProbeFile, max_wait_s: float | None) -> Probe:
    sampling = parsed.sampling.model_dump(exclude_none=True)
    messages = (
        None
        if parsed.messages is None
        else tuple({"role": m.role, "content": m.content} for m in parsed.messages)
    )
    return Probe(
        name=name,
        traffic_class=parsed.traffic_class,
        endpoint=parsed.endpoint,
        messages=messages,
        prompt=parsed.prompt,
        max_tokens=parsed.max_tokens,
        sampling=sampling,
        every_s=parsed.every,
        cron=parsed.cron,
        max_wait_s=max_wait_s,
        timeout_s=parsed.timeout,
        expect=tuple(e.expectation() for e in parsed.expect if not e.pinned),
        pinned=any(e.pinned for e in parsed.expect),
        repeats=parsed.repeats,
        require=parsed.require,
        priority=parsed.priority,
        reason=parsed.reason,
        context_share=parsed.context_share,
        context_at_most=parsed.context_at_most,
        same_salt_twice=parsed.same_salt_twice,
        revision=revision_of(parsed, max_wait_s),
    )


def revision_of(parsed: ProbeFile, max_wait_s: float | None) -> str:
    """The digest of the request and its conditions; schedule and reason are not part of it."""
    not_sent = {"every", "cron", "reason", "max_wait", "timeout", "repeats", "require"}
    sent = parsed.model_dump(exclude=not_sent, exclude_defaults=True, by_alias=True)
    text = json.dumps({**sent, "max_wait_s": max_wait_s}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def misfit(
    probe: Probe, prompt_tokens: int, max_model_len: int, directory: Path
) -> FileProblem | None:
    """Why a probe does not fit into a server's context, with its place and what to do; None when it
    fits.
    """
    need = prompt_tokens + probe.max_tokens
    if need <= max_model_len:
        return None
    left = max_model_len - prompt_tokens
    mend = f"lower max_tokens to {left}" if left > 0 else "shorten the prompt"
    files = (directory / f"{probe.name}.yaml", directory / f"{probe.name}.yml")
    path = next((file for file in files if file.exists()), directory)
    line = YamlFile(path, str(path)).lines.get(("max_tokens",)) if path.is_file() else None
    text = (
        f"needs {need} tokens ({prompt_tokens} prompt and {probe.max_tokens} answer), but "
        f"the context holds {max_model_len}; {mend}"
    )
    return FileProblem(str(path), line, text)
