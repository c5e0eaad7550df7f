"""Probe files: what becomes of them, and how what is wrong is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.config import ConfigError, Settings, load_probes, shipped_probes_dir
from monitor.config.probes import load_probe, misfit
from monitor.model import Expectation

BROKEN = Path(__file__).parent / "broken"
SETTINGS = Settings.model_validate({"targets": [{"name": "local", "url": "http://127.0.0.1:8000"}]})
SKY = """\
class: chat
every: 60s
messages:
  - role: user
    content: Is the sky blue?
max_tokens: 8
"""


def revision(folder: Path, text: str) -> str:
    """The revision of a probe with this text."""
    path = folder / "sky.yaml"
    path.write_text(text)
    return load_probe(path, SETTINGS).revision


@pytest.mark.parametrize("name", sorted(p.stem for p in BROKEN.glob("probe*.yaml")))
def test_a_broken_probe_is_told_whole_with_line_and_mend(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BROKEN)
    with pytest.raises(ConfigError) as told:
        load_probe(Path(f"{name}.yaml"), SETTINGS)
    assert (
        str(told.value).splitlines()
        == (BROKEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    )


def test_the_errors_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SKY + "colour: red\n")
    (tmp_path / "b.yaml").write_text(SKY.replace("60s", "60"))
    (tmp_path / "c.yaml").write_text(SKY)
    with pytest.raises(ConfigError) as told:
        load_probes(tmp_path, SETTINGS)
    assert [(Path(p.file).name, p.line) for p in told.value.problems] == [
        ("a.yaml", 7),
        ("b.yaml", 2),
    ]


def test_a_folder_without_probes_and_no_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no probe"):
        load_probes(tmp_path, SETTINGS)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_probes(tmp_path / "none", SETTINGS)


def test_two_files_that_would_be_the_same_probe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sky.yaml").write_text(SKY)
    (tmp_path / "sky.yml").write_text(SKY)
    with pytest.raises(ConfigError, match=r"sky\.yml: .*sky\.yaml"):
        load_probes(tmp_path, SETTINGS)


def test_the_wait_is_the_classs_unless_the_probe_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SKY)
    (tmp_path / "b.yaml").write_text(SKY + "max_wait: 500ms\n")
    (tmp_path / "c.yaml").write_text(SKY + "max_wait: none\n")
    (tmp_path / "d.yaml").write_text(SKY.replace("class: chat", "class: batch"))
    assert [(p.name, p.max_wait_s, p.capped) for p in load_probes(tmp_path, SETTINGS)] == [
        ("a", 2.0, True),
        ("b", 0.5, True),
        ("c", None, False),
        ("d", 10.0, True),
    ]


def test_a_changed_text_is_a_new_revision(tmp_path: Path) -> None:
    first = revision(tmp_path, SKY)
    assert revision(tmp_path, SKY) == first
    changed = [
        SKY.replace("blue", "green"),
        SKY.replace("max_tokens: 8", "max_tokens: 9"),
        SKY.replace("class: chat", "class: batch"),
        SKY + "sampling: {seed: 1}\n",
        SKY + "max_wait: 1s\n",
        SKY + "expect: [{contains: Yes}]\n".replace("Yes", '"Yes"'),
    ]
    assert len({first, *(revision(tmp_path, text) for text in changed)}) == 1 + len(changed)


def test_schedule_and_reason_make_no_new_revision(tmp_path: Path) -> None:
    first = revision(tmp_path, SKY)
    assert revision(tmp_path, SKY.replace("60s", "5m") + "reason: why not\ntimeout: 9s\n") == first


def test_all_conditions_are_kept_in_order(tmp_path: Path) -> None:
    path = tmp_path / "sky.yaml"
    path.write_text(SKY + 'expect:\n  - contains: "Yes"\n  - equals: "Yes"\n')
    assert load_probe(path, SETTINGS).expect == (
        Expectation(contains="Yes"),
        Expectation(equals="Yes"),
    )


def test_temperature_and_seed_are_always_there_and_what_is_not_asked_for_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sky.yaml"
    path.write_text(SKY)
    assert load_probe(path, SETTINGS).sampling == {"temperature": 0.0, "seed": 0}


def test_log_probabilities_structure_and_endpoint_are_parameter_sets_of_their_own(
    tmp_path: Path,
) -> None:
    texts = {
        "plain": SKY,
        "logprobs": SKY + "sampling: {logprobs: 5}\n",
        "structured": SKY + "sampling: {response_format: {type: json_object}}\n",
        "completions": (
            "class: chat\nevery: 60s\nendpoint: completions\nprompt: The sky is\nmax_tokens: 8\n"
        ),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert len({p.parameter_set for p in load_probes(tmp_path, SETTINGS)}) == 4


def test_a_probe_that_cannot_fit_is_told_with_its_line_and_the_length_that_would(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sky.yaml"
    path.write_text(SKY)
    probe = load_probe(path, SETTINGS)
    assert misfit(probe, 20, 28, tmp_path) is None
    assert str(misfit(probe, 20, 27, tmp_path)) == (
        f"{path}:6: needs 28 tokens (20 prompt and 8 answer), but the context holds 27; lower "
        "max_tokens to 7"
    )
    assert str(misfit(probe, 20, 20, tmp_path)).endswith("holds 20; shorten the prompt")


def test_the_shipped_probes_are_the_documented_ones_and_valid() -> None:
    probes = {p.name: p for p in load_probes(shipped_probes_dir(), SETTINGS)}
    assert set(probes) >= {"chat-short", "chat-uncapped", "extraction-json", "decode-fixed"}
    assert not probes["chat-uncapped"].capped
    assert probes["decode-fixed"].traffic_class == "batch"
    assert all(p.reason for p in probes.values())
