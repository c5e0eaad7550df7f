"""config.yaml: what is accepted, and how what is not is said."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import (
    ConfigError,
    Settings,
    load_settings,
    settings_for_url,
    shipped_probes_dir,
)
from monitor.config.places import default_database, find_config
from monitor.config.settings import ChannelSettings
from monitor.config.target import TargetSettings
from monitor.config.text import reference, sample_config
from monitor.config.values import Secret, host_port, is_loopback, parse_duration, read_secret

BROKEN = Path(__file__).parent / "broken"
SMALL = "targets:\n  - name: local\n    url: http://127.0.0.1:8000\n"


def written(folder: Path, text: str) -> Path:
    """A config.yaml with this text."""
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(p.stem for p in BROKEN.glob("config-*.yaml")))
def test_a_broken_configuration_is_told_whole_with_line_and_mend(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BROKEN)
    with pytest.raises(ConfigError) as told:
        load_settings(Path(f"{name}.yaml"))
    assert (
        str(told.value).splitlines()
        == (BROKEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    )


def test_a_configuration_error_ends_a_command_with_2() -> None:
    assert ConfigError.exit_code == 2


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xff\xfe\x00t", id="no UTF-8"),
        pytest.param(b"targets: [\x00]", id="a NUL byte"),
        pytest.param(b"[" * 5000, id="deep nesting"),
        pytest.param(b"targets: {? [a, b] : c}\n", id="a list as key"),
        pytest.param(b"a: 1\n---\na: 2\n", id="two documents"),
        pytest.param(b"targets: !!python/name:os.x\n", id="a Python tag"),
    ],
)
def test_bytes_that_are_no_configuration_are_one_sentence_and_no_traceback(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as told:
        load_settings(path)
    assert str(told.value).startswith(str(path))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_no_text_whatever_makes_the_reader_fail_otherwise_than_by_a_sentence(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, suppress(ConfigError):
        load_settings(written(Path(folder), SMALL + text))


def test_a_missing_file_and_a_folder_in_its_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read"):
        load_settings(tmp_path / "config.yaml")


def test_paths_are_relative_to_the_file_and_not_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    written(
        folder,
        SMALL + "    api_key_file: key\n    model_path: model\ndatabase: data/h.db\nprobes: p\n",
    )
    monkeypatch.chdir(tmp_path)
    settings = load_settings(Path("etc/config.yaml"))
    target = settings.targets[0]
    assert (settings.database, settings.probes) == (str(folder / "data/h.db"), str(folder / "p"))
    assert (target.api_key_file, target.model_path) == (str(folder / "key"), str(folder / "model"))


def test_a_database_url_is_left_as_it_is(tmp_path: Path) -> None:
    url = "postgresql://canary@db/history"
    assert load_settings(written(tmp_path, SMALL + f"database: {url}\n")).database == url


def test_what_is_not_said_has_the_documented_default(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, SMALL))
    assert settings.listen == "127.0.0.1:9462"
    assert settings.channels == []
    assert settings.targets[0].gpus == "auto"
    chat, batch = settings.class_settings("chat"), settings.class_settings("batch")
    assert (chat and chat.max_wait, batch and batch.max_wait) == (2.0, 10.0)


def test_a_class_of_ones_own_does_not_take_the_built_in_ones_away(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, SMALL + "classes: {voice: {max_wait: 300ms}}\n"))
    assert [
        settings.class_settings(name) is not None for name in ("voice", "chat", "batch", "other")
    ] == [True, True, True, False]


def test_an_openai_base_url_loses_its_v1_and_slash(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace(":8000", ":8000/proxy/v1/"))
    assert load_settings(path).targets[0].url == "http://127.0.0.1:8000/proxy"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("800ms", 0.8), ("2s", 2), ("1.5m", 90), ("1h", 3600), ("7d", 604800), (" 2 s ", 2)],
)
def test_a_duration_has_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "2", "2 sec", "-2s", "0ms", "1e3s", "2S", "nan", "infs", True, None, [2]]
)
def test_anything_else_is_no_duration(text: Any) -> None:
    with pytest.raises(ValueError, match=r"example|longer"):
        parse_duration(text)


def test_gpus_of_this_machine_do_not_belong_to_a_server_elsewhere() -> None:
    assert TargetSettings(name="a", url="http://10.0.0.7:8000").watches_gpus == "none"
    assert TargetSettings(name="a", url="http://localhost:8000").watches_gpus == "auto"
    assert TargetSettings(name="a", url="http://10.0.0.7:8000", gpus=["GPU-1"]).watches_gpus == [
        "GPU-1"
    ]


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
        (None, False),
    ],
)
def test_only_an_address_that_never_leaves_this_machine_is_loopback(
    host: str | None, local: bool
) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", ":9462", "[::1:9462"]
)
def test_a_listen_address_that_is_none_is_a_value_error_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|127\.0\.0\.1"):
        host_port(text)


def test_a_listen_address_may_be_ipv6(tmp_path: Path) -> None:
    assert host_port(load_settings(written(tmp_path, SMALL + 'listen: "[::1]:9462"\n')).listen) == (
        "::1",
        9462,
    )


def test_a_secret_shows_itself_in_no_text_form() -> None:
    secret = Secret("sk-very-secret")
    assert "very" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "sk-very-secret"


def test_a_secret_that_is_not_there_is_told_by_its_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_TEST_KEY", raising=False)
    with pytest.raises(ValueError, match="CANARY_TEST_KEY is not set"):
        read_secret("CANARY_TEST_KEY", None)
    with pytest.raises(ValueError, match=r"key cannot be read: No such file"):
        read_secret(None, tmp_path / "key")
    (tmp_path / "key").write_text(" \n")
    with pytest.raises(ValueError, match="key is empty"):
        read_secret(None, tmp_path / "key")


@pytest.mark.parametrize("value", ["two\nlines-s3cret", "schlüssel-s3cret", "bell-s3cret\x07"])
def test_a_secret_that_no_header_can_carry_is_refused_without_being_shown(
    value: str, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(value, encoding="utf-8")
    with pytest.raises(ValueError, match="key") as told:
        read_secret(None, tmp_path / "key")
    assert "s3cret" not in str(told.value)


def test_white_space_around_a_secret_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    secret = read_secret(None, tmp_path / "key")
    assert secret is not None
    assert secret.reveal() == "sk-1"


def test_a_channel_address_in_the_environment_is_read_anew_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = ChannelSettings(name="ops", kind="webhook", url_env="CANARY_TEST_HOOK")
    monkeypatch.setenv("CANARY_TEST_HOOK", "http://127.0.0.1:1/a")
    assert channel.address().endswith("/a")
    monkeypatch.setenv("CANARY_TEST_HOOK", "http://127.0.0.1:1/b")
    assert channel.address().endswith("/b")


def test_a_url_alone_names_the_target_by_host_and_port_and_uses_the_shipped_probes() -> None:
    settings = settings_for_url("http://127.0.0.1:8000/v1", "x.db")
    assert (settings.targets[0].name, settings.targets[0].url) == (
        "127.0.0.1:8000",
        "http://127.0.0.1:8000",
    )
    assert (settings.probes, settings.database) == (str(shipped_probes_dir()), "x.db")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://h:99999",
        "http://[::1",
        "http://a b/",
    ],
)
def test_a_url_that_is_nonsense_is_one_sentence_about_the_option(url: str) -> None:
    with pytest.raises(ConfigError) as told:
        settings_for_url(url, None)
    lines = str(told.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("--url: url ")


def test_an_ipv6_server_can_be_named_by_its_url() -> None:
    assert settings_for_url("http://[::1]:8000", None).targets[0].url == "http://[::1]:8000"


def test_without_a_file_the_history_is_in_the_state_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_database() == tmp_path / "vllm-canary" / "history.db"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_database() == tmp_path / ".local" / "state" / "vllm-canary" / "history.db"


def test_a_named_file_comes_before_the_environment_and_that_before_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLLM_CANARY_CONFIG", raising=False)
    written(tmp_path, SMALL)
    assert find_config(None) == Path("config.yaml")
    monkeypatch.setenv("VLLM_CANARY_CONFIG", "/elsewhere/c.yaml")
    assert find_config(None) == Path("/elsewhere/c.yaml")
    assert find_config("named.yaml") == Path("named.yaml")


@pytest.mark.parametrize(
    "name",
    [
        "local",
        "1",
        "on",
        "null",
        "0x1F",
        "1e5",
        "2026-03-01",
        "y",
        "~",
        "tiny canary",
        'with "quotes"',
    ],
)
def test_the_file_that_init_writes_says_what_it_was_given(name: str, tmp_path: Path) -> None:
    text = sample_config({"name": "local", "url": "http://127.0.0.1:8000", "model": name})
    assert load_settings(written(tmp_path, text)).targets[0].model == name


def test_the_file_that_init_writes_sets_nothing_but_defaults_beyond_what_it_was_given(
    tmp_path: Path,
) -> None:
    written_out = load_settings(
        written(tmp_path, sample_config({"name": "local", "url": "http://127.0.0.1:8000"}))
    )
    least = load_settings(written(tmp_path, SMALL))
    assert written_out == least


def test_the_file_that_init_writes_explains_every_key(tmp_path: Path) -> None:
    text = sample_config({"name": "local", "url": "http://127.0.0.1:8000"})
    for model in (Settings, TargetSettings, ChannelSettings):
        for field in model.model_fields:
            assert f"{field}:" in text


def test_the_channel_that_init_writes_as_a_comment_works_once_uncommented(tmp_path: Path) -> None:
    text = sample_config({"name": "local", "url": "http://127.0.0.1:8000"})
    before, _, channels = text.partition("# channels:\n")
    plain = "\n".join(line[2:] for line in channels.splitlines())
    settings = load_settings(written(tmp_path, f"{before}channels:\n{plain}\n"))
    assert [channel.kind for channel in settings.channels] == ["webhook"]


def test_the_reference_page_has_a_row_for_every_key() -> None:
    page = reference()
    assert all(
        f"| `{field}` |" in page
        for model in (Settings, TargetSettings, ChannelSettings)
        for field in model.model_fields
    )
    assert "| `class` |" in page


def test_the_detector_block_that_init_writes_as_a_comment_works_once_uncommented(
    tmp_path: Path,
) -> None:
    text = sample_config({"name": "local", "url": "http://127.0.0.1:8000"})
    plain = text.replace("# detector:", "detector:").replace(
        "#   false_alarms_per_month", "  false_alarms_per_month"
    )
    assert plain != text
    assert load_settings(written(tmp_path, plain)) == load_settings(written(tmp_path, text))


def test_a_service_level_of_a_class_and_a_looser_knob_are_read(tmp_path: Path) -> None:
    more = (
        "classes:\n  chat:\n    ttft: 800ms\ndetector:\n  false_alarms_per_month: 1\n  learn: 1d\n"
    )
    settings = load_settings(written(tmp_path, SMALL + more))
    assert settings.classes["chat"].ttft == 0.8
    assert (settings.detector.false_alarms_per_month, settings.detector.learn) == (1, 86_400)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("false_alarms_per_month: 0", "false_alarms_per_month"),
        ("block: 300", "give it a unit"),
        ("small_drop: 0.1", "large_drop a value above small_drop"),
        ("remember: 1h", "remember at least the length of learn"),
        ("false_alarms: 1", "false_alarms_per_month"),
    ],
)
def test_thresholds_that_make_no_sense_are_told_with_the_mend(
    block: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        load_settings(written(tmp_path, f"{SMALL}detector:\n  {block}\n"))
