"""One watched server, from what is seen on it to the stored sample: process starts, phases, budget,
and what is kept over a restart.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import standin as standin_module
from histories import History, a_probe
from standin import StandIn

from monitor.config.target import TargetSettings
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.target import Skipped
from monitor.daemon.watch import TargetWatch
from monitor.judge import phase
from monitor.judge.quality.pinned import PinJudgement
from monitor.model import Expectation, Outcome, Phase, Pin, PinnedOutput, Probe, Sample, Verdict
from monitor.store import queries
from monitor.store.database import open_writer
from monitor.store.queries import SampleFilter
from monitor.store.writer import Writer

PLAIN = a_probe("plain")
LOGPROBS = a_probe(
    "logprobs", sampling={"temperature": 0.0, "seed": 0, "logprobs": 5}, revision="logprobs"
)
START = "process_start_time_seconds"
STEPS = "vllm:iteration_tokens_total"
Opened = Callable[..., Awaitable[TargetWatch]]


@pytest.fixture
def quick(standin: StandIn) -> StandIn:
    """A stand-in that answers at once."""
    standin.state.ttft_s, standin.state.itl_s = 0.003, 0.001
    return standin


@pytest.fixture
async def opened(quick: StandIn, history: History) -> AsyncIterator[Opened]:
    """Opens a watch as a daemon does when it starts; a second one is the daemon after a restart."""
    writer = Writer(open_writer(history.database))
    watches: list[TargetWatch] = []

    async def open_one(*probes: Probe, **settings: Any) -> TargetWatch:
        target = TargetSettings.model_validate(
            {"name": "local", "url": quick.url, "gpus": "none", **settings}
        )
        watch = TargetWatch(target, probes or (PLAIN, LOGPROBS), writer, TargetGpus(None, "none"))
        await watch.load()
        watches.append(watch)
        return watch

    yield open_one
    for watch in watches:
        await watch.close()
    await asyncio.to_thread(writer.close)


async def sampled(watch: TargetWatch, probe: Probe = PLAIN) -> Sample:
    """One canary, stored."""
    done = await watch.run(probe)
    assert not isinstance(done, Skipped)
    measured, stored = done
    await asyncio.wrap_future(stored)
    return measured.sample


async def phases(watch: TargetWatch, *probes: Probe) -> list[str]:
    """The phase of each canary, one after the other."""
    return [(await sampled(watch, probe)).phase.value for probe in probes]


async def test_the_first_answer_of_each_parameter_set_is_cold_and_only_the_first(
    opened: Opened,
) -> None:
    watch = await opened()
    assert await phases(watch, PLAIN, PLAIN, LOGPROBS, LOGPROBS, PLAIN) == [
        "cold",
        "warm",
        "cold",
        "warm",
        "warm",
    ]


async def test_a_restart_of_the_daemon_is_not_cold(opened: Opened) -> None:
    await phases(await opened(), PLAIN, LOGPROBS)
    again = await opened()
    assert "cold" not in await phases(again, PLAIN, LOGPROBS)


async def test_a_restart_of_the_server_is_cold_again(opened: Opened, quick: StandIn) -> None:
    watch = await opened()
    await phases(watch, PLAIN, PLAIN)
    quick.restart()
    assert await phases(watch, PLAIN, PLAIN) == ["cold", "warm"]


async def test_a_restart_of_the_server_while_the_daemon_was_away_is_cold_too(
    opened: Opened, quick: StandIn
) -> None:
    await phases(await opened(), PLAIN)
    quick.restart()
    assert await phases(await opened(), PLAIN) == ["cold"]


async def test_a_first_canary_that_gets_no_answer_leaves_the_next_cold(
    opened: Opened, quick: StandIn
) -> None:
    watch = await opened()
    quick.state.http_status = 500
    assert (await sampled(watch)).phase is Phase.COLD
    quick.state.http_status = 200
    assert await phases(watch, PLAIN, PLAIN) == ["cold", "warm"]


async def test_a_server_that_tells_no_start_and_was_away_has_been_started_anew(
    opened: Opened, quick: StandIn
) -> None:
    quick.state.hide_metrics = [START]
    watch = await opened()
    assert await phases(watch, PLAIN, PLAIN) == ["cold", "warm"]
    await quick.stop()
    await sampled(watch)
    quick.restart()
    await quick.start()
    assert await phases(watch, PLAIN, PLAIN) == ["cold", "warm"]


async def test_a_server_that_tells_no_start_and_whose_counters_fell_has_been_started_anew(
    opened: Opened, quick: StandIn
) -> None:
    quick.state.hide_metrics = [START]
    watch = await opened()
    await phases(watch, PLAIN, PLAIN, PLAIN)
    quick.restart()
    assert await phases(watch, PLAIN, PLAIN) == ["cold", "warm"]


async def test_a_server_that_tells_no_start_is_known_again_after_a_restart_of_the_daemon(
    opened: Opened, quick: StandIn
) -> None:
    quick.state.hide_metrics = [START]
    first = await opened()
    await phases(first, PLAIN)
    await first.store_reading()
    again = await opened()
    assert "cold" not in await phases(again, PLAIN)


async def test_each_start_is_one_row_and_samples_point_to_theirs(
    opened: Opened, quick: StandIn, history: History
) -> None:
    watch = await opened()
    first = await sampled(watch)
    await sampled(watch)
    quick.restart(process_start=quick.state.process_start + 100)
    second = await sampled(watch)
    assert first.process_start is not None
    assert second.process_start is not None
    assert (second.process_start - first.process_start).total_seconds() == pytest.approx(
        100, abs=0.01
    )
    stored = history.do(lambda c: queries.samples(c, SampleFilter()))
    assert [s.process_start for s in stored] == [
        first.process_start,
        first.process_start,
        second.process_start,
    ]
    assert history.rows("SELECT count(*) AS n FROM process_start") == [{"n": 2}]


async def test_the_first_after_a_silence_is_idle_and_the_next_warm(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase, "IDLE_AFTER_S", 1.0)
    watch = await opened()
    await phases(watch, PLAIN, PLAIN)
    await asyncio.sleep(1.1)
    idle = await sampled(watch)
    assert idle.phase is Phase.IDLE
    assert idle.idle_before_s is not None
    assert 1.1 <= idle.idle_before_s < 10
    assert await phases(watch, PLAIN) == ["warm"]


async def test_work_for_others_keeps_it_warm(
    opened: Opened, quick: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase, "IDLE_AFTER_S", 1.0)
    watch = await opened()
    await phases(watch, PLAIN)
    for _ in range(5):
        await asyncio.sleep(0.3)
        quick.counters.step(0, 1)
        await watch.store_reading()
    assert await phases(watch, PLAIN) == ["warm"]


async def test_without_a_step_counter_idle_is_told_by_our_own_canaries(
    opened: Opened, quick: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase, "IDLE_AFTER_S", 1.0)
    quick.state.hide_metrics = [STEPS]
    watch = await opened()
    await phases(watch, PLAIN)
    assert (await sampled(watch)).idle_before_s is None
    await asyncio.sleep(1.1)
    assert await phases(watch, PLAIN) == ["idle"]


async def test_a_spent_budget_sends_nothing_and_is_counted_with_its_reason(
    opened: Opened, quick: StandIn, history: History
) -> None:
    watch = await opened(token_budget_per_hour=50)
    told: list[tuple[str, str, int]] = []
    watch.on_skip = lambda *what: told.append(what)
    await sampled(watch)
    await sampled(watch)
    before = len(quick.state.requests)
    skipped = await watch.run(PLAIN)
    assert isinstance(skipped, Skipped)
    assert "50 tokens an hour" in skipped.reason
    assert len(quick.state.requests) == before
    assert told == [("local", "token_budget", 1)]
    await asyncio.wrap_future(watch.writer.submit(lambda _: None))
    assert history.rows("SELECT probe, reason, count FROM skipped_run") == [
        {"probe": "plain", "reason": "token_budget", "count": 1}
    ]


async def test_a_restart_does_not_give_the_budget_back(opened: Opened) -> None:
    first = await opened(token_budget_per_hour=50)
    await sampled(first)
    await sampled(first)
    again = await opened(token_budget_per_hour=50)
    await again.run(PLAIN)  # how long its prompt is, is learnt with its first answer
    assert isinstance(await again.run(PLAIN), Skipped)


async def test_what_is_learnt_of_a_server_makes_no_pin_of_it_stale(
    opened: Opened, quick: StandIn
) -> None:
    probe = a_probe("pinned", pinned=True)
    quick.state.system_fingerprint = None
    first = await opened(probe)
    await sampled(first, probe)
    answered = PinnedOutput("Yes", ("Yes",), (1,), (-0.1,), "stop", 1)
    now = datetime.now(UTC)
    pin = Pin(
        0,
        "local",
        "pinned",
        "first",
        None,
        "checked",
        "me",
        now,
        now + timedelta(days=30),
        (answered,),
        None,
        None,
    )
    await first.store_pin(pin)
    watch = await opened(probe)
    before = await sampled(watch, probe)
    quick.state.system_fingerprint = "vllm-0.32.0-bf6c1f39"
    after = await sampled(watch, probe)
    assert before.fingerprint != after.fingerprint
    assert [(s.pin, s.stale) for s in (before, after)] == [(1, False)] * 2


async def test_a_verdict_is_kept_with_the_sentence_that_explains_it(
    opened: Opened, history: History
) -> None:
    good = a_probe("good", expect=(Expectation(contains="Yes"),), revision="good")
    bad = a_probe("bad", expect=(Expectation(contains="No"),), revision="bad")
    watch = await opened(good, bad)
    assert (await sampled(watch, good)).verdict is Verdict.PASS
    failed = await sampled(watch, bad)
    assert failed.verdict is Verdict.FAIL
    rows = history.rows("SELECT verdict, detail FROM sample ORDER BY id")
    assert rows == [
        {"verdict": "pass", "detail": None},
        {"verdict": "fail", "detail": "expected 'No' in the answer, got 'Yes'"},
    ]


async def test_a_server_that_is_gone_is_a_refused_sample_with_its_sentence(
    opened: Opened, quick: StandIn, history: History
) -> None:
    watch = await opened()
    await quick.stop()
    assert (await sampled(watch)).outcome is Outcome.REFUSED
    [row] = history.rows("SELECT outcome, detail, ttft_ms FROM sample")
    assert (row["outcome"], row["ttft_ms"]) == ("refused", None)
    assert row["detail"].startswith("no connection")


async def test_a_sleeping_server_is_asked_nothing(opened: Opened, quick: StandIn) -> None:
    watch = await opened()
    quick.state.sleeping = True
    assert (await sampled(watch)).outcome is Outcome.ASLEEP
    assert quick.state.requests == []


async def test_a_canary_that_is_cut_short_by_the_end_of_the_daemon_is_kept_as_cancelled(
    opened: Opened, quick: StandIn, history: History
) -> None:
    watch = await opened()
    quick.state.ttft_s = 30.0
    running = asyncio.create_task(watch.run(PLAIN))
    while not quick.state.requests:
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wrap_future(watch.writer.submit(lambda _: None))
    assert history.rows("SELECT outcome FROM sample") == [{"outcome": "cancelled"}]


async def test_a_reading_is_stored_between_canaries_also_when_nobody_answers(
    opened: Opened, quick: StandIn, history: History
) -> None:
    watch = await opened()
    quick.state.other_running = 3
    await watch.store_reading()
    await quick.stop()
    await watch.store_reading()
    await asyncio.wrap_future(watch.writer.submit(lambda _: None))
    assert history.rows("SELECT state, running FROM server_reading ORDER BY id") == [
        {"state": "ok", "running": 3.0},
        {"state": "refused", "running": None},
    ]


async def test_two_that_notice_a_start_at_the_same_moment_write_it_once(
    opened: Opened, quick: StandIn, history: History
) -> None:
    watch = await opened()
    await watch.read_page()
    quick.restart(process_start=quick.state.process_start + 100)
    await asyncio.gather(*(watch.read_page() for _ in range(5)))
    assert history.rows("SELECT count(*) AS n FROM process_start") == [{"n": 2}]


async def test_the_same_probe_text_has_one_revision_over_restarts(
    opened: Opened, history: History
) -> None:
    await opened()
    await opened()
    assert history.rows("SELECT count(*) AS n FROM probe_revision") == [{"n": 2}]


async def test_half_a_surrogate_pair_in_an_answer_loses_neither_the_sample_nor_the_json(
    opened: Opened, quick: StandIn, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        standin_module, "compact", lambda value: json.dumps(value).replace("HALF", "\\ud83d")
    )
    quick.state.answers = {"Is the sky blue? Answer yes or no.": "Yes HALF no"}
    sample = await sampled(await opened())
    assert sample.outcome is Outcome.OK
    json.dumps(sample.output, ensure_ascii=False).encode()
    assert history.rows("SELECT text FROM output") == [{"text": "Yes \ufffd no"}]


async def test_half_a_surrogate_pair_in_an_error_is_a_sample_like_any_other(
    opened: Opened, quick: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        standin_module, "compact", lambda value: json.dumps(value).replace("busy", "\\ud83d")
    )
    quick.state.http_status = 503
    assert (await sampled(await opened())).outcome is Outcome.REJECTED


class Suspicious:
    """Drift detection that suspects something, or not."""

    suspects = True


async def test_while_something_is_suspected_a_probe_runs_more_often_and_pays_from_the_reserve(
    opened: Opened,
) -> None:
    often = a_probe("plain", every_s=0.4)
    watch = await opened(often, token_budget_per_hour=1000)
    watch.drift = Suspicious()  # type: ignore[assignment]
    assert watch.extras() == []  # before its first scheduled run
    await watch.run_all(often)
    scheduled = watch.ledger.spent(datetime.now(UTC), extra=False)
    assert scheduled > 0
    await asyncio.sleep(0.15)
    assert watch.extras() == [often]
    assert watch.extras() == []  # it is on its way
    await watch.run_all(often)
    now = datetime.now(UTC)
    assert (watch.ledger.spent(now, extra=False), watch.ledger.spent(now, extra=True)) == (
        scheduled,
        scheduled,
    )
    watch.drift.suspects = False  # type: ignore[union-attr]
    await asyncio.sleep(0.15)
    assert watch.extras() == []


async def test_a_reserve_that_is_spent_ends_the_extra_runs_and_not_the_scheduled_ones(
    opened: Opened,
) -> None:
    often = a_probe("plain", every_s=0.04)
    watch = await opened(often, token_budget_per_hour=500)
    watch.drift = Suspicious()  # type: ignore[assignment]
    watch.ledger.note(often, datetime.now(UTC), 95, 0, extra=True)
    await watch.run_all(often)
    await asyncio.sleep(0.05)
    assert watch.extras() == []
    assert isinstance(await watch.run_all(often), list)


# ---- whatever the server answers, the sample is stored and the watch goes on


def expecting(**condition: Any) -> Probe:
    return a_probe("plain", expect=(Expectation(**condition),), revision="expecting")


async def test_json_without_end_is_a_failed_answer_like_any_other(
    opened: Opened, quick: StandIn, history: History
) -> None:
    quick.state.answers = {"Is the sky blue? Answer yes or no.": "[" * 2000}
    probe = expecting(json_fields={"vendor": "Acme"})
    await sampled(await opened(probe), probe)
    [row] = history.rows("SELECT outcome, verdict, detail FROM sample")
    assert (row["outcome"], row["verdict"]) == ("ok", "fail")
    assert row["detail"].startswith("the JSON is nested too deeply to parse")


async def test_what_a_judge_trips_over_is_stored_as_unknown_with_its_reason(
    opened: Opened, quick: StandIn, history: History
) -> None:
    quick.state.answers = {"Is the sky blue? Answer yes or no.": "{}"}
    probe = expecting(json_schema={"$ref": "#/nowhere"})
    await sampled(await opened(probe), probe)
    [row] = history.rows("SELECT verdict, detail FROM sample")
    assert row["verdict"] == "unknown"
    assert row["detail"].startswith("the answer could not be judged")


async def test_a_megabyte_in_a_field_is_a_short_and_printable_detail(
    opened: Opened, quick: StandIn, history: History
) -> None:
    value = json.dumps(
        {"vendor": "\x1b]0;owned\x07\nWARNING target=local all is well" + "x" * 900_000}
    )
    quick.state.answers = {"Is the sky blue? Answer yes or no.": value}
    probe = expecting(json_fields={"vendor": "Acme"})
    watch = await opened(probe)
    done = await watch.run(probe)
    assert not isinstance(done, Skipped)
    await asyncio.wrap_future(done[1])
    [row] = history.rows("SELECT detail FROM sample")
    assert row["detail"] == done[0].detail
    assert row["detail"].isprintable()
    assert len(row["detail"]) <= 400


@pytest.mark.parametrize(
    ("where", "outcome"),
    [
        ("monitor.measure.canary.stream", "malformed"),
        ("monitor.daemon.server_state.judge_start", "ok"),
        ("monitor.daemon.server.models", "ok"),
        ("monitor.measure.server.metrics_page.looks_like_metrics", "ok"),
    ],
)
async def test_a_fault_of_ours_that_an_answer_brings_out_costs_one_answer_at_most(
    where: str, outcome: str, opened: Opened, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OverflowError("a figure that nobody has thought of")

    watch = await opened()
    monkeypatch.setattr(where, fails)
    stored = await sampled(watch)
    assert stored.outcome.value == outcome
    await watch.store_reading()
    monkeypatch.undo()
    await sampled(watch)
    assert [row["outcome"] for row in history.rows("SELECT outcome FROM sample ORDER BY id")] == [
        outcome,
        "ok",
    ]


async def test_a_score_that_cannot_be_read_leaves_the_shift_unknown_and_the_sample_stored(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise TypeError("unsupported operand")

    watch = await opened()
    monkeypatch.setattr("monitor.daemon.watch.scored_shift", fails)
    monkeypatch.setattr("monitor.daemon.watch.was_alone", lambda _: True)
    pinned = SimpleNamespace(id=None, outputs=[None])
    watch.pins = [pinned]  # type: ignore[list-item]
    monkeypatch.setattr("monitor.daemon.watch.pin_for", lambda *_: (None, False))
    monkeypatch.setattr(
        "monitor.daemon.watch.judged_in_time",
        lambda *_: PinJudgement(Verdict.FAIL, "another", first_divergence=0, logprob_shift=None),
    )
    assert (await sampled(watch)).logprob_shift is None
