"""The numbers in an answer, as people write them. Pure.

Read are a minus sign of any shape, groups of three digits parted by comma, blank (also a narrow
one), apostrophe or, where there are two groups or a decimal comma, by point; Indian groups; and
either decimal mark. `1,250` is a thousand and more, `1,5` one and a half, `1.250` one and a
quarter. In `40-42` the hyphen is no sign.
"""

from __future__ import annotations

import re

# 1,250.5 and 12,34,567
_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?"
_POINTS = r"[1-9]\d{0,2}(?:\.\d{3})+,\d+|[1-9]\d{0,2}(?:\.\d{3}){2,}(?!\d)"  # 1.250,5 and 1.250.000
_SPACED = r"[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)(?:[.,]\d+)?"  # 1 250,5
_QUOTED = r"[1-9]\d{0,2}(?:['’]\d{3})+(?!\d)(?:[.,]\d+)?"  # 1'250.50
_PLAIN = r"\d+(?:[.,]\d+)?|\.\d+"
_SIGN = r"(?<![\w.,)\]])[-+\u2212\u2013]"
_NUMBER = re.compile(
    rf"({_SIGN})?(?:({_POINTS})|({_GROUPED})|({_SPACED}|{_QUOTED})|({_PLAIN}))((?:[eE][-+\u2212]?\d+)?)"
)
_MINUS = "-\u2212\u2013"
_LONGEST = 1000  # characters: what is longer is no number that a person reads


def last_number(text: str) -> float | None:
    """The last number of a text; None where there is none. Infinite where no float holds it."""
    end = next((place for place in range(len(text), 0, -1) if text[place - 1].isdecimal()), 0)
    numbers = [
        *_NUMBER.finditer(text, max(0, end - _LONGEST), end)
    ]  # a megabyte of numbers would take seconds
    return _value(numbers[-1]) if numbers else None


def _value(found: re.Match[str]) -> float:
    sign, points, grouped, spaced, plain, exponent = found.groups()
    if points is not None:
        digits = points.replace(".", "").replace(",", ".")
    elif grouped is not None:
        digits = grouped.replace(",", "")
    else:
        digits = re.sub(r"[ \u00a0\u2009\u202f'’]", "", spaced or plain).replace(",", ".")
    value = float(digits + exponent.replace("\u2212", "-"))
    return -value if sign is not None and sign in _MINUS else value
