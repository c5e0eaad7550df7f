"""Numbers in an answer, as people write them. Pure.

Accepted are any minus sign; groups of three digits separated by a comma, a space (also a narrow
one), an apostrophe or, with two groups or a decimal comma, a point; Indian groups; and either
decimal mark. `1,250` is 1250, `1,5` is 1.5, and `1.250` is 1.25. The hyphen in `40-42` is not a
sign.
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
_LONGEST = 1000  # characters: longer text is not a number that a person wrote


def last_number(text: str) -> float | None:
    """Returns the last number of a text; None without one, infinity if it exceeds a float."""
    end = next((place for place in range(len(text), 0, -1) if text[place - 1].isdecimal()), 0)
    # only the end of the text: a megabyte of numbers would take seconds
    numbers = [*_NUMBER.finditer(text, max(0, end - _LONGEST), end)]
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
