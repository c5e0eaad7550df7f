"""Findings of drift as text: what the golden files show, and what follows for stored incidents."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from drift_examples import EXAMPLES, NAMES, SECOND, SEEN, finding
from findings_examples import UUID

from monitor.model import Cause, Kind
from monitor.show.findings import details, headline, paragraph
from monitor.show.findings.causes import ACTIONS, CAUSES
from monitor.show.findings.conditions import CONDITIONS
from monitor.show.findings.fitting import Part, fitted

#: Words that docs and code do not use for these things (the glossary's other column).
OTHER_WORDS = (
    "card",
    "held back",
    "slows itself",
    "may draw",
    "usual",
    "usually",
    "trouble",
    "room",
    "look at",
    "told",
    "sign",
    "proof",
    "what is normal",
    "learnt",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_is_of_the_kind_and_cause_in_its_name(name: str) -> None:
    example = EXAMPLES[name]
    assert name.split("-")[:2] == [example.kind.value, *([example.cause] if example.cause else [])]


def test_every_cause_and_condition_has_an_example() -> None:
    others = {Cause.ANSWERS_CHANGED, Cause.SERVER_FAULT}
    assert {example.cause for example in EXAMPLES.values()} - {None} == set(Cause) - others
    assert set(CAUSES) == set(ACTIONS) == set(Cause) - others
    warned = {w.condition for seen in SEEN.values() for w in seen.warned}
    assert warned == set(CONDITIONS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_text_uses_a_word_that_the_glossary_replaces(name: str) -> None:
    example = EXAMPLES[name]
    text = f"{headline(example, NAMES)} {paragraph(example, NAMES)} {details(example, NAMES)}"
    assert re.findall(rf"\b({'|'.join(OTHER_WORDS)})\b", text, re.IGNORECASE) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_stored_finding_keeps_its_paragraph_and_shows_the_same_details(name: str) -> None:
    example = EXAMPLES[name]
    stored = replace(example, detail=None, summary=paragraph(example, NAMES))
    assert paragraph(stored) == paragraph(example, NAMES)
    assert details(stored, NAMES) == details(example, NAMES)
    assert headline(stored, NAMES).startswith("local: ")


@pytest.mark.parametrize("name", ["thermal-heat-early", "thermal-heat-early_margin"])
def test_the_headline_of_a_stored_warning_is_that_of_the_new_one(name: str) -> None:
    stored = replace(EXAMPLES[name], detail=None)
    assert headline(stored, NAMES) == headline(EXAMPLES[name], NAMES)


def test_without_index_and_model_a_gpu_has_its_shortened_uuid() -> None:
    assert "GPU GPU-a100…01 is thermally throttled" in paragraph(EXAMPLES["thermal-heat-warned"])


def test_what_is_measured_is_dated_by_itself_and_not_by_the_first_warning() -> None:
    example = EXAMPLES["thermal-heat-warned"]
    assert example.since.minute == 12
    assert "since 2023-11-14 22:13 UTC" in paragraph(example)


@pytest.mark.parametrize("gpu", [UUID, SECOND])
def test_the_gpu_that_an_incident_is_named_after_is_told_first(gpu: str) -> None:
    example = replace(EXAMPLES["thermal-heat-warned_two_gpus"], subject=gpu)
    assert f"{NAMES.of(gpu)} is thermally throttled" in paragraph(example, NAMES)


def test_a_paragraph_that_is_too_long_loses_its_least_important_parts_first() -> None:
    parts = [Part("a " * 30), Part("b " * 20, 1), Part("c " * 20, 2), Part("d " * 20, 2)]
    assert set(fitted(parts).split()) == {"a", "b"}
    assert fitted([Part("a " * 70)]).split() == ["a"] * 70


def test_a_kind_of_drift_without_a_cause_is_a_shift_of_the_workload() -> None:
    kinds = {example.kind for example in EXAMPLES.values() if example.cause is None}
    assert kinds == {Kind.WORKLOAD_SHIFT}
    assert finding(SEEN["workload_shift"]).evidence["change_pct"] == 299.9
