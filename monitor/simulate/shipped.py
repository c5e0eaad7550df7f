"""The probes that come with the product, as the export runs them. Only what virtual time needs is
read; the daemon checks these files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from monitor.simulate.answers import VOCABULARY, LanguageModel, Prompt, Wish, chat_ids, prompt_of
from monitor.simulate.identity import Identity

MAX_WAIT_S: Mapping[str, float] = {
    "chat": 2.0,
    "batch": 10.0,
}  # by class, as a configuration without classes has it
DAY_S = 86_400.0
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PADDING = tuple(
    VOCABULARY.encode(
        "The canary sings the same song every minute and somebody listens whether it still "
        "sounds the same."
    )
)


@dataclass(frozen=True, slots=True)
class ShippedProbe:
    """One canary. Durations in seconds; `max_wait_s` None: it waits as long as it takes, in a lane
    of its own.
    """

    name: str
    traffic_class: str
    every_s: float
    messages: tuple[Mapping[str, str], ...]
    wish: Wish
    max_wait_s: float | None
    parameter_set: str
    contains: tuple[str, ...]
    context_tokens: (
        tuple[float, int] | None
    )  # share of the context that the prompt fills, and the most tokens
    twice: bool  # sent again at once with the same salt
    logprobs: int = 0  # it asks for so many at each place; such a probe can be pinned

    def prompt(self, identity: Identity, variant: str) -> Prompt:
        """What the server reads: the messages through its template, lengthened where the probe
        fills the context.
        """
        prompt = prompt_of(chat_ids(self.messages, identity.template, variant))
        if self.context_tokens is None:
            return prompt
        share, most = self.context_tokens
        wanted = min(
            int(share * identity.max_model_len), most, identity.max_model_len - self.wish.max_tokens
        )
        lacking = max(0, wanted - len(prompt.ids))
        padding = (_PADDING * (lacking // len(_PADDING) + 1))[:lacking]
        return Prompt((*prompt.ids[:2], *padding, *prompt.ids[2:]), prompt.question, prompt.given)

    def verdict(self, output: str) -> str:
        """Of the gate; like `init`, it expects nothing that the healthy model does not say."""
        if not self.contains:
            return "unpinned"
        return "pass" if all(part in output for part in self.contains) else "fail"


def shipped_probes(folder: Path | None = None) -> list[ShippedProbe]:
    """All of them, by name."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_data" / "probes"
    folder = folder or (installed if installed.is_dir() else package.parent / "probes")
    found = [_probe(path) for path in sorted(folder.glob("*.yaml"))]
    return [probe for probe in found if probe is not None]


def _probe(path: Path) -> ShippedProbe | None:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if values.get("endpoint", "chat") != "chat":
        return None
    sampling = values.get("sampling", {})
    traffic_class = str(values["class"])
    wait = values.get("max_wait", MAX_WAIT_S.get(traffic_class, 2.0))
    wish = Wish(
        int(values["max_tokens"]),
        int(sampling.get("min_tokens", 0)),
        bool(sampling.get("ignore_eos", False)),
    )
    messages = tuple(values["messages"])
    wanted = [str(e["contains"]) for e in values.get("expect", ()) if "contains" in e]
    return ShippedProbe(
        name=path.stem,
        traffic_class=traffic_class,
        every_s=_seconds(values["every"]) if "every" in values else DAY_S,
        messages=messages,
        wish=wish,
        max_wait_s=None if wait == "none" else _seconds(wait),
        parameter_set=f"chat/{'logprobs' if sampling.get('logprobs') else 'plain'}/free/n1",
        contains=_kept(messages, wish, wanted),
        context_tokens=(float(values["context_share"]), int(values.get("context_at_most", 4000)))
        if "context_share" in values
        else None,
        twice=bool(values.get("same_salt_twice", False)),
        logprobs=int(sampling.get("logprobs", 0)),
    )


def _kept(
    messages: tuple[Mapping[str, str], ...], wish: Wish, wanted: list[str]
) -> tuple[str, ...]:
    said = "".join(
        LanguageModel().speak(prompt_of(chat_ids(messages, "plain", "healthy")), wish, 1).texts
    )
    return tuple(wanted) if all(part in said for part in wanted) else ()


def _seconds(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", str(value))
    if found is None:
        raise ValueError(f"{value!r} is no duration")
    return float(found[1]) * _UNIT_S[found[2]]
