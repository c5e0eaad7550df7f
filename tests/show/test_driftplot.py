"""The page that a replay is drawn on."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from drifting import START_US, a_canary, a_gpu_reading

from monitor.show.driftplot import MOST_DOTS, Found, Series, Sketch, page

MINUTE_US = 60_000_000


def drawn(minutes: int) -> Sketch:
    """Canaries of two probes, one slower than the other, and a GPU."""
    sketch = Sketch()
    for minute in range(minutes):
        sketch.watch("local", a_canary(minute, decode_tok_s=100.0))
        sketch.watch("local", a_canary(minute, probe="sea", decode_tok_s=20.0))
        sketch.watch("local", a_gpu_reading(minute, sm_clock_mhz=1980.0))
    return sketch


def svg(text: str) -> ElementTree.Element:
    """The drawing, with the attributes quoted as XML wants them."""
    found = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(re.sub(r"=([^'\"\s>]+)(?=[\s>])", r'="\1"', found[0]))


def test_probes_are_put_together_as_per_cent_of_what_is_usual_for_each() -> None:
    panels = drawn(60).panels("local")
    assert set(panels) == {
        "decode rate, % of median",
        "time to first token, % of median",
        "SM clock, MHz, GPU-1",
        "temperature, °C, GPU-1",
    }
    assert {round(value) for _, value in panels["decode rate, % of median"]} == {100}
    assert panels["SM clock, MHz, GPU-1"][0][1] == 1980
    assert drawn(60).panels("other") == {}


def test_only_warm_and_good_canaries_are_drawn() -> None:
    sketch = Sketch()
    for changes in (
        {"phase": "cold"},
        {"outcome": "http_error"},
        {"decode_tok_s": None, "ttft_ms": None},
    ):
        sketch.watch("local", a_canary(0, **changes))
    assert sketch.panels("local") == {}


def test_a_year_is_drawn_with_no_more_dots_than_can_be_seen() -> None:
    series = Series()
    for block in range(365 * 288):
        series.add(START_US + block * 5 * MINUTE_US, float(block))
    line = series.line()
    assert MOST_DOTS / 2 < len(line) <= MOST_DOTS + 2
    assert [value for _, value in line] == sorted(value for _, value in line)


def test_what_was_found_is_a_rectangle_over_its_time_in_every_panel() -> None:
    panels = drawn(600).panels("local")
    found = Found(
        START_US + 300 * MINUTE_US, START_US + 450 * MINUTE_US, "page", "speed of decode", "slow"
    )
    boxes = [
        e
        for e in svg(page("t", {"local": panels}, {"local": [found]})).iter("rect")
        if e.get("opacity") == ".22"
    ]
    assert len(boxes) == len(panels)
    assert abs(float(boxes[0].get("width", "0")) / 1020 - 0.25) < 0.02


def test_a_gap_of_hours_is_no_straight_line() -> None:
    sketch = Sketch()
    for minute in [*range(60), *range(600, 660)]:
        sketch.watch("local", a_canary(minute, decode_tok_s=100.0 + minute % 7, ttft_ms=None))
    assert len(list(svg(page("t", {"local": sketch.panels("local")}, {})).iter("polyline"))) == 2


def test_texts_of_a_server_cannot_become_part_of_the_page() -> None:
    nasty = "<script>alert(1)</script>"
    found = Found(START_US, None, nasty, nasty, nasty)
    text = page(nasty, {nasty: drawn(30).panels("local")}, {nasty: [found]})
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_nothing_to_draw_is_said() -> None:
    assert "No data: no rates, times or GPU readings." in page("t", {"local": {}}, {})
