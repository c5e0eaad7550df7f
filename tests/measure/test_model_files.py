"""A hash that moves when the model's files do, and with nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.measure.server.model_files import ModelFilesError, read_model_files

CONFIG = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"one")
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"two")
    for path in folder.iterdir():
        os.utime(path, (1000, 1000))
    return folder


def weights(model: Path) -> Path:
    return model / "model-00001-of-00002.safetensors"


def test_config_tells_family_and_quantization(model: Path) -> None:
    files = read_model_files(model)
    assert (files.family, files.quantization, files.newest_s) == (
        "llama",
        {"quant_method": "fp8"},
        1000.0,
    )


def test_the_same_files_have_the_same_hash(model: Path) -> None:
    assert read_model_files(model).digest == read_model_files(model).digest


def touched(path: Path) -> None:
    os.utime(path, (2000, 2000))


def other_bytes(path: Path) -> None:
    path.write_bytes(b"longer")
    os.utime(path, (1000, 1000))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: touched(weights(model)),
        lambda model: other_bytes(weights(model)),
        lambda model: other_bytes(model / "config.json"),
        lambda model: weights(model).unlink(),
        lambda model: weights(model).rename(model / "other.safetensors"),
        lambda model: (model / "generation_config.json").write_text("{}"),
        lambda model: (model / "model.safetensors.index.json").write_text("{}"),
        lambda model: (model / "extra.gguf").write_bytes(b""),
    ],
    ids=[
        "replaced",
        "another size",
        "config",
        "gone",
        "renamed",
        "generation defaults",
        "index",
        "more weights",
    ],
)
def test_a_change_of_the_model_moves_the_hash(model: Path, change: Callable[[Path], Any]) -> None:
    before = read_model_files(model).digest
    change(model)
    assert read_model_files(model).digest != before


@pytest.mark.parametrize("name", ["README.md", ".gitattributes", "figure.png"])
def test_files_that_are_not_the_model_do_not_move_the_hash(model: Path, name: str) -> None:
    before = read_model_files(model)
    (model / name).write_text("text")
    assert read_model_files(model) == before


def test_a_config_that_was_only_touched_has_the_same_hash_but_is_newer(model: Path) -> None:
    before = read_model_files(model)
    touched(model / "config.json")
    after = read_model_files(model)
    assert (after.digest, after.newest_s) == (before.digest, 2000.0)


def test_the_links_of_a_hub_cache_are_followed_to_their_blobs(model: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in model.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert read_model_files(snapshot).digest == read_model_files(model).digest
    touched(weights(model))
    assert read_model_files(snapshot).newest_s == 2000.0


def test_a_folder_without_a_config_has_a_hash_and_no_family(model: Path) -> None:
    (model / "config.json").unlink()
    files = read_model_files(model)
    assert files.digest
    assert (files.family, files.quantization) == (None, None)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": 5}'])
def test_a_config_that_tells_nothing_leaves_the_family_unknown(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    assert read_model_files(model).family is None


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="nowhere cannot be read: No such file or directory"):
        read_model_files(tmp_path / "nowhere")


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"contains neither config\.json nor weight files"):
        read_model_files(tmp_path)


def test_weights_whose_blob_is_gone_are_told_and_not_hashed_without(model: Path) -> None:
    (model / "model-00003.safetensors").symlink_to(model / "gone")
    with pytest.raises(ModelFilesError, match="cannot be read"):
        read_model_files(model)


@pytest.mark.parametrize("config", ["[" * 100_000, '{"quantization_config": {"bits": NaN}}'])
def test_a_config_json_that_no_reader_takes_raises_nothing_and_is_the_same_at_the_next_look(
    tmp_path: Path, config: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert read_model_files(tmp_path) == read_model_files(tmp_path)
