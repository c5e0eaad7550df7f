"""Finds figures of a CSV file that contradict each other throughout: one of them is in another unit
(units.py).

An answer's times, tokens and rate must agree: e2e = ttft + (tokens - 1) / rate, up to a first chunk
of several tokens and the end of the stream; the gap between two tokens is the inverse of the rate,
or more with several tokens per chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from math import log
from statistics import StatisticsError, correlation
from typing import NamedTuple

from monitor.replay.csv.units import Bulk, Wrong, quantile

FEW_TOKENS = 8  # docs/units.md: with fewer there is no rate
SURE_TOKENS = 32  # with fewer, a first chunk of two tokens changes the rate more than DIFFERS
GROSS = 3.0  # a rate that differs from the times by this factor is in another unit
# in ln: practically equal; different from the times; and different from the gaps
FITS, DIFFERS, GAP_DIFFERS = 0.1, 0.06, 0.15
FASTEST_TOK_S = 20_000.0  # of one answer; the fastest machines generate some thousand
# Samples further apart than this come from a schedule, not from a load test with many clients.
SCHEDULED_US = 20_000_000.0
OVERLAP = 3.0  # concurrent answers of one probe, which no schedule causes in most of a file
# the largest delay of a reading of a GPU's counters (exporters read every 30 to 60 s)
POLL_MS = 60_000.0
ENOUGH = 20  # rows, to distinguish a unit from a counter that was reset once


class _Rated(NamedTuple):
    place: int
    rate: float
    expected: float  # tokens per second, from the times or the gaps
    by_times: bool
    sure: bool


def contradictions(bulk: Bulk) -> list[Wrong]:
    """The columns that most rows contradict; one sentence for each column."""
    rated = list(_rated(bulk))
    candidates = chain(
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
    for wrong in candidates:
        found.setdefault(wrong.column, wrong)
    return list(found.values())


def doubts(bulk: Bulk) -> list[str]:
    """Unusually long times, where nothing in the file proves whether they are microseconds."""
    if _confirmed(list(_rated(bulk))):
        return []
    found = []
    for name, unusual_ms in (("ttft_ms", 10_000.0), ("e2e_ms", 300_000.0)):
        values = [value for _, (value,) in bulk.known(name)]
        if values and (middle := quantile(values, 0.5)) > unusual_ms:
            found.append(
                f"{name} has a median of {middle:,.0f}, which is {middle / 1000:,.0f} s; if it is "
                "in microseconds, divide by 1,000 (nothing else in the file shows the unit)"
            )
    return found


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
        # With several tokens per chunk the gap is a multiple of the time per token.
        elif gap and speculated is None:
            yield _Rated(place, rate, 1000 / gap, False, True)


def _confirmed(rated: Iterable[_Rated]) -> bool:
    """Whether the times agree with the rates of the same rows."""
    near = [1 / 1.5 < of.rate / of.expected < 1.5 for of in rated if of.by_times]
    return bool(near) and sum(near) > len(near) / 2


def _order(bulk: Bulk) -> Iterator[Wrong]:
    pairs = [
        (place, ttft, e2e) for place, (ttft, e2e) in bulk.known("ttft_ms", "e2e_ms") if ttft and e2e
    ]
    wrong = [pair for pair in pairs if pair[1] > 1.05 * pair[2]]
    if len(wrong) > len(pairs) / 2:
        place, ttft, e2e = wrong[0]
        text = (
            f"is {ttft:g} where e2e_ms is {e2e:g}, but no answer ends before its first token; both "
            "columns are in milliseconds: divide ttft_ms by 1,000 if it is in microseconds, or "
            "multiply e2e_ms by 1,000 if it is in seconds"
        )
        yield Wrong(bulk.rows[place], "ttft_ms", text)


def _rates(bulk: Bulk, rated: list[_Rated]) -> Iterator[Wrong]:
    """Finds rates that are times per token, and times in another unit with correct rates."""
    for unit, per, mend in (
        ("milliseconds", 1000.0, "convert with 1000 / value"),
        ("seconds", 1.0, "convert with 1 / value"),
    ):
        inverted = [of for of in rated if of.sure and _is_inverted(of, per)]
        if len(inverted) > len(rated) / 2 or (rated and _runs_against(rated, per)):
            of = (inverted or rated)[0]
            expected = f"where the sample's own times make {of.expected:.3g} tokens per second"
            text = f"is {of.rate:g} {expected}; it looks like {unit} per token: {mend}"
            yield Wrong(bulk.rows[of.place], "decode_tok_s", text)
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
    """Whether rate and expected rate are inversely correlated. About 31.6 tokens per second are
    31.6 ms per token, so that near this value only the correlation shows the unit.
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
    expected = f"the sample's own times make {of.expected:.3g} tokens per second"
    e2e = bulk.columns["e2e_ms"][of.place] or 0.0
    for about, unit, mend in (
        (1000.0, "microseconds", "divide the times by 1,000"),
        (0.001, "seconds", "multiply the times by 1,000"),
    ):
        if about / GROSS < ratio < about * GROSS:
            text = (
                f"is {e2e:g}: {expected} where decode_tok_s is {of.rate:g}; it looks like "
                f"{unit}, the column is in milliseconds: {mend}"
            )
            return Wrong(bulk.rows[of.place], "e2e_ms", text)
    text = (
        f"is {of.rate:g} where {expected}; the column is in tokens per second: if it is in "
        "milliseconds per token, convert with 1000 / value"
    )
    return Wrong(bulk.rows[of.place], "decode_tok_s", text)


