"""What is being served, field by field: a value with its source, or unknown with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from standin import StandIn

from monitor.config.target import TargetSettings
from monitor.config.values import Secret
from monitor.measure.gpu.session import GpuIdentity, GpusIdentity
from monitor.measure.server import identity
from monitor.measure.server.host_process import ProcessHiddenError, ServerProcess
from monitor.measure.server.identity import Sources, read_identity
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.client import client
from monitor.model import (
    DERIVED_FIELDS,
    ROOT_FIELDS,
    SOFT_FIELDS,
    Fingerprint,
    FingerprintField,
    ServerPage,
)

KEY = "sk-4f1d-never-shown"
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
PAGE = ServerPage(at=NOON, state="ok", process_start_s=5000.0)
PROCESS = ServerProcess(
    pid=42,
    command=("python3", "vllm", "serve", "tiny", "--max-num-seqs", "8", "--api-key", KEY),
    started_s=5000.0,
    cwd=None,
    environment={"VLLM_BATCH_INVARIANT": "1"},
)


@pytest.fixture
async def http(standin: StandIn) -> AsyncIterator[httpx.AsyncClient]:
    async with client(standin.url, None) as http:
        yield http


@pytest.fixture
def remote(http: httpx.AsyncClient) -> Sources:
    """A server on another machine, of which only its API is known."""
    return sources(http, url="http://gpu-box:8000")


def sources(http: httpx.AsyncClient, **settings: Any) -> Sources:
    return Sources(
        TargetSettings.model_validate({"name": "local", **settings}),
        http,
        "tiny-canary",
        None,
        "no GPU is watched",
        None,
    )


@pytest.fixture
def local(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A server on this machine, launched as PROCESS."""
    monkeypatch.setattr(identity, "find_server", lambda port, started_s: PROCESS)
    return sources(http, url="http://127.0.0.1:8000")


async def fields(sources: Sources, page: ServerPage = PAGE) -> dict[str, FingerprintField]:
    return dict((await read_identity(sources, page)).fields)


def told(field: FingerprintField) -> tuple[Any, str | None]:
    return field.value, field.source


async def test_every_field_is_there_with_a_value_and_its_source_or_with_a_reason(
    remote: Sources, standin: StandIn
) -> None:
    page = await MetricsPage(remote.http, f"{standin.url}/metrics").read()
    seen = await read_identity(remote, page)
    assert (seen.target, seen.digest) == ("local", None)
    assert tuple(seen.fields) == (*ROOT_FIELDS, *DERIVED_FIELDS, *SOFT_FIELDS)
    for name, field in seen.fields.items():
        assert field.name == name
        assert (field.value is None) == (field.source is None) == (field.reason is not None), name
    assert {field.role for name, field in seen.fields.items() if name in ROOT_FIELDS} == {"root"}
    assert {field.role for name, field in seen.fields.items() if name in SOFT_FIELDS} == {"soft"}


async def test_the_api_tells_version_model_and_context(remote: Sources) -> None:
    seen = await fields(remote)
    assert told(seen["vllm_version"]) == ("0.32.0", "/version")
    assert told(seen["model_root"]) == ("models/tiny-canary", "/v1/models")
    assert told(seen["model_id"]) == ("tiny-canary", "/v1/models")
    assert told(seen["max_model_len"]) == (4096, "/v1/models")
    assert told(seen["served_models"]) == (["tiny-canary"], "/v1/models")


async def test_served_models_are_the_same_in_any_order(remote: Sources, standin: StandIn) -> None:
    a, b = ({"id": name, "parent": "tiny-canary"} for name in ("lora-a", "lora-b"))
    standin.state.extra_models = [b, a]
    first = (await fields(remote))["served_models"]
    standin.state.extra_models = [a, b]
    assert (await fields(remote))["served_models"] == first


async def test_of_several_models_the_one_that_is_watched_is_meant(
    remote: Sources, standin: StandIn
) -> None:
    standin.state.extra_models = [{"id": "big", "root": "models/big", "max_model_len": 99}]
    assert (await fields(replace(remote, model="big")))["model_root"].value == "models/big"
    unclear = await fields(replace(remote, model=None))
    assert (unclear["model_root"].value, unclear["model_root"].reason) == (
        None,
        "not in /v1/models",
    )
    assert unclear["served_models"].value == ["big", "tiny-canary"]


