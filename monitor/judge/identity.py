"""Changes between two readings of a server's identity. An unknown field is never a change."""

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
#: num_gpu_blocks and the KV cache size come from memory profiling at startup, so they vary a little
#: from start to start (vLLM determine_available_memory, exported in vllm:cache_config_info).
SOFT_TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class IdentityDiff:
    """The differences between two readings of an identity. `learned`: fields that are known for the
    first time, which is never a trigger.
    """

    roots: tuple[Change, ...] = ()
    derived: tuple[Change, ...] = ()
    learned: tuple[str, ...] = ()

    @property
    def trigger(self) -> tuple[Change, ...]:
        """The changes to report: those of root fields, or else unexplained derived ones."""
        return self.roots or self.derived


def compare(known: Fields, seen: Fields) -> IdentityDiff:
    """Compares field by field: only two known values that differ are a change."""
    roots = _changes(known, seen, ROOT_FIELDS)
    soft = tuple(c for c in _changes(known, seen, SOFT_FIELDS) if _beyond_tolerance(c))
    learned = tuple(
        name for name in seen if _value(known, name) is None and _value(seen, name) is not None
    )
    return IdentityDiff(roots, _changes(known, seen, DERIVED_FIELDS) + soft, learned)


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
    """Returns each field at its last known value. After a change of a root field, derived and soft
    fields that could not be read are not carried over: they depend on what has changed.
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
    """Whether a soft field moved within its tolerance. It then keeps its first value, so that small
    steps add up to a change.
    """
    return name in SOFT_FIELDS and not _beyond_tolerance(Change(name, old.value, new.value))


def digest(fields: Fields) -> str:
    """Returns the short name of an identity: a SHA-256 over its known digest fields."""
    known = {
        name: _value(fields, name) for name in DIGEST_FIELDS if _value(fields, name) is not None
    }
    return hashlib.sha256(
        json.dumps(known, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()[:12]


def is_same(earlier: Fields, now: Fields) -> bool:
    """Whether two identities are the same: at least one digest field is known on both sides, and
    none of those differs.
    """
    both = [
        n for n in DIGEST_FIELDS if _value(earlier, n) is not None and _value(now, n) is not None
    ]
    return bool(both) and all(_value(earlier, n) == _value(now, n) for n in both)


def is_undone(changes: Sequence[Change], now: Fields) -> bool:
    """Whether each field has its earlier value again, soft fields within their tolerance."""
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
    """Returns the finding about changes that were read together."""
    return Finding(
        kind=Kind.CONFIG_CHANGE,
        target=target,
        subject=",".join(sorted(change.field for change in changes)),
        severity=Severity.WARNING,
        since=now,
        cause=Cause.CONFIG_CHANGE,
        changes=tuple(changes),
        evidence=evidence,
    )


ROLLED_BACK = "rolled back: the changed fields have their earlier values again"
SETTLED_AFTER = timedelta(hours=24)
OFTEN_S = 3600.0  # a probe with a shorter interval must have answered warm


def config_change_resolved(
    incident: Incident,
    current_digest: str,
    probes: Sequence[Probe],
    samples: Sequence[Sample],
    now: datetime,
) -> str | None:
    """Returns why an open configuration change is resolved; None while it is not.

    It is resolved after a full warm round under the server's current identity: every probe that has
    run since has answered well and not cold, and all frequent probes have run. Infrequent and
    uncapped probes need not have run. After a day it is resolved in any case. (A change that is
    rolled back is closed when that is read.)
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
        "24 hours have passed; probes without a warm answer under the new configuration: "
        f"{', '.join(sorted(wanted - warm)) or 'all'}"
    )
