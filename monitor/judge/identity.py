"""What changed between two readings of an identity, and what follows from it. Unknown is never a
change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from monitor.model import (
    DERIVED_FIELDS,
    DIGEST_FIELDS,
    ROOT_FIELDS,
    SOFT_FIELDS,
    Cause,
    Change,
    Finding,
    FingerprintField,
    Incident,
    Kind,
    Outcome,
    Phase,
    Probe,
    Sample,
    Severity,
)

Fields = Mapping[str, FingerprintField]
#: num_gpu_blocks and the KV size come from memory profiling at start and move a little by
#: themselves (facts: vLLM cache_config_info).
SOFT_TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between what was known and what is seen now. `learnt`: known for the first time,
    never a trigger.
    """

    roots: tuple[Change, ...] = ()
    derived: tuple[Change, ...] = ()
    learnt: tuple[str, ...] = ()

    @property
    def trigger(self) -> tuple[Change, ...]:
        """The changes that call for a retest: the roots, or what no root explains."""
        return self.roots or self.derived


def compare(known: Fields, seen: Fields) -> Comparison:
    """Field by field; only a value that is known on both sides and differs is a change."""
    roots = _changes(known, seen, ROOT_FIELDS)
    soft = tuple(c for c in _changes(known, seen, SOFT_FIELDS) if _beyond_tolerance(c))
    learnt = tuple(
        name for name in seen if _value(known, name) is None and _value(seen, name) is not None
    )
    return Comparison(roots, _changes(known, seen, DERIVED_FIELDS) + soft, learnt)


def _value(fields: Fields, name: str) -> Any:
    field = fields.get(name)
    return None if field is None else field.value


def _changes(known: Fields, seen: Fields, names: Sequence[str]) -> tuple[Change, ...]:
    pairs = ((name, _value(known, name), _value(seen, name)) for name in names)
    return tuple(
        Change(name, a, b) for name, a, b in pairs if a is not None and b is not None and a != b
    )


def _beyond_tolerance(change: Change) -> bool:
    before, after = change.before, change.after
    if not isinstance(before, (int, float)) or not isinstance(after, (int, float)) or before <= 0:
        return True
    return abs(after - before) / before > SOFT_TOLERANCE


def merged(known: Fields, seen: Fields) -> dict[str, FingerprintField]:
    """Each field at its last known value. After a change of a root, a derived or soft field that is
    not seen is not carried over: it follows from what has changed, and is learnt anew.
    """
    roots_changed = bool(compare(known, seen).roots)
    return {name: _merged(name, known.get(name), seen[name], roots_changed) for name in seen}


def _merged(
    name: str, old: FingerprintField | None, new: FingerprintField, roots_changed: bool
) -> FingerprintField:
    if old is None or old.value is None:
        return new
    if new.value is not None:
        return old if _small_move(name, old, new) and not roots_changed else new
    return new if roots_changed and name not in ROOT_FIELDS else old


def _small_move(name: str, old: FingerprintField, new: FingerprintField) -> bool:
    """A soft field keeps its first value until it moves beyond the tolerance, so that small steps
    add up to a change.
    """
    return name in SOFT_FIELDS and not _beyond_tolerance(Change(name, old.value, new.value))


def digest(fields: Fields) -> str:
    """A short name for what must stay the same: sha256 over the known digest fields."""
    known = {
        name: _value(fields, name) for name in DIGEST_FIELDS if _value(fields, name) is not None
    }
    return hashlib.sha256(
        json.dumps(known, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()[:12]


def is_same(earlier: Fields, now: Fields) -> bool:
    """Whether an earlier identity is this one again: no digest field known on both sides differs,
    and some are known on both.
    """
    both = [
        n for n in DIGEST_FIELDS if _value(earlier, n) is not None and _value(now, n) is not None
    ]
    return bool(both) and all(_value(earlier, n) == _value(now, n) for n in both)


def is_undone(changes: Sequence[Change], now: Fields) -> bool:
    """Whether each of these fields is again what it was before; a soft one within its tolerance."""
    return all(
        (value := _value(now, c.field)) == c.before
        or (
            c.field in SOFT_FIELDS
            and value is not None
            and not _beyond_tolerance(Change(c.field, c.before, value))
        )
        for c in changes
    )


def config_change(
    target: str, changes: Sequence[Change], now: datetime, evidence: Mapping[str, Any]
) -> Finding:
    """The finding of a trigger. One root: the effect is attributed to it. Several: it cannot be
    attributed to one of them.
    """
    names = sorted(change.field for change in changes)
    told = "; ".join(f"{c.field} {_told(c.before)} → {_told(c.after)}" for c in changes)
    several = "" if len(changes) == 1 else " (what follows cannot be attributed to one of them)"
    return Finding(
        kind=Kind.CONFIG_CHANGE,
        target=target,
        subject=",".join(names),
        severity=Severity.WARNING,
        summary=f"configuration changed: {told}{several}",
        since=now,
        cause=Cause.CONFIG_CHANGE,
        changes=tuple(changes),
        evidence=evidence,
    )


def _told(value: Any, limit: int = 60) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


ROLLED_BACK = "rolled back: what had changed is again what it was before"


SETTLED_AFTER = timedelta(hours=24)
OFTEN_S = 3600.0  # probes that run at least so often are waited for


def config_change_over(
    incident: Incident,
    current_digest: str,
    probes: Sequence[Probe],
    samples: Sequence[Sample],
    now: datetime,
) -> str | None:
    """Why an open configuration change is over; None while it is not.

    Until retests exist it is over after a full warm round under the identity that the server has
    now: every probe that has run since has answered well, not cold, and all that run often have
    run. Rare ones, and those without a cap, are not waited for; nor is a probe that cannot run for
    longer than a day. (A change that is undone is closed when the undoing is seen.)
    """
    known = {probe.name for probe in probes}
    since = [
        s
        for s in samples
        if s.started_at >= incident.opened_at
        and s.probe in known
        and s.outcome is not Outcome.CANCELLED
    ]
    warm = {
        s.probe
        for s in since
        if s.outcome is Outcome.OK and s.phase is not Phase.COLD and s.fingerprint == current_digest
    }
    often = {
        probe.name
        for probe in probes
        if probe.capped and probe.every_s is not None and probe.every_s < OFTEN_S
    }
    wanted = often | {s.probe for s in since}
    if wanted and warm >= wanted:
        return "every probe has answered warm under the new configuration"
    if now - incident.opened_at < SETTLED_AFTER:
        return None
    return (
        "it was a day ago; not yet answered warm under the new configuration: "
        f"{', '.join(sorted(wanted - warm)) or 'all'}"
    )