async def test_without_the_key_the_models_are_unknown_and_the_open_endpoints_still_tell(
    remote: Sources, standin: StandIn
) -> None:
    standin.state.api_key = KEY
    seen = await fields(remote)
    for name in ("model_root", "model_id", "served_models"):
        assert seen[name].value is None
        assert "HTTP 401" in (seen[name].reason or "")
    assert told(seen["vllm_version"]) == ("0.32.0", "/version")
    assert told(seen["max_model_len"]) == (4096, "/tokenize")


async def test_a_server_that_is_gone_leaves_everything_unknown_and_raises_nothing(
    remote: Sources, standin: StandIn
) -> None:
    await standin.stop()
    seen = await fields(remote, ServerPage(at=NOON, state="refused"))
    assert {name for name, field in seen.items() if field.value is not None} == set()
    assert "cannot be reached" in (seen["vllm_version"].reason or "")


async def test_another_template_moves_its_hash_and_not_the_tokenizers(
    remote: Sources, standin: StandIn
) -> None:
    before = await fields(remote)
    assert before["template_hash"].value == (await fields(remote))["template_hash"].value
    standin.state.template_salt = "You are kind."
    after = await fields(remote)
    assert before["template_hash"].value != after["template_hash"].value
    assert before["tokenizer_hash"].value == after["tokenizer_hash"].value


async def test_tokens_without_ids_leave_the_hashes_unknown(remote: Sources) -> None:
    """Some gateways give the count alone; a hash of nothing would differ from the one of the server
    behind it.
    """
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, json={"count": 3, "max_model_len": 4096})
    )
    async with httpx.AsyncClient(base_url="http://gpu-box", transport=transport) as http:
        seen = await fields(replace(remote, http=http))
    assert (seen["template_hash"].value, seen["tokenizer_hash"].value) == (None, None)
    assert "/tokenize" in (seen["template_hash"].reason or "")


async def test_the_cache_settings_hold_no_figure_that_moves_by_itself(
    remote: Sources, standin: StandIn
) -> None:
    page = MetricsPage(remote.http, f"{standin.url}/metrics")
    before = await fields(remote, await page.read())
    standin.state.kv_cache_size_tokens, standin.state.max_model_len = 400_000, 2048
    after = await fields(remote, await page.read())
    assert before["kv_cache"] == after["kv_cache"]
    assert before["kv_cache"].value["block_size"] == "16"
    assert before["kv_cache"].value["cache_dtype"] == "auto"
    assert (before["kv_cache_size_tokens"].value, after["kv_cache_size_tokens"].value) == (
        524288,
        400_000,
    )
    assert (before["num_gpu_blocks"].value, after["num_gpu_blocks"].value) == (32768, 25000)


async def test_a_cache_size_that_is_no_number_is_unknown(remote: Sources) -> None:
    seen = await fields(
        remote, replace(PAGE, cache_config={"num_gpu_blocks": "None", "block_size": "16"})
    )
    assert (seen["num_gpu_blocks"].value, seen["num_gpu_blocks"].reason) == (
        None,
        "not in vllm:cache_config_info",
    )


async def test_without_a_metrics_page_the_cache_is_unknown(remote: Sources) -> None:
    seen = await fields(remote, ServerPage(at=NOON, state="http_error"))
    assert {seen[name].value for name in ("kv_cache", *SOFT_FIELDS)} == {None}
    assert seen["kv_cache"].reason == "not on the metrics page"


async def test_the_system_fingerprint_is_the_one_of_an_answer(remote: Sources) -> None:
    assert (await fields(remote))["system_fingerprint"].reason is not None
    known = (await fields(replace(remote, system_fingerprint="vllm-0.32.0-bf6c1f39")))[
        "system_fingerprint"
    ]
    assert told(known) == ("vllm-0.32.0-bf6c1f39", "answer of a canary")


GPU_A, GPU_B = (
    GpuIdentity(uuid, name="H200", power_limit_w=700.0, ecc=True) for uuid in ("GPU-a", "GPU-b")
)


