"""`pin`: takes the server's present answers as right, with a reason; shows what it takes, and takes
nothing that is plainly wrong.
"""

from __future__ import annotations

import getpass
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from histories import History
from standin import StandIn

from monitor.judge.identity import digest
from monitor.measure.gpu.dcgm import DcgmSession
from monitor.measure.server import identity
from monitor.model import FingerprintField
from monitor.store import fingerprints, record

from .conftest import PROBE, Command, write_config

SKY = "Is the sky blue? Answer yes or no."
PINNED = PROBE.replace('  - contains: "Yes"', "  - pinned: true") + "sampling:\n  logprobs: 5\n"
STRICT = PROBE + "  - pinned: true\nsampling:\n  logprobs: 5\n"


class Alternating(dict[str, str]):
    """Answers that take turns, as near ties do."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self._answers, self._turn = answers, count()

    def get(self, *_: Any) -> str:
        return self._answers[next(self._turn) % len(self._answers)]


@pytest.fixture
def config(tmp_path: Path, server: StandIn) -> Path:
    """One probe that is judged by its pin."""
    return write_config(tmp_path, server.url, sky=PINNED)


def busy(server: StandIn) -> None:
    """Others are served; how many tokens they get is not told."""
    server.state.other_running, server.state.hide_metrics = 2, ["vllm:generation_tokens_total"]


def pins(cli: Command, *words: str) -> list[dict[str, Any]]:
    """What `pins` lists."""
    found: list[dict[str, Any]] = cli("pins", *words, "--json").json["pins"]
    return found


@pytest.mark.parametrize("words", [(), ("--reason", "  ")])
def test_without_a_reason_it_is_2_and_nothing_is_sent(
    words: tuple[str, ...], cli: Command, config: Path, server: StandIn
) -> None:
    ran = cli("pin", *words)
    assert ran.code == 2
    assert "a pin needs a reason" in ran.err
    assert server.state.requests == []


@pytest.mark.parametrize(
    "words", [("--repeats", "0"), ("--expires", "30"), ("rain",), ("--target", "remote")]
)
def test_what_makes_no_sense_is_2_and_nothing_is_sent(
    words: tuple[str, ...], cli: Command, config: Path, server: StandIn
) -> None:
    ran = cli("pin", "--reason", "checked", *words)
    assert (ran.code, ran.out) == (2, "")
    assert server.state.requests == []


def test_a_probe_without_log_probabilities_cannot_be_pinned_and_the_mend_is_said(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url)
    ran = cli("pin", "--reason", "checked")
    assert ran.code == 2
    assert "`logprobs: 5` under sampling" in ran.err


def test_a_pin_holds_the_answers_tokens_log_probabilities_lengths_times_and_who_took_it(
    cli: Command, config: Path
) -> None:
    began = datetime.now(UTC)
    assert cli("pin", "--reason", "checked by hand", "--repeats", "3").code == 0
    [pin] = pins(cli)
    assert (pin["target"], pin["probe"], pin["reason"], pin["author"]) == (
        "local",
        "sky",
        "checked by hand",
        getpass.getuser(),
    )
    assert pin["state"] == "holds"
    assert pin["prompt_tokens"] is not None
    assert pin["noise_nat"] == pytest.approx(0.0)
    assert len(pin["ttft_ms"]) == 2  # the first may have been cold
    [output] = pin["outputs"]
    assert (output["text"], output["count"], output["finish_reason"]) == ("Yes", 3, "stop")
    assert output["tokens"] == ["Yes", "</s>"]
    assert len(output["token_ids"]) == len(output["logprobs"]) == len(output["tops"]) == 2
    left = datetime.fromisoformat(pin["expires_at"]) - began
    assert timedelta(days=27) <= left <= timedelta(days=30, minutes=1)


def test_answers_that_differ_are_shown_before_they_are_taken(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.answers = Alternating("Yes", "Yes", "Indeed")
    ran = cli("pin", "--reason", "both are right", "--repeats", "3")
    assert ran.code == 0
    shown, taken = ran.out.split("id  target")
    assert shown == ("sky got 2 different answers; all are accepted:\n  2×  Yes\n  1×  Indeed\n\n")
    [pin] = pins(cli)
    assert "2 different answers" in taken
    assert "are accepted" not in taken
    assert [(o["text"], o["count"]) for o in pin["outputs"]] == [("Yes", 2), ("Indeed", 1)]
    assert {s["verdict"] for _ in range(3) for s in cli("probe", "--json").json["samples"]} == {
        "pass"
    }


def test_a_dry_run_shows_what_would_be_taken_and_records_nothing(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.answers = Alternating("Yes", "Indeed")
    ran = cli("pin", "--reason", "a look", "--repeats", "2", "--dry-run")
    assert ran.code == 0
    assert "1×  Indeed" in ran.out
    assert "No pin was recorded" in ran.out
    assert "filed under" not in ran.out
    assert pins(cli, "--all") == []


def test_a_dry_run_gives_what_is_served_no_name_for_good(
    cli: Command, config: Path, server: StandIn, history: History, quick_looks: None
) -> None:
    assert cli("pin", "--reason", "a look", "--repeats", "1", "--dry-run").code == 0
    assert history.rows("SELECT digest FROM fingerprint") == []
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    server.state.version = "0.33.0"
    assert cli("pin", "--reason", "a look", "--repeats", "1", "--dry-run").code == 0
    assert len(history.rows("SELECT digest FROM fingerprint")) == 1
    assert (
        cli("history", "--json").json["samples"][-1]["fingerprint"] is None
    )  # not that of the first: the server is another one now


def test_a_new_pin_takes_the_place_of_the_old_one_which_is_kept(
    cli: Command, config: Path, server: StandIn
) -> None:
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    server.state.answers = {SKY: "It is"}
    told = cli("pin", "--reason", "second", "--repeats", "1")
    assert "replaces pin 1, which is kept" in told.out
    assert [(p["id"], p["reason"]) for p in pins(cli)] == [(2, "second")]
    assert [(p["id"], p["state"], p["outputs"][0]["text"]) for p in pins(cli, "--all")] == [
        (2, "holds", "It is"),
        (1, "ended", "Yes"),
    ]


def test_an_answer_that_the_probe_calls_wrong_is_1_and_the_old_pin_holds_on(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, sky=STRICT)
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    server.state.answers = {SKY: "No"}
    ran = cli("pin", "--reason", "second", "--repeats", "2")
    assert ran.code == 1
    assert "not pinned: expected 'Yes' in the answer, got 'No'" in ran.out
    assert [p["reason"] for p in pins(cli)] == ["first"]


def test_an_answer_of_one_token_for_ever_is_never_pinned(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, sky=PINNED.replace("max_tokens: 8", "max_tokens: 20"))
    server.state.answers = {SKY: "!" + " !" * 30}
    ran = cli("pin", "--reason", "first", "--repeats", "1")
    assert ran.code == 1
    assert "not pinned: one token is repeated: ' !'" in ran.out


def test_a_stream_that_breaks_pins_nothing_and_is_1(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.stream_fault = "no_done"
    ran = cli("pin", "--reason", "first", "--json")
    assert ran.code == 1
    assert [(p["probe"], p["pin"]) for p in ran.json["pins"]] == [("sky", None)]
    assert pins(cli) == []


def test_a_server_that_is_not_there_is_3(cli: Command, tmp_path: Path) -> None:
    write_config(tmp_path, "http://127.0.0.1:9", sky=PINNED)
    ran = cli("pin", "--reason", "first")
    assert (ran.code, ran.out) == (3, "")


def test_a_full_server_is_3(cli: Command, config: Path, server: StandIn) -> None:
    server.state.http_status = 503
    assert cli("pin", "--reason", "first").code == 3


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is looked at twice, but one after the other."""
    monkeypatch.setattr("monitor.daemon.identity.SECOND_READING_S", 0.0)