def _too_fast(bulk: Bulk) -> Iterator[Wrong]:
    rows = [
        (place, tokens, e2e)
        for place, (tokens, e2e) in bulk.known("completion_tokens", "e2e_ms")
        if tokens >= FEW_TOKENS and e2e
    ]
    fast = [row for row in rows if row[1] * 1000 / row[2] > FASTEST_TOK_S]
    if len(fast) > len(rows) / 2:
        place, tokens, e2e = fast[0]
        text = (
            f"is {e2e:g} for {tokens:g} tokens; it looks like seconds, the column is in "
            "milliseconds: multiply by 1,000"
        )
        yield Wrong(bulk.rows[place], "e2e_ms", text)


def _first_tokens(bulk: Bulk) -> Iterator[Wrong]:
    """Compares TTFT with the time of an answer that was not decoding."""
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
        text = (
            f"is {ttft:g} where {rest_ms:,.0f} ms of the answer were no decoding; it looks "
            "like seconds: multiply by 1,000"
        )
        yield Wrong(bulk.rows[place], "ttft_ms", text)


def _parts(bulk: Bulk) -> Iterator[Wrong]:
    """Compares queue and prefill time with TTFT, which includes them."""
    for name in ("queue_ms", "prefill_ms"):
        rows = [
            (place, part, ttft)
            for place, (part, ttft) in bulk.known(name, "ttft_ms")
            if part and ttft
        ]
        longer = [row for row in rows if row[1] > 30 * row[2]]
        if len(longer) > len(rows) / 2:
            place, part, ttft = longer[0]
            text = (
                f"is {part:g} and a part of ttft_ms, which is {ttft:g}; it looks like "
                "microseconds: divide by 1,000"
            )
            yield Wrong(bulk.rows[place], name, text)


def _gaps(bulk: Bulk) -> Iterator[Wrong]:
    """Compares gaps with the inverse of the rate. Short gaps prove nothing, since chunks may come
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
                text = (
                    f"is {gap:g} and contradicts the sample's decode_tok_s; it looks like {unit}, "
                    f"the column is in milliseconds: {mend}"
                )
                yield Wrong(bulk.rows[place], name, text)


def _spacing(bulk: Bulk) -> Iterator[Wrong]:
    """Finds times so long that scheduled samples would overlap several times."""
    for name in ("e2e_ms", "ttft_ms"):
        every = [
            (place, value, bulk.distance_us(place)) for place, (value,) in bulk.known(name) if value
        ]
        rows = [
            (place, value, distance_us)
            for place, value, distance_us in every
            if (distance_us or 0.0) >= SCHEDULED_US
        ]
        long = [row for row in rows if row[1] * 1000 > OVERLAP * (row[2] or 0.0)]
        if len(long) > len(rows) / 2:
            place, value, distance_us = long[0]
            apart_s = (distance_us or 0.0) / 1e6
            text = (
                f"is {value:g}, so {value / 1000:,.0f} s, where the samples of its probe are "
                f"{apart_s:.0f} s apart; it looks like microseconds or nanoseconds: divide by "
                "1,000 or by 1,000,000"
            )
            yield Wrong(bulk.rows[place], name, text)


def _throttled(bulk: Bulk) -> Iterator[Wrong]:
    """Finds throttled times longer than the sample; one column may be the sum of two counters."""
    took = bulk.columns.get("e2e_ms", ())
    for name in ("throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms"):
        rows = [(place, throttled) for place, (throttled,) in bulk.known(name) if throttled]
        longer = [
            (place, throttled)
            for place, throttled in rows
            if throttled > 4 * ((took[place] or 0.0 if took else 0.0) + POLL_MS)
        ]
        if len(longer) >= ENOUGH and len(longer) > len(rows) / 2:
            place, throttled = longer[0]
            text = (
                f"is {throttled:g} for one sample; it looks like nanoseconds, or like a counter "
                "since the driver was loaded: the column is the time throttled during this sample, "
                "in milliseconds"
            )
            yield Wrong(bulk.rows[place], name, text)