async def test_the_gpus_are_told_in_one_order_with_what_limits_them(local: Sources) -> None:
    gpus = [GpusIdentity("610.43", "13.3", gpus) for gpus in ((GPU_A, GPU_B), (GPU_B, GPU_A))]
    first, second = [(await fields(replace(local, gpu=gpu)))["gpu"] for gpu in gpus]
    assert first == second
    assert [gpu["uuid"] for gpu in first.value] == ["GPU-a", "GPU-b"]
    assert first.value[0]["power_limit_w"] == 700.0


async def test_only_the_gpus_of_the_target_belong_to_its_identity(
    http: httpx.AsyncClient, local: Sources
) -> None:
    chosen = sources(http, url="http://127.0.0.1:8000", gpus=["GPU-b"])
    seen = await fields(replace(chosen, gpu=GpusIdentity("610.43", "13.3", (GPU_A, GPU_B))))
    assert [gpu["uuid"] for gpu in seen["gpu"].value] == ["GPU-b"]


async def test_a_gpu_that_cannot_be_read_makes_the_gpus_unknown_and_not_changed(
    http: httpx.AsyncClient, local: Sources
) -> None:
    one_hidden = GpusIdentity("610.43", "13.3", (GPU_A,), hidden=("GPU-b",))
    seen = await fields(replace(local, gpu=one_hidden))
    assert (seen["gpu"].value, seen["gpu"].reason, seen["driver_version"].value) == (
        None,
        "GPU-b cannot be read",
        "610.43",
    )
    other = sources(http, url="http://127.0.0.1:8000", gpus=["GPU-a"])
    assert [gpu["uuid"] for gpu in (await fields(replace(other, gpu=one_hidden)))["gpu"].value] == [
        "GPU-a"
    ]


async def test_a_driver_that_cannot_be_read_is_unknown_with_the_reason(local: Sources) -> None:
    seen = await fields(replace(local, gpu=None, gpu_reason="Driver/library version mismatch"))
    assert (seen["driver_version"].value, seen["driver_version"].reason) == (
        None,
        "Driver/library version mismatch",
    )
    partly = await fields(replace(local, gpu=GpusIdentity(None, "13.3", ())))
    assert (partly["driver_version"].reason, partly["gpu"].value) == ("not offered by NVML", None)


async def test_the_process_tells_how_it_was_launched_without_its_key(local: Sources) -> None:
    seen = await read_identity(local, PAGE)
    assert told(seen.fields["launch_options"]) == (
        {"max-num-seqs": "8"},
        "command line of process 42",
    )
    assert told(seen.fields["environment"]) == (
        {"VLLM_BATCH_INVARIANT": "1"},
        "environment of process 42",
    )
    assert (
        seen.fields["launch_command"].value
        == "python3 vllm serve tiny --max-num-seqs 8 --api-key ***"
    )
    assert KEY not in repr(seen)


async def test_an_environment_that_may_not_be_read_is_unknown_and_an_empty_one_is_known(
    local: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        identity, "find_server", lambda port, started_s: replace(PROCESS, environment=None)
    )
    assert (await fields(local))["environment"].reason == "the process belongs to another user"
    monkeypatch.setattr(
        identity, "find_server", lambda port, started_s: replace(PROCESS, environment={})
    )
    assert (await fields(local))["environment"].value == {}


