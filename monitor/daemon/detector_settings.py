"""The settings of drift detection, from the configuration and from `--set`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from monitor.config.block import ConfigBlock
from monitor.config.detector import DetectorSettings
from monitor.config.problems import ConfigError, FileProblem
from monitor.config.settings import ClassSettings, Settings
from monitor.config.yamlfile import sentence
from monitor.judge.drift.settings import DriftSettings

HOUR_S, DAY_S = 3600.0, 86_400.0
#: Durations of the configuration, with the name and unit (in seconds) of the judges' setting.
DURATIONS = {
    "block": ("block_s", 1.0),
    "grace": ("grace_s", 1.0),
    "learn": ("learn_h", HOUR_S),
    "remember": ("remember_days", DAY_S),
    "card_step": ("gpu_step_s", 1.0),
}
B = TypeVar("B", bound=ConfigBlock)
Classes = Mapping[str, ClassSettings]


def drift_settings(settings: Settings) -> DriftSettings:
    """Returns the thresholds and service levels of a configuration."""
    return thresholds(settings.detector, settings.classes)


def thresholds(detector: DetectorSettings, classes: Classes) -> DriftSettings:
    """Returns thresholds and service levels as the judges take them."""
    given = {name: getattr(detector, name) for name in DetectorSettings.model_fields}
    durations = {inside: given.pop(name) / unit_s for name, (inside, unit_s) in DURATIONS.items()}
    levels = {
        name: chosen.ttft * 1000 for name, chosen in classes.items() if chosen.ttft is not None
    }
    return DriftSettings(**given, **durations, levels=levels)


def overridden(
    detector: DetectorSettings, classes: Classes, wishes: Sequence[str]
) -> tuple[DetectorSettings, Classes]:
    """Returns the configured values with `detector.KEY=VALUE` and `classes.NAME.ttft=VALUE` set.

    Whether thresholds are consistent is checked after the last one, so that their order does not
    matter. Raises ConfigError.
    """
    together = []
    for wish in wishes:
        key, equals, text = wish.partition("=")
        match key.strip().split("."):
            case ["detector", name] if equals:
                detector = _with(detector, name, text, wish)
                together.append(wish)
            case ["classes", name, "ttft"] if equals:
                given = {} if text.strip() == "none" else {"ttft": text.strip()}
                level = _parsed(ClassSettings, given, wish).ttft
                classes = {
                    **classes,
                    name: (classes.get(name) or ClassSettings()).model_copy(update={"ttft": level}),
                }
            case _:
                raise _refused(
                    wish,
                    (
                        "give detector.KEY=VALUE, for example detector.block=10m, or "
                        "classes.NAME.ttft=VALUE"
                    ),
                )
    try:
        detector.check()
    except ValueError as error:
        raise _refused(" --set ".join(together) or "detector", str(error)) from None
    return detector, classes


def check_classes(
    wishes: Sequence[str], configured: Collection[str], measured: Collection[str]
) -> None:
    """Raises ConfigError for a service level of an unknown class: it would have no effect."""
    known = sorted({*configured, *measured} - {""})
    for wish in wishes:
        match wish.partition("=")[0].strip().split("."):
            case ["classes", name, "ttft"] if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {close[0]}?"
                    if close
                    else f"known: {', '.join(known)}"
                    if known
                    else "no sample names its class"
                )
                raise _refused(
                    wish,
                    (
                        f"there is no class {name}, neither in the configuration nor in what was "
                        f"measured; {hint}"
                    ),
                )


def _with(detector: DetectorSettings, name: str, text: str, wish: str) -> DetectorSettings:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise _refused(wish, "its value cannot be read") from None
    return detector.model_copy(
        update={name: getattr(_parsed(DetectorSettings, {name: value}, wish), name)}
    )


def _parsed(model: type[B], given: Mapping[str, Any], wish: str) -> B:
    try:
        return model.model_validate(given, context={"alone": True})
    except ValidationError as error:
        raise _refused(wish, sentence(error.errors()[0], model)) from None


def _refused(wish: str, text: str) -> ConfigError:
    return ConfigError([FileProblem(f"--set {wish}", None, text)])
