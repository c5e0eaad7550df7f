"""The metrics page: every figure from its series, none from a series that is not there, and a state
for a page that does not come.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import StandIn

from monitor.measure.server.metrics_page import ALIASES, MetricsPage, looks_like_metrics, parse_page
from monitor.model import ServerPage

CAPTURES = Path(__file__).parents[1] / "captures" / "vllm-0.32.0"
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as http:
        yield http


def parsed(text: str) -> ServerPage:
    return parse_page(f"# TYPE made_up gauge\n{text}\n", NOON)


def captured(name: str) -> ServerPage:
    return parse_page((CAPTURES / f"metrics_{name}.txt").read_text(), NOON)


def figures(page: ServerPage) -> dict[str, Any]:
    """What is known of a page besides when and whether it came."""
    known = {f.name: getattr(page, f.name) for f in fields(page) if f.name not in {"at", "state"}}
    return {name: value for name, value in known.items() if value is not None}


def test_the_page_of_an_idle_server_gives_every_figure() -> None:
    page = captured("idle")
    cache = page.cache_config
    assert figures(page) == {
        "process_start_s": 1796007868.33,
        "running": 0.0,
        "waiting": 0.0,
        "kv_usage": 0.0,
        "asleep": False,
        "engine_steps": 8.0,
        "preemptions": 0.0,
        "prompt_tokens": 10.0,
        "generation_tokens": 8.0,
        "requests_finished": 1.0,
        "requests_aborted": 0.0,
        "queue_s_sum": 3.2128999919223133e-05,
        "queue_count": 1.0,
        "prefill_s_sum": 0.19885995899994668,
        "prefill_count": 1.0,
        "decode_s_sum": 1.459985308000114,
        "decode_count": 1.0,
        "cache_config": cache,
        "model_name": "tiny-canary",
    }
    assert cache is not None
    assert (cache["block_size"], cache["cache_dtype"], cache["num_gpu_blocks"]) == (
        "128",
        "auto",
        "4096",
    )
    assert (page.at, page.state) == (NOON, "ok")


def test_the_page_under_load_tells_the_queue_once_and_not_again_by_its_reasons() -> None:
    page = captured("under_load")
    assert (page.running, page.waiting) == (4.0, 8.0)
    assert page.kv_usage == pytest.approx(0.00293040293)
    assert (page.generation_tokens, page.engine_steps) == (1099.0, 279.0)


def test_finished_requests_are_those_of_every_reason() -> None:
    assert captured("after_traffic").requests_finished == 11.0
    reasons = [
        f'vllm:request_success_total{{finished_reason="{r}"}} {n}'
        for r, n in (("stop", 3), ("length", 2), ("abort", 1))
    ]
    assert parsed("\n".join(reasons)).requests_finished == 6.0


def test_with_two_api_servers_the_process_start_is_unknown_and_the_rest_is_there() -> None:
    page = captured("two_api_servers")
    assert page.process_start_s is None
    assert (page.engine_steps, page.prompt_tokens, page.generation_tokens, page.queue_count) == (
        6.0,
        9.0,
        6.0,
        3.0,
    )
    assert page.asleep is False


def test_a_page_without_vllm_series_knows_nothing_and_never_says_zero() -> None:
    assert figures(parsed("python_gc_collections_total 12")) == {}


@pytest.mark.parametrize("field", ALIASES)
def test_a_series_that_is_missing_leaves_only_its_own_figure_unknown(field: str) -> None:
    text = (CAPTURES / "metrics_idle.txt").read_text() + "\n".join(
        f'{name}{{engine="0"}} 5'
        for name in (
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
        )
    )
    kept = [
        line for line in text.splitlines() if line.split("{")[0].split(" ")[0] not in ALIASES[field]
    ]
    whole, page = parse_page(text, NOON), parse_page("\n".join(kept), NOON)
    known = figures(whole)
    assert known.pop(field) is not None
    # read from the same series
    for name in {"running": ["model_name"], "requests_finished": ["requests_aborted"]}.get(
        field, []
    ):
        del known[name]
    assert figures(page) == known


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "kv_usage"),
        ("vllm:time_in_queue_requests_sum", "vllm:request_queue_time_seconds_sum", "queue_s_sum"),
        (
            "vllm:time_in_queue_requests_count",
            "vllm:request_queue_time_seconds_count",
            "queue_count",
        ),
    ],
)
def test_a_renamed_series_is_read_under_its_old_name_and_never_twice(
    old: str, new: str, field: str
) -> None:
    assert getattr(parsed(f'{old}{{model_name="m"}} 0.5'), field) == 0.5
    assert (
        getattr(parsed(f'{old}{{model_name="m"}} 0.5\n{new}{{model_name="m"}} 0.25'), field) == 0.25
    )


def test_several_engines_are_summed_but_their_cache_is_as_full_as_the_fullest() -> None:
    page = parsed(
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
        'vllm:generation_tokens_total{engine="0"} 10\nvllm:generation_tokens_total{engine="1"} 20\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.1'
    )
    assert (page.running, page.generation_tokens, page.kv_usage) == (5.0, 30.0, 0.9)


@pytest.mark.parametrize(("awake", "asleep"), [("1", False), ("0", True)])
def test_a_server_sleeps_when_it_is_not_awake(awake: str, asleep: bool) -> None:
    rows = (
        f'vllm:engine_sleep_state{{sleep_state="awake"}} '
        f'{awake}\nvllm:engine_sleep_state{{sleep_state="discard_all"}} 0'
    )
    assert parsed(rows).asleep is asleep


def test_whether_a_server_without_sleep_states_sleeps_is_unknown() -> None:
    assert parsed("vllm:num_requests_running 0").asleep is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_is_unknown(value: str) -> None:
    assert (
        figures(parsed(f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_running {value}"))
        == {}
    )


def test_labels_may_hold_braces_commas_and_quotes() -> None:
    name = r"a{b},c=\"d\" e"
    page = parsed(f'vllm:num_requests_running{{model_name="{name}"}} 2')
    assert (page.running, page.model_name) == (2.0, 'a{b},c="d" e')


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(name for names in ALIASES.values() for name in names)),
    st.text('{}",=\\ 019abc.+-eN\t', max_size=20),
)
def test_a_broken_line_raises_nothing_but_what_read_catches(name: str, rest: str) -> None:
    with suppress(ValueError, KeyError):
        parsed(name + rest)


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>Sign in</body></html>",
        "",
        '{"detail":"Not Found"}',
        "vllm:num_requests_running 3",
    ],
)
def test_a_login_page_is_no_metrics_page(text: str) -> None:
    assert not looks_like_metrics(text)


async def test_a_page_is_read_over_http(standin: StandIn, http: httpx.AsyncClient) -> None:
    standin.state.other_running, standin.state.kv_usage = 3, 0.5
    page = await MetricsPage(http, f"{standin.url}/metrics").read()
    assert (page.state, page.running, page.kv_usage) == ("ok", 3.0, 0.5)
    assert abs((datetime.now(UTC) - page.at).total_seconds()) < 5


async def test_a_sleeping_server_says_so_on_its_page(
    standin: StandIn, http: httpx.AsyncClient
) -> None:
    standin.state.sleeping = True
    assert (await MetricsPage(http, f"{standin.url}/metrics").read()).asleep is True


@pytest.mark.parametrize(
    ("status", "state"),
    [(404, "http_error"), (500, "http_error"), ("garbage", "unreadable"), ("slow", "timeout")],
)
async def test_a_page_that_does_not_come_has_a_state_and_no_figure(
    standin: StandIn, http: httpx.AsyncClient, status: int | str, state: str
) -> None:
    standin.state.metrics_status = status
    page = await MetricsPage(http, f"{standin.url}/metrics", timeout_s=0.3).read()
    assert (page.state, figures(page)) == (state, {})


async def test_a_server_that_is_gone_is_refused(standin: StandIn, http: httpx.AsyncClient) -> None:
    await standin.stop()
    page = await MetricsPage(http, f"{standin.url}/metrics").read()
    assert (page.state, figures(page)) == ("refused", {})


async def test_a_page_behind_a_redirect_is_followed() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(307, headers={"Location": "/metrics/"})
        return httpx.Response(
            200, text="# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
        )

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        assert (await MetricsPage(http, "http://server/metrics").read()).running == 1.0


@pytest.mark.parametrize(
    "body",
    [
        b"# HELP x\nvllm:num_requests_running{engine=",
        b"# HELP x\nvllm:num_requests_running many",
        b"\xff\xfe\x00",
    ],
)
async def test_a_page_that_breaks_off_is_unreadable(body: bytes) -> None:
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    ) as http:
        page = await MetricsPage(http, "http://server/metrics").read()
    assert (page.state, figures(page)) == ("unreadable", {})


@pytest.mark.parametrize(
    "charset", ["hex", "zlib", "bz2", "rot13", "utf-7", "undefined", "idna", "\u00e4"]
)
async def test_a_charset_that_is_none_costs_the_page_at_most(charset: str) -> None:
    headers = {"Content-Type": f"text/plain; charset={charset}".encode("latin-1")}
    content = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, headers=list(headers.items()), content=content)
    )
    async with httpx.AsyncClient(transport=transport) as http:
        page = await MetricsPage(http, "http://server/metrics").read()
    assert page.state in {"ok", "unreadable"}


@pytest.mark.parametrize("start", ["1e18", "-1", "253402300800"])
def test_a_start_that_no_calendar_has_is_unknown(start: str) -> None:
    page = parse_page(
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n",
        datetime.now(UTC),
    )
    assert page.process_start_s is None


def test_counters_whose_sum_no_float_holds_are_unknown() -> None:
    lines = "".join(f'vllm:num_requests_running{{engine="{n}"}} 1e308\n' for n in range(9))
    assert (
        parse_page(f"# TYPE vllm:num_requests_running gauge\n{lines}", datetime.now(UTC)).running
        is None
    )