def judged(cli: Command) -> tuple[str, int, bool]:
    """Of a canary now: what it is filed under, the pin that it is judged by, and whether that is
    stale.
    """
    [sample] = cli("probe", "--json").json["samples"]
    return sample["fingerprint"], sample["pin"], sample["stale"]


def test_without_a_daemon_an_upgraded_server_is_pinned_anew_and_the_old_pin_is_kept_for_a_rollback(
    cli: Command, config: Path, server: StandIn, quick_looks: None
) -> None:
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    before = judged(cli)
    server.state.version, server.state.system_fingerprint = "0.33.0", "vllm-0.33.0-0badcafe"
    between = judged(cli)
    assert cli("pin", "--reason", "second", "--repeats", "1").code == 0
    after = judged(cli)
    [served] = cli("fingerprint", "--json").json["fingerprints"]
    assert [before[1:], between[1:], after[1:]] == [(1, False), (1, True), (2, False)]
    assert before[0] != between[0] == after[0] == served["digest"]
    assert [(p["id"], p["state"]) for p in pins(cli)] == [(2, "holds"), (1, "stale")]
    server.state.version, server.state.system_fingerprint = "0.32.0", "vllm-0.32.0-bf6c1f39"
    assert judged(cli) == before
    assert cli("incidents", "--json").json["incidents"] == []  # nobody is on watch


