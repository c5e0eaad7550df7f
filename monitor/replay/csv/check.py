"""Figures of a CSV file that contradict one another throughout: then one of them is in another unit
(monitor/replay/csv/units.py).

An answer's times, tokens and rate must agree: e2e = ttft + (tokens - 1) / rate, within what a first
chunk of several tokens and the end of the stream do to it; the gap between two tokens is one over
the rate, or more where a chunk brings several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from math import log
from statistics import StatisticsError, correlation
from typing import NamedTuple

from monitor.replay.csv.units import Bulk, Wrong, quantile

FEW_TOKENS = 8  # docs/units.md: with fewer there is no rate
SURE_TOKENS = (
    32  # with fewer a first chunk of two tokens makes a rate differ by more than is looked for
)
GROSS = 3.0  # a rate so many times beside what the times make it is in another unit, whichever
FITS, DIFFERS, GAP_DIFFERS = (
    0.1,
    0.06,
    0.15,
)  # in ln: as good as the same, and not the same by the times, and by the gaps
FASTEST_TOK_S = 20_000.0  # of one answer; the fastest machines make some thousand
# samples further apart than this are a schedule, and not a load test with many clients
SCHEDULED_US = 20_000_000.0
UNDER_WAY = (
    3.0  # answers of one probe at a time, which no schedule leads to for the most part of a file
)
# the longest that a reading of a GPU's counters is late (exporters are read every 30 to 60 s)
POLL_MS = 60_000.0
ENOUGH = 20  # rows, to tell a unit from a counter that was reset once


class _Rated(NamedTuple):
    place: int
    rate: float
    expected: float  # tokens a second, as the times or the gaps make it
    by_times: bool
    sure: bool


def contradictions(bulk: Bulk) -> list[Wrong]:
    """What the figures of most rows say against a column; the first sentence for each column."""
    rated = list(_rated(bulk))
    said = chain(
        _order(bulk),
        _rates(bulk, rated),
        _too_fast(bulk),
        _first_tokens(bulk),
        _parts(bulk),
        _gaps(bulk),
        () if _confirmed(rated) else _spacing(bulk),
        _throttled(bulk),
    )
    found: dict[str, Wrong] = {}
    for wrong in said:
        found.setdefault(wrong.column, wrong)
    return list(found.values())


def doubts(bulk: Bulk) -> list[str]:
    """Times that are unusually long, where nothing in the file tells whether they are
    microseconds.
    """
    if _confirmed(list(_rated(bulk))):
        return []
    told = []
    for name, unusual_ms in (("ttft_ms", 10_000.0), ("e2e_ms", 300_000.0)):
        values = [value for _, (value,) in bulk.known(name)]
        if values and (middle := quantile(values, 0.5)) > unusual_ms:
            seconds = f"{name} is {middle:,.0f} in the middle, which is {middle / 1000:,.0f} s"
            told.append(
                f"{seconds}; if it is in microseconds, divide by 1,000, since nothing else in "
                "the file tells"
            )
    return told


def _rated(bulk: Bulk) -> Iterator[_Rated]:
    names = (
        "decode_tok_s",
        "completion_tokens",
        "e2e_ms",
        "ttft_ms",
        "itl_p50_ms",
        "spec_acceptance",
    )
    columns = [bulk.columns.get(name, ()) for name in names]
    for place, (rate, tokens, e2e, ttft, gap, speculated) in enumerate(zip_longest(*columns)):
        if not rate:
            continue
        if tokens and e2e and ttft is not None and e2e > ttft and tokens >= FEW_TOKENS:
            yield _Rated(
                place, rate, (tokens - 1) * 1000 / (e2e - ttft), True, tokens >= SURE_TOKENS
            )
        elif (
            gap and speculated is None
        ):  # a chunk of several tokens makes the gap a multiple of what it is looked at for
            yield _Rated(place, rate, 1000 / gap, False, True)


def _confirmed(rated: Iterable[_Rated]) -> bool:
    """Whether the times agree with the rate that stands beside them."""
    near = [1 / 1.5 < of.rate / of.expected < 1.5 for of in rated if of.by_times]
    return bool(near) and sum(near) > len(near) / 2


def _order(bulk: Bulk) -> Iterator[Wrong]:
    pairs = [
        (place, ttft, e2e) for place, (ttft, e2e) in bulk.known("ttft_ms", "e2e_ms") if ttft and e2e
    ]
    wrong = [pair for pair in pairs if pair[1] > 1.05 * pair[2]]
    if len(wrong) > len(pairs) / 2:
        place, ttft, e2e = wrong[0]
        told = (
            f"is {ttft:g} where e2e_ms is {e2e:g}, and no answer ends before its first token; "
            "both are in milliseconds: divide ttft_ms by "
            "1,000 if it is in microseconds, or multiply e2e_ms by 1,000 if it is in seconds"
        )
        yield Wrong(bulk.rows[place], "ttft_ms", told)


def _rates(bulk: Bulk, rated: list[_Rated]) -> Iterator[Wrong]:
    """A rate that is the time for a token, or times in another unit beside a good rate."""
    for unit, per, mend in (
        ("milliseconds", 1000.0, "write 1000 over it"),
        ("seconds", 1.0, "write 1 over it"),
    ):
        inverted = [of for of in rated if of.sure and _is_inverted(of, per)]
        if len(inverted) > len(rated) / 2 or (rated and _runs_against(rated, per)):
            of = (inverted or rated)[0]
            made = f"where the sample's own times make {of.expected:.3g} tokens a second"
            told = f"is {of.rate:g} {made}; it looks like {unit} a token: {mend}"
            yield Wrong(bulk.rows[of.place], "decode_tok_s", told)
            return
    timed = [of for of in rated if of.by_times]
    gross = [of for of in timed if not 1 / GROSS < of.rate / of.expected < GROSS]
    if len(gross) > len(timed) / 2:
        yield _gross(bulk, gross)


def _is_inverted(of: _Rated, per: float) -> bool:
    right, inverted = abs(log(of.rate / of.expected)), abs(log(of.rate * of.expected / per))
    return (
        inverted < FITS
        and right > 2 * inverted
        and right > (DIFFERS if of.by_times else GAP_DIFFERS)
    )


def _runs_against(rated: list[_Rated], per: float) -> bool:
    """About 31.6 tokens a second are 31.6 ms a token: then only that one rises as the other falls
    tells them apart.
    """
    rates, expected = [log(of.rate) for of in rated], [log(of.expected) for of in rated]
    if (
        len(rated) < ENOUGH
        or abs(quantile([a + b - log(per) for a, b in zip(rates, expected, strict=True)], 0.5))
        > FITS
    ):
        return False
    try:
        return correlation(rates, expected) < -0.7
    except StatisticsError:  # one of them never varies
        return False


def _gross(bulk: Bulk, gross: list[_Rated]) -> Wrong:
    ratio = quantile([of.rate / of.expected for of in gross], 0.5)
    of = gross[0]
    made = f"the sample's own times make {of.expected:.3g} tokens a second"
    e2e = bulk.columns["e2e_ms"][of.place] or 0.0
    for about, unit, mend in (
        (1000.0, "microseconds", "divide the times by 1,000"),
        (0.001, "seconds", "multiply the times by 1,000"),
    ):
        if about / GROSS < ratio < about * GROSS:
            told = (
                f"is {e2e:g}: {made} where decode_tok_s is {of.rate:g}; it looks like "
                f"{unit}, the column is in milliseconds: {mend}"
            )
            return Wrong(bulk.rows[of.place], "e2e_ms", told)
    told = (
        f"is {of.rate:g} where {made}; the column is in tokens a second: if it is "
        "milliseconds a token, write 1000 over it"
    )
    return Wrong(bulk.rows[of.place], "decode_tok_s", told)


def _too_fast(bulk: Bulk) -> Iterator[Wrong]:
    rows = [
        (place, tokens, e2e)
        for place, (tokens, e2e) in bulk.known("completion_tokens", "e2e_ms")
        if tokens >= FEW_TOKENS and e2e
    ]
    fast = [row for row in rows if row[1] * 1000 / row[2] > FASTEST_TOK_S]
    if len(fast) > len(rows) / 2:
        place, tokens, e2e = fast[0]
        told = (
            f"is {e2e:g} for {tokens:g} tokens; it looks like seconds, the column is in "
            "milliseconds: multiply by 1,000"
        )
        yield Wrong(bulk.rows[place], "e2e_ms", told)


def _first_tokens(bulk: Bulk) -> Iterator[Wrong]:
    """What an answer took beyond its tokens is its wait for the first one."""
    rows, wrong = 0, []
    for place, (ttft, e2e, tokens, rate) in bulk.known(
        "ttft_ms", "e2e_ms", "completion_tokens", "decode_tok_s"
    ):
        if ttft and rate and tokens >= FEW_TOKENS:
            rows += 1
            rest_ms = e2e - (tokens - 1) * 1000 / rate
            if rest_ms > max(500.0, 0.1 * e2e) and 0.5 < ttft * 1000 / rest_ms < 2:
                wrong.append((place, ttft, rest_ms))
    if len(wrong) > rows / 2:
        place, ttft, rest_ms = wrong[0]
        told = (
            f"is {ttft:g} where {rest_ms:,.0f} ms of the answer were no decoding; it looks "
            "like seconds: multiply by 1,000"
        )
        yield Wrong(bulk.rows[place], "ttft_ms", told)


def _parts(bulk: Bulk) -> Iterator[Wrong]:
    """The queue and the prefill are parts of the wait for the first token."""
    for name in ("queue_ms", "prefill_ms"):
        rows = [
            (place, part, ttft)
            for place, (part, ttft) in bulk.known(name, "ttft_ms")
            if part and ttft
        ]
        longer = [row for row in rows if row[1] > 30 * row[2]]
        if len(longer) > len(rows) / 2:
            place, part, ttft = longer[0]
            told = (
                f"is {part:g} and a part of ttft_ms, which is {ttft:g}; it looks like "
                "microseconds: divide by 1,000"
            )
            yield Wrong(bulk.rows[place], name, told)


def _gaps(bulk: Bulk) -> Iterator[Wrong]:
    """A gap is one over the rate, or some times it; short ones say nothing, since chunks may come
    together.
    """
    for name in ("itl_p50_ms", "itl_p95_ms"):
        rows = [
            (place, gap, gap * rate / 1000)
            for place, (gap, rate) in bulk.known(name, "decode_tok_s")
            if gap and rate
        ]
        for wrong, share, unit, mend in (
            (
                [row for row in rows if row[2] > 100 and name == "itl_p50_ms"],
                0.5,
                "microseconds",
                "divide by 1,000",
            ),
            (
                [row for row in rows if abs(log(row[2] * 1000)) < GAP_DIFFERS],
                0.8,
                "seconds",
                "multiply by 1,000",
            ),
        ):
            if len(wrong) > share * len(rows):
                place, gap, _ = wrong[0]
                told = (
                    f"is {gap:g} beside the sample's decode_tok_s; it looks like {unit}, "
                    f"the column is in milliseconds: {mend}"
                )
                yield Wrong(bulk.rows[place], name, told)


def _spacing(bulk: Bulk) -> Iterator[Wrong]:
    """Samples that a schedule sends do not overlap several times over."""
    for name in ("e2e_ms", "ttft_ms"):
        every = [
            (place, value, bulk.distance_us(place)) for place, (value,) in bulk.known(name) if value
        ]
        rows = [
            (place, value, distance_us)
            for place, value, distance_us in every
            if (distance_us or 0.0) >= SCHEDULED_US
        ]
        long = [row for row in rows if row[1] * 1000 > UNDER_WAY * (row[2] or 0.0)]
        if len(long) > len(rows) / 2:
            place, value, distance_us = long[0]
            apart_s = (distance_us or 0.0) / 1e6
            told = (
                f"is {value:g}, so {value / 1000:,.0f} s, where the samples of its probe are "
                f"{apart_s:.0f} s apart; it looks like "
                "microseconds or nanoseconds: divide by 1,000 or by 1,000,000"
            )
            yield Wrong(bulk.rows[place], name, told)


def _throttled(bulk: Bulk) -> Iterator[Wrong]:
    """A GPU cannot be held back for longer than it was looked at; two counters may be added up in
    one.
    """
    took = bulk.columns.get("e2e_ms", ())
    for name in ("throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms"):
        rows = [(place, held) for place, (held,) in bulk.known(name) if held]
        longer = [
            (place, held)
            for place, held in rows
            if held > 4 * ((took[place] or 0.0 if took else 0.0) + POLL_MS)
        ]
        if len(longer) >= ENOUGH and len(longer) > len(rows) / 2:
            place, held = longer[0]
            told = (
                f"is {held:g} for one sample; it looks like nanoseconds, or like a counter "
                "since the driver was loaded: the column is how "
                "long the GPU was held back during this sample, in milliseconds"
            )
            yield Wrong(bulk.rows[place], name, told)
