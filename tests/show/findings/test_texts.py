"""Findings as text: one golden file per kind and cause, and limits that hold for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from drift_examples import EXAMPLES as DRIFT
from drift_examples import NAMES
from findings_examples import EXAMPLES as OTHERS
from findings_examples import UUID

from monitor.judge.gpu_faults import FATAL_XIDS
from monitor.model import Change
from monitor.show.findings import render
from monitor.show.findings.gpu_faults import XIDS
from monitor.show.findings.kinds import RENDERERS
from monitor.show.findings.texts import GpuName, GpuNames, Texts, short_model

EXAMPLES = {**OTHERS, **DRIFT}
GOLDEN = Path(__file__).parent / "golden"
LONG = "the upstream proxy answered with an error page that nobody has asked for " * 20


def as_file(texts: Texts) -> str:
    """A golden file: headline, paragraph and details, with a blank line between them."""
    return "\n\n".join(filter(None, (texts.headline, texts.paragraph, "\n".join(texts.details))))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_finding_reads_as_its_golden_file(name: str) -> None:
    assert as_file(render(EXAMPLES[name], NAMES)) + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_every_kind_with_a_renderer_has_a_golden_file() -> None:
    assert {finding.kind for finding in EXAMPLES.values()} >= set(RENDERERS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_texts_are_short_also_where_a_server_says_much(name: str) -> None:
    finding = EXAMPLES[name]
    wordy = {
        key: LONG if key in {"detail", "reason", "last_error"} else value
        for key, value in finding.evidence.items()
    }
    for each in (finding, replace(finding, evidence=wordy)):
        texts = render(each, NAMES)
        assert len(texts.headline) <= 100
        assert len(texts.paragraph.split()) <= 60


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_finding_of_an_older_version_without_its_figures_can_be_shown(name: str) -> None:
    finding = EXAMPLES[name]
    texts = render(replace(finding, evidence={}), NAMES)
    assert texts.headline.startswith(f"{finding.target}: ")
    assert texts.paragraph.startswith(f"{finding.target}: ")


def test_a_change_of_many_fields_names_some_in_the_paragraph() -> None:
    variables = {f"VLLM_{n}": "1" for n in range(50)}
    finding = replace(
        EXAMPLES["config_change-one_field"], changes=(Change("environment", variables, {}),)
    )
    texts = render(finding)
    assert "environment.VLLM_0 1 → –" in texts.paragraph
    assert "and 47 more fields" in texts.paragraph
    assert len(texts.paragraph.split()) <= 60


def test_every_fatal_xid_has_a_name() -> None:
    assert set(XIDS) == FATAL_XIDS


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ({}, "GPU GPU-a100…01"),
        ({UUID: GpuName(None, "H100")}, "GPU (H100, GPU-a100…01)"),
        ({UUID: GpuName(3)}, "GPU 3 (GPU-a100…01)"),
        ({UUID: GpuName(0, "H100")}, "GPU 0 (H100, GPU-a100…01)"),
    ],
)
def test_a_gpu_is_named_by_index_and_model_before_its_uuid(
    known: dict[str, GpuName], name: str
) -> None:
    assert GpuNames(known).of(UUID) == name


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GB10", "GB10"),
        ("Quadro", "Quadro"),
        (None, None),
    ],
)
def test_a_gpu_is_called_by_its_model_without_maker_and_memory(
    name: str | None, model: str | None
) -> None:
    assert short_model(name) == model