def test_an_address_alone_can_be_pinned_again_after_an_upgrade(
    cli: Command, server: StandIn, few_probes: None, quick_looks: None
) -> None:
    assert cli("probe", "--url", server.url, "chat-short").code == 0
    server.state.version = "0.33.0"
    assert (
        cli("pin", "chat-short", "--url", server.url, "--reason", "upgraded", "--repeats", "1").code
        == 0
    )


def test_a_server_that_only_its_answers_show_to_be_another_one_makes_its_pins_stale(
    cli: Command, config: Path, server: StandIn
) -> None:
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    server.state.system_fingerprint = "vllm-0.32.0-0badcafe"
    assert judged(cli)[1:] == (1, True)


def test_while_a_server_is_still_changing_it_is_not_pinned(
    cli: Command, config: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    lengths = iter((2048, 1024, 1024, 1024))

    async def moving(*known: Any) -> Any:
        server.state.max_model_len = next(lengths)
        return await identity.read_identity(*known)

    monkeypatch.setattr("monitor.daemon.identity.SECOND_READING_S", 0.0)
    monkeypatch.setattr("monitor.daemon.identity.read_identity", moving)
    server.state.requests.clear()
    ran = cli("pin", "--reason", "second")
    assert ran.code == 3
    assert "It is still changing; pin again when it is stable" in ran.err
    assert server.state.requests == []


def test_what_is_served_is_named_with_its_gpus_and_with_what_its_answers_say(
    cli: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = 'gpu="0",UUID="GPU-a",modelName="NVIDIA H100",DCGM_FI_DRIVER_VERSION="580.126.09"'
    text = f"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{{{labels}}} 54\n"
    exporter = httpx.MockTransport(lambda _request: httpx.Response(200, text=text))

    def slow_page(url: str, _xids: dict[str, int]) -> DcgmSession:
        time.sleep(0.5)  # longer than the first answer takes
        session = DcgmSession(url, httpx.Client(transport=exporter))
        session.open()
        return session

    monkeypatch.setattr("monitor.daemon.gpus.open_page", slow_page)
    config.write_text(
        config.read_text().replace("gpus: none", "gpus: {dcgm: http://gpu-1:9400/metrics}")
    )
    assert cli("pin", "--reason", "first", "--repeats", "1").code == 0
    [served] = cli("fingerprint", "--json").json["fingerprints"]
    known = {field["name"]: field["value"] for field in served["fields"]}
    assert known["gpu"][0]["uuid"] == "GPU-a"
    assert known["system_fingerprint"] == "vllm-0.32.0-bf6c1f39"
    assert [pin["fingerprint"] for pin in pins(cli)] == [served["digest"]]


def test_where_a_daemon_watches_a_changed_server_is_not_pinned_under_its_old_name(
    cli: Command, config: Path, server: StandIn, history: History
) -> None:
    now = datetime.now(UTC)
    names = {"max_model_len": 1024, "vllm_version": "0.32.0", "template_hash": None}
    fields = {n: FingerprintField(n, "root", v, "a test") for n, v in names.items()}

    def seen(connection: Any) -> None:
        target_id = record.ensure_target(connection, "local", server.url, now)
        record.note_schedule(connection, target_id, {"sky": 60.0})
        fingerprints.save(connection, target_id, digest(fields), fields, now)

    history.do(seen)
    ran = cli("pin", "--reason", "after the change")
    assert ran.code == 3
    assert "local differs from what the history knows of it (max_model_len 1024 → 4096)" in ran.err
    assert "`vllm-canary status` shows whether the daemon is running; start it" in ran.err
    assert server.state.requests == []
    assert judged(cli)[0] == digest(fields)
    server.state.max_model_len = 1024
    assert cli("pin", "--reason", "as it was", "--repeats", "1").code == 0
    assert [p["fingerprint"] for p in pins(cli)] == [digest(fields)]


def test_under_load_other_requests_run_beside_every_second_repeat(
    cli: Command, config: Path, server: StandIn
) -> None:
    assert cli("pin", "--reason", "first", "--repeats", "2", "--under-load").code == 0
    asked = [
        body.get("prompt") or body["messages"][0]["content"]
        for body in server.state.requests
        if "prompt_logprobs" not in body
    ]
    assert asked[0] == SKY  # the first has the server to itself
    assert {text for text in asked if text.startswith("Tell a long story")} == {
        f"Tell a long story, number {n}." for n in (0, 1)
    }


def test_json_is_one_object_with_the_pin_and_its_number(cli: Command, config: Path) -> None:
    ran = cli("pin", "--reason", "first", "--repeats", "1", "--json")
    assert list(ran.json) == ["pins"]
    [one] = ran.json["pins"]
    assert (one["target"], one["probe"], one["pin"]["id"]) == ("local", "sky", 1)


def test_an_answer_against_its_pin_passes_and_another_one_is_1_with_the_place(
    cli: Command, config: Path, server: StandIn
) -> None:
    assert cli("probe", "--json").json["samples"][0]["verdict"] == "unpinned"
    cli("pin", "--reason", "first", "--repeats", "2")
    [same] = cli("probe", "--json").json["samples"]
    assert (same["verdict"], same["pin"], same["stale"], same["first_divergence"]) == (
        "pass",
        1,
        False,
        None,
    )
    assert same["logprob_shift"] == pytest.approx(0.0)
    server.state.answers = {SKY: "No"}
    ran = cli("probe", "--json")
    [other] = ran.json["samples"]
    assert (ran.code, other["verdict"], other["first_divergence"]) == (1, "fail", 0)
    assert other["logprob_shift"] == pytest.approx(
        0.0
    )  # scored: the same weights would still give the pinned answer its old figures
    assert other["detail"] == (
        "expected 'Yes', got 'No' at token 1; the pinned token is no longer among the most likely"
    )
    shown = cli("show", str(other["id"])).out
    assert "⟪differs from here, token 1⟫ Yes" in shown


def test_a_longer_prompt_is_blamed_on_template_or_tokenizer(
    cli: Command, config: Path, server: StandIn
) -> None:
    cli("pin", "--reason", "first", "--repeats", "1")
    server.state.template_salt = "Be brief."
    [sample] = cli("probe", "--json").json["samples"]
    before, after = sample["prompt_tokens"] - 2, sample["prompt_tokens"]
    assert sample["detail"] == (
        f"the prompt has {after} tokens, pinned are {before}: the chat template or "
        "tokenizer changed"
    )


def test_an_answer_without_log_probabilities_is_not_pinned(
    cli: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "_logprobs", staticmethod(lambda job, tokens: None))
    ran = cli("pin", "--reason", "first")
    assert ran.code == 3
    assert "without log-probabilities" in ran.out


def test_another_answer_tells_how_far_the_pinned_one_moved_by_having_it_scored(
    cli: Command, config: Path, server: StandIn
) -> None:
    cli("pin", "--reason", "first", "--repeats", "2")
    server.state.answers, server.state.moved_nat = {SKY: "No"}, 0.25
    [other] = cli("probe", "--json").json["samples"]
    assert (other["verdict"], other["logprob_shift"]) == ("fail", pytest.approx(0.25))
    assert "prompt_logprobs" in server.state.requests[-1]


def test_where_the_budget_has_no_room_beside_the_schedule_nothing_is_scored(
    cli: Command, config: Path, server: StandIn
) -> None:
    cli("pin", "--reason", "first", "--repeats", "1")
    write_config(config.parent, server.url, "    token_budget_per_hour: 40\n", sky=PINNED)
    server.state.answers = {SKY: "No"}
    [other] = cli("probe", "--json").json["samples"]
    assert (other["verdict"], other["logprob_shift"]) == ("fail", None)


def test_while_others_are_served_nothing_is_scored(
    cli: Command, config: Path, server: StandIn
) -> None:
    cli("pin", "--reason", "first", "--repeats", "2")
    server.state.answers = {SKY: "No"}
    busy(server)
    [other] = cli("probe", "--json").json["samples"]
    assert (other["verdict"], other["logprob_shift"]) == ("fail", None)


def test_a_server_that_scores_otherwise_than_it_answers_has_that_in_the_noise_of_the_pin(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.moved_nat = 0.05
    cli("pin", "--reason", "first", "--repeats", "2")
    assert pins(cli)[0]["noise_nat"] == pytest.approx(0.05)


def test_a_pin_that_moves_by_itself_as_far_as_other_weights_would_is_said_to_be_of_no_use_for_that(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.moved_nat = 1.9
    ran = cli("pin", "--reason", "first", "--repeats", "2", "--json")
    assert ran.code == 0
    assert "vary by 1.90 nat without any change, more than 0.3 nat" in ran.json["pins"][0]["note"]


def test_a_server_that_does_not_take_the_likeliest_token_is_told_at_pinning(
    cli: Command, config: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(job: Any, tokens: Any) -> Any:
        found = ORIGINAL_LOGPROBS(job, tokens)
        if found is not None and job.sent == 0:
            found["content"][0]["top_logprobs"][1] = {
                "token": "No",
                "logprob": found["content"][0]["logprob"] + 2.0,
                "bytes": [],
            }
        return found

    monkeypatch.setattr(StandIn, "_logprobs", staticmethod(sampled))
    [one] = cli("pin", "--reason", "first", "--repeats", "1", "--json").json["pins"]
    assert "the server chose a token that was 2.00 nat less likely than another" in one["note"]


def test_a_pin_before_the_daemon_ever_ran_is_filed_under_what_is_served(
    cli: Command, config: Path
) -> None:
    [one] = cli("pin", "--reason", "first", "--repeats", "1", "--json").json["pins"]
    assert one["note"] == ""
    [served] = cli("fingerprint", "--json").json["fingerprints"]
    assert [pin["fingerprint"] for pin in cli("pins", "--json").json["pins"]] == [served["digest"]]
    assert cli("incidents", "--json").json["incidents"] == []  # the first identity is no change


def uncertain(job: Any, tokens: Any) -> Any:
    """Log-probabilities of a server for which "Yes" would have been 0.02 nat less likely than what
    it said first.
    """
    found = ORIGINAL_LOGPROBS(job, tokens)
    if found is not None and job.sent == 0 and tokens[0].text != "Yes":
        entry = found["content"][0]
        entry["top_logprobs"][1] = {"token": "Yes", "logprob": entry["logprob"] - 0.02, "bytes": []}
    return found


ORIGINAL_LOGPROBS = StandIn._logprobs


def test_a_near_tie_is_decided_by_one_more_run_which_is_marked_as_a_retry(
    cli: Command, config: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("pin", "--reason", "first", "--repeats", "2")
    monkeypatch.setattr(StandIn, "_logprobs", staticmethod(uncertain))
    server.state.answers = Alternating("Yeah", "Yes")
    ran = cli("probe", "--json")
    tie, decided = ran.json["samples"]
    assert (ran.code, tie["verdict"], decided["verdict"]) == (0, "near_tie", "pass")
    assert tie["detail"] == "expected 'Yes', got 'Yeah' at token 1, 0.020 nat apart: a near tie"
    shown = cli("show", str(decided["id"])).out
    assert f"{tie['id']}, to decide its near tie" in shown.split("retry of", 1)[1].splitlines()[0]
    assert [
        cli("show", str(s["id"]), "--json").json["samples"][0]["retry_of"] for s in (tie, decided)
    ] == [None, tie["id"]]


def test_a_near_tie_while_others_are_served_is_not_asked_again(
    cli: Command, config: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("pin", "--reason", "first", "--repeats", "2")
    monkeypatch.setattr(StandIn, "_logprobs", staticmethod(uncertain))
    server.state.answers = {SKY: "Yeah"}
    busy(server)
    assert [s["verdict"] for s in cli("probe", "--json").json["samples"]] == ["near_tie"]