async def test_a_hidden_process_leaves_its_fields_unknown_with_the_mend(
    local: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(port: int, started_s: float | None) -> ServerProcess:
        raise ProcessHiddenError(
            f"port {port} is held by no process that this user may read; run as root"
        )

    monkeypatch.setattr(identity, "find_server", hidden)
    seen = await fields(local)
    assert {seen[name].value for name in ("launch_options", "launch_command", "environment")} == {
        None
    }
    assert "port 8000" in (seen["launch_options"].reason or "")


async def test_of_a_server_on_another_machine_no_process_of_this_one_is_taken(
    remote: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "find_server", lambda port, started_s: PROCESS)
    assert (await fields(remote))["launch_options"].reason == "the server is on another machine"


def model_at(folder: Path, changed_s: float = 4000.0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    for path in folder.iterdir():
        os.utime(path, (changed_s, changed_s))
    return folder


async def test_the_models_files_are_found_under_its_root(
    local: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_at(tmp_path / "models" / "tiny-canary")
    monkeypatch.setattr(
        identity, "find_server", lambda port, started_s: replace(PROCESS, cwd=str(tmp_path))
    )
    seen = await fields(local)
    assert seen["model_hash"].value
    assert seen["model_hash"].source == f"files in {tmp_path}/models/tiny-canary"
    assert seen["model_family"].value == "llama"
    assert (seen["quantization"].value, seen["quantization"].reason) == (
        None,
        "not in config.json",
    )


async def test_a_configured_path_is_used_for_a_server_anywhere(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    path = model_at(tmp_path / "copy")
    seen = await fields(sources(http, url="http://gpu-box:8000", model_path=str(path)))
    assert seen["model_hash"].source == f"files in {path}"


@pytest.mark.parametrize(
    "page",
    [PAGE, replace(PAGE, process_start_s=None)],
    ids=["page tells the start", "process tells the start"],
)
async def test_files_that_are_newer_than_the_server_are_not_what_it_serves(
    local: Sources, tmp_path: Path, page: ServerPage
) -> None:
    path = model_at(tmp_path / "model", changed_s=6000.0)
    local.settings = local.settings.model_copy(update={"model_path": str(path)})
    seen = await fields(local, page)
    assert {seen[name].value for name in ("model_hash", "model_family", "quantization")} == {None}
    assert "changed after the server started" in (seen["model_hash"].reason or "")


async def test_a_path_that_does_not_exist_is_told(http: httpx.AsyncClient, tmp_path: Path) -> None:
    seen = await fields(
        sources(http, url="http://gpu-box:8000", model_path=str(tmp_path / "nowhere"))
    )
    assert "nowhere cannot be read" in (seen["model_hash"].reason or "")


async def test_the_key_is_in_no_part_of_an_identity(standin: StandIn) -> None:
    standin.state.api_key = "another"
    async with client(standin.url, Secret(KEY)) as http:
        seen: Fingerprint = await read_identity(sources(http, url="http://gpu-box:8000"), PAGE)
    assert KEY not in repr(seen)


# ---- what no server should send


async def test_what_a_server_tells_of_itself_is_kept_printable_and_in_reason(
    remote: Sources, standin: StandIn
) -> None:
    standin.state.version = "0.32.0\x1b[2J\nroot"
    standin.state.root = "\x00\x00" + "x" * 100_000
    seen = await fields(remote)
    assert seen["vllm_version"].value == "0.32.0\\x1b[2J root"
    root = seen["model_root"].value
    assert root.startswith('"\ufffd\ufffdxxx')
    assert len(root) < 300
    standin.state.root += "y"
    assert (await fields(remote))["model_root"].value != root  # a change is still one
    for field in seen.values():
        json.dumps(field.value, ensure_ascii=False).encode()


@pytest.mark.parametrize("value", ["²", "9" * 5000, "-1", "1e3"])
async def test_a_cache_figure_of_another_shape_is_unknown(value: str, remote: Sources) -> None:
    page = replace(PAGE, cache_config={"num_gpu_blocks": value, "kv_cache_size_tokens": value})
    assert (await fields(remote, page))["num_gpu_blocks"].value is None


async def test_a_model_root_that_no_folder_can_have_is_no_folder(
    local: Sources, standin: StandIn
) -> None:
    standin.state.root = "/" + "x" * 5000
    assert (await fields(local))["model_hash"].value is None
    standin.state.root = "/" + "x" * 300
    assert (await fields(local))["model_hash"].value is None


async def test_the_reason_why_a_field_is_unknown_is_short_and_printable(remote: Sources) -> None:
    error = {"error": {"message": "\x1b[2J" + "x" * 100_000}}
    async with httpx.AsyncClient(
        base_url="http://s",
        transport=httpx.MockTransport(lambda _: httpx.Response(500, json=error)),
    ) as http:
        seen = await fields(replace(remote, http=http))
    reason = seen["vllm_version"].reason or ""
    assert reason.isprintable()
    assert len(reason) <= 300
