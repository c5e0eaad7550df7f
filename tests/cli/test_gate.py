"""`gate`: a server that is not yet live, judged by production's pins; the exit code is what a
deployment script reads.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from histories import History, a_sample
from sqlalchemy import Connection
from standin import Job, Json, StandIn, Token

from monitor.judge.identity import digest
from monitor.model import FingerprintField
from monitor.store import fingerprints, record

from .conftest import PROBE, Command, write_config

SKY = "Is the sky blue? Answer yes or no."
COUNT = "Count from one to thirty in words."
PINNED = PROBE.replace('  - contains: "Yes"', "  - pinned: true") + "sampling:\n  logprobs: 5\n"


class Uncertain(StandIn):
    """Its first token could as well have been another one: `other` came `gap_nat` behind it."""

    other, gap_nat = "Yes", 0.02

    def _logprobs(self, job: Job, tokens: list[Token]) -> Json | None:  # type: ignore[override]
        found: Json | None = StandIn._logprobs(job, tokens)
        if found is not None and tokens[0].text != self.other and job.sent == 0:
            entry = found["content"][0]
            entry["top_logprobs"][1] = {
                "token": self.other,
                "logprob": entry["logprob"] - self.gap_nat,
                "bytes": [],
            }
        return found


Serve = Callable[..., StandIn]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts more servers on a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running: list[StandIn] = []

    def start(kind: type[StandIn] = StandIn, **fields: Any) -> StandIn:
        made = kind(**({"ttft_s": 0.002, "itl_s": 0.0002} | fields))
        asyncio.run_coroutine_threadsafe(made.start(), loop).result(5)
        running.append(made)
        return made

    yield start
    for server in running:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


@pytest.fixture
def pinned(cli: Command, history: History, server: StandIn, tmp_path: Path) -> Path:
    """Production is pinned."""
    config = write_config(tmp_path, server.url, sky=PINNED)
    assert cli("pin", "--reason", "checked", "--repeats", "3").code == 0
    return config


@pytest.fixture
def well_pinned(cli: Command, server: StandIn, tmp_path: Path) -> Path:
    """Production is pinned by as many probes and repeats as the test of the model shift asks
    for.
    """
    config = write_config(tmp_path, server.url, **dict.fromkeys("abcd", PINNED))
    assert cli("pin", "--reason", "checked", "--repeats", "5").code == 0
    return config


def gate(cli: Command, candidate: StandIn, *words: str) -> tuple[int, Json]:
    """Exit code and verdict."""
    ran = cli(
        "gate", "--url", candidate.url, "--against", "local", "--rounds", "2", *words, "--json"
    )
    assert list(ran.json) == ["gate"]
    return ran.code, ran.json["gate"]


def test_a_candidate_that_answers_alike_is_0(cli: Command, well_pinned: Path, serve: Serve) -> None:
    candidate = serve()
    code, found = gate(cli, candidate)
    assert (code, found["regressed"], found["candidate"], found["against"]) == (
        0,
        False,
        candidate.url,
        "local",
    )
    counts = [
        (p["probe"], p["passed"], p["near_ties"], p["failed"], p["of"]) for p in found["probes"]
    ]
    assert counts == [(name, 2, 0, 0, 2) for name in "abcd"]
    assert found["shift"]["shifted"] is False
    [unjudged] = found["notes"]  # an answer of one token has no decode rate
    assert unjudged.startswith(
        "the decode rate was not judged: it requires answers of 32 tokens or more"
    )
    assert len(candidate.state.requests) == 4 * 3  # the first round is not counted: it may be cold


def test_good_answers_are_3_where_the_model_shift_could_not_be_tested(
    cli: Command, pinned: Path, serve: Serve
) -> None:
    code, found = gate(cli, serve())
    assert (code, found["regressed"], found["probes"][0]["passed"]) == (3, None, 2)
    assert "the pins of 1 of 1 probes can be used" in found["notes"][0]
    ran = cli("gate", "--url", serve().url, "--against", "local", "--rounds", "1")
    assert ran.code == 3
    assert "the model shift was not tested" in ran.out
    assert "use --rounds 2 or more" in ran.out
    assert "could not be measured or judged" in ran.out


def test_weights_that_moved_are_1_although_every_answer_is_right(
    cli: Command, history: History, well_pinned: Path, serve: Serve
) -> None:
    def moved(connection: Connection) -> None:
        for row in connection.exec_driver_sql("SELECT id, logprobs FROM pin_output").all():
            values = json.dumps([value - 0.5 for value in json.loads(row.logprobs)])
            connection.exec_driver_sql(
                "UPDATE pin_output SET logprobs = ? WHERE id = ?", (values, row.id)
            )

    history.do(moved)
    code, found = gate(cli, serve())
    assert (code, found["shift"]["shifted"], [p["regressed"] for p in found["probes"]]) == (
        1,
        True,
        [False] * 4,
    )


def test_pins_that_are_stale_for_production_itself_are_named(
    cli: Command, history: History, well_pinned: Path, serve: Serve
) -> None:
    before, now = (
        {"max_model_len": FingerprintField("max_model_len", "root", n, "a test")}
        for n in (1024, 4096)
    )

    def changed(connection: Connection) -> None:
        target_id = record.ensure_target(
            connection, "local", "http://127.0.0.1:9", datetime.now(UTC)
        )
        first = fingerprints.save(connection, target_id, digest(before), before, datetime.now(UTC))
        fingerprints.save(connection, target_id, digest(now), now, datetime.now(UTC))
        connection.exec_driver_sql(f"UPDATE pin SET fingerprint_id = {first}")

    history.do(changed)
    code, found = gate(cli, serve())
    assert code == 0
    assert found["notes"][-1] == (
        "the pins of a, b, c, d are stale: local has changed since they were recorded and may "
        'itself answer differently; `vllm-canary pin --target local --reason "…"` records new ones'
    )


def test_another_answer_is_1_and_names_the_place(cli: Command, pinned: Path, serve: Serve) -> None:
    code, found = gate(cli, serve(answers={SKY: "No"}))
    assert (code, found["regressed"]) == (1, True)
    [probe] = found["probes"]
    assert (probe["failed"], probe["of"]) == (2, 2)
    assert probe["reason"].startswith("expected 'Yes', got 'No' at token 1")


def test_a_near_tie_that_flips_is_no_regression(
    cli: Command, well_pinned: Path, serve: Serve
) -> None:
    code, found = gate(cli, serve(Uncertain, answers={SKY: "Yeah"}))
    assert (code, [(p["near_ties"], p["failed"]) for p in found["probes"]]) == (0, [(2, 0)] * 4)


def test_differing_root_fields_are_named(
    cli: Command, pinned: Path, server: StandIn, serve: Serve, history: History
) -> None:
    fields = {
        n: FingerprintField(n, "root", v, "a test")
        for n, v in {"max_model_len": 4096, "vllm_version": "0.32.0"}.items()
    }

    def known(connection: Connection) -> None:
        now = datetime.now(UTC)
        fingerprints.save(
            connection,
            record.ensure_target(connection, "local", server.url, now),
            digest(fields),
            fields,
            now,
        )

    history.do(known)
    candidate = serve(max_model_len=2048)
    _, found = gate(cli, candidate)
    assert found["differences"] == [{"field": "max_model_len", "before": 4096, "after": 2048}]
    ran = cli("gate", "--url", candidate.url, "--against", "local", "--rounds", "1")
    assert "differs: max_model_len: 4096 → 2048" in ran.out


def test_a_longer_prompt_is_1_and_blames_template_or_tokenizer(
    cli: Command, pinned: Path, serve: Serve
) -> None:
    code, found = gate(cli, serve(template_salt="Be brief."))
    assert code == 1
    assert found["probes"][0]["reason"].endswith("chat template or tokenizer changed")


def test_a_stream_that_breaks_is_1(cli: Command, pinned: Path, serve: Serve) -> None:
    code, found = gate(cli, serve(stream_fault="no_done"))
    assert (code, found["probes"][0]["failed"]) == (1, 2)


def test_speed_stands_beside_production_and_much_slower_decoding_is_1(
    cli: Command, server: StandIn, serve: Serve, tmp_path: Path
) -> None:
    answer = " ".join(f"word{number}" for number in range(40))
    server.state.answers = {SKY: answer}
    write_config(tmp_path, server.url, sky=PINNED.replace("max_tokens: 8", "max_tokens: 60"))
    cli("pin", "--reason", "checked", "--repeats", "6")
    code, found = gate(cli, serve(answers={SKY: answer}, itl_s=0.02))
    [probe] = found["probes"]
    assert (code, probe["passed"]) == (1, 2)
    assert probe["decode_tok_s"] < 50 < probe["decode_tok_s_against"]
    assert "tokens/s" in probe["reason"]
    assert "% less than production's" in probe["reason"]
    assert probe["of_against"] == 0  # production's samples from before its pin were judged by none


def test_a_short_answer_that_crawls_is_1(
    cli: Command, server: StandIn, serve: Serve, tmp_path: Path
) -> None:
    answer = " ".join(f"word{number}" for number in range(12))
    server.state.answers = {SKY: answer}
    write_config(tmp_path, server.url, sky=PINNED.replace("max_tokens: 8", "max_tokens: 60"))
    cli("pin", "--reason", "checked", "--repeats", "6")
    ran = cli("gate", "--url", serve(answers={SKY: answer}, itl_s=0.05).url, "--against", "local")
    assert ran.code == 1
    assert "% of production's rate, in the median of 3 short answers" in " ".join(ran.out.split())


def test_the_probe_of_a_fixed_length_is_asked_for_its_speed_although_it_has_no_pin(
    cli: Command, history: History, well_pinned: Path, serve: Serve
) -> None:
    fixed = PROBE.replace(
        "max_tokens: 8", "max_tokens: 40\nsampling:\n  ignore_eos: true\n  min_tokens: 40"
    ).replace(SKY, COUNT)
    (well_pinned.parent / "probes" / "fixed.yaml").write_text(fixed)
    history.samples(
        [
            a_sample(
                probe="fixed",
                started_at=datetime.now(UTC),
                decode_tok_s=100.0,
                completion_tokens=40,
            )
        ]
        * 4
    )
    answers = {SKY: "Yes", COUNT: "one two three"}
    code, found = gate(cli, serve(answers=answers, itl_s=0.002))
    alone = found["probes"][-1]
    assert (code, found["notes"], found["shift"]["probes"]) == (0, [], 4)
    assert (alone["probe"], alone["speed_only"], alone["passed"], alone["regressed"]) == (
        "fixed",
        True,
        0,
        False,
    )
    code, found = gate(cli, serve(answers=answers, itl_s=0.02))
    assert (code, [p["probe"] for p in found["probes"] if p["regressed"]]) == (1, ["fixed"])
    assert "tokens/s in answers of 32 tokens or more" in found["probes"][-1]["reason"]
    row = next(
        line
        for line in cli(
            "gate", "--url", serve(answers=answers).url, "--against", "local"
        ).out.splitlines()
        if "fixed" in line
    )
    assert row.split()[:5] == ["fixed", "–", "–", "0", "–"]  # no pin was asked, which is not zero


def test_a_first_token_that_comes_much_later_is_1(
    cli: Command, server: StandIn, serve: Serve, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, sky=PINNED)
    cli("pin", "--reason", "checked", "--repeats", "6")
    code, found = gate(cli, serve(ttft_s=0.5))
    assert code == 1
    assert found["probes"][0]["reason"].startswith("time to first token 5")


# ---- could not be measured


def test_nobody_there_is_3(cli: Command, pinned: Path) -> None:
    ran = cli("gate", "--url", "http://127.0.0.1:9", "--against", "local")
    assert (ran.code, ran.out) == (3, "")


def test_a_full_server_is_3_and_says_so(cli: Command, pinned: Path, serve: Serve) -> None:
    code, found = gate(cli, serve(http_status=503))
    [probe] = found["probes"]
    assert (code, found["regressed"], probe["regressed"]) == (3, None, None)
    assert "busy" in probe["reason"]
    ran = cli("gate", "--url", serve(http_status=503).url, "--against", "local", "--rounds", "1")
    assert "could not be measured" in ran.out


def test_one_probe_that_could_not_be_judged_is_3_although_the_other_one_is_good(
    cli: Command, server: StandIn, serve: Serve, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, a=PINNED, b=PINNED)
    cli("pin", "--reason", "checked", "--repeats", "1")
    write_config(tmp_path, server.url, a=PINNED, b=PINNED.replace("max_tokens: 8", "max_tokens: 9"))
    code, found = gate(cli, serve())
    assert code == 3
    assert [(p["passed"], p["regressed"]) for p in found["probes"]] == [(2, False), (0, None)]
    assert found["probes"][1]["reason"] == (
        "the probe's text is not the one that was pinned; record a new pin"
    )


# ---- cannot be asked like this


@pytest.mark.parametrize(
    "words", [("--rounds", "0"), ("--against", "remote"), ("--url", "nonsense")]
)
def test_what_makes_no_sense_is_2_and_nothing_is_sent(
    words: tuple[str, ...], cli: Command, pinned: Path, serve: Serve
) -> None:
    candidate = serve()
    ran = cli("gate", "--url", candidate.url, "--against", "local", *words)
    assert (ran.code, ran.out) == (2, "")
    assert candidate.state.requests == []


def test_a_target_without_pins_is_2_with_the_command_that_records_some(
    cli: Command, server: StandIn, serve: Serve, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, sky=PINNED)
    cli("probe")
    ran = cli("gate", "--url", serve().url, "--against", "local")
    assert ran.code == 2
    assert "vllm-canary pin --target local --reason" in ran.err


@pytest.mark.parametrize("broken", ["regex: '['", "json_schema: {type: nonsense}"])
def test_a_broken_condition_is_2_with_its_line_and_nothing_is_sent(
    broken: str, cli: Command, pinned: Path, serve: Serve
) -> None:
    (pinned.parent / "probes" / "sky.yaml").write_text(PINNED.replace("pinned: true", broken))
    candidate = serve()
    ran = cli("gate", "--url", candidate.url, "--against", "local")
    assert ran.code == 2
    assert "probes/sky.yaml:8: " in ran.err
    assert candidate.state.requests == []


def test_a_wrong_key_is_2_and_productions_key_is_used(
    cli: Command, server: StandIn, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TEST_KEY", "sk-right")
    server.state.api_key = "sk-right"
    write_config(tmp_path, server.url, "    api_key_env: CANARY_TEST_KEY\n", sky=PINNED)
    cli("pin", "--reason", "checked", "--repeats", "1")
    assert [p["passed"] for p in gate(cli, serve(api_key="sk-right"))[1]["probes"]] == [2]
    assert cli("gate", "--url", serve(api_key="sk-other").url, "--against", "local").code == 2


def test_an_address_alone_is_enough_where_there_is_no_configuration(
    cli: Command, server: StandIn, serve: Serve, few_probes: None
) -> None:
    cli("pin", "--url", server.url, "--reason", "checked", "--repeats", "1", "chat-short")
    name = server.url.removeprefix("http://")
    ran = cli("gate", "--url", serve().url, "--against", name, "--rounds", "1", "--json")
    assert [(p["probe"], p["passed"]) for p in ran.json["gate"]["probes"]] == [("chat-short", 1)]
    assert cli("gate", "--url", serve().url, "--against", "elsewhere").code == 2
