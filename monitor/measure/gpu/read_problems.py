"""Why GPUs cannot be read, and since when, from the errors of one pass. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime

from monitor.measure.gpu.session import GpuLostError, GpusUnavailableError
from monitor.model import DRIVER, GpuFault, ReadProblem

#: Faults that last until the GPU answers, whichever other error it raises meanwhile.
LASTING = {GpuFault.LOST, GpuFault.RESET}
OF_ALL = {GpuFault.SOURCE, GpuFault.MISMATCH}  # faults that do not belong to one GPU

Errors = Mapping[str, GpuLostError]
Problems = Mapping[str, ReadProblem]


def without_session(error: GpusUnavailableError, wanted: frozenset[str]) -> Errors:
    """The errors where no session can be opened: known GPUs among those that cannot be listed, or
    else the source of all of them.
    """
    if not error.unreadable:
        fault = GpuFault.MISMATCH if error.kind == "mismatch" else GpuFault.SOURCE
        return {DRIVER: GpuLostError(DRIVER, error.reason, fault)}
    missing = {uuid: GpuLostError(uuid, error.reason, GpuFault.MISSING) for uuid in wanted}
    return {**error.unreadable, **missing}


def without_uuid(errors: Errors, wanted: frozenset[str]) -> Errors:
    """The errors of GPUs that could not be listed ("GPU 1")."""
    return {gpu: error for gpu, error in errors.items() if gpu not in wanted | {DRIVER}}


@dataclass(frozen=True, slots=True)
class Watched:
    """The GPUs of a watch: `wanted`, those that `answering` now, and all that were ever `read`."""

    wanted: frozenset[str]
    answering: frozenset[str]
    read: Container[str]


def read_problems(errors: Errors, gpus: Watched, before: Problems, now: datetime) -> Problems:
    """The problems by GPU or DRIVER, each with its start; `before` are those so far.

    A GPU that was read before and is no longer listed is lost.
    """
    found: dict[str, ReadProblem] = {}
    for gpu, error in _with_known_uuids(errors, gpus.wanted).items():
        vanished = error.fault is GpuFault.MISSING and gpu in gpus.read
        key = DRIVER if error.fault in OF_ALL else gpu
        found[key] = ReadProblem(
            fault=GpuFault.LOST if vanished else error.fault,
            reason=error.reason,
            since=before[key].since if key in before else now,
        )
    silent = gpus.wanted - gpus.answering
    return found | {
        gpu: problem
        for gpu, problem in before.items()
        if problem.fault in LASTING
        and gpu in silent
        and (gpu not in found or found[gpu].fault not in LASTING)
    }


def _with_known_uuids(errors: Errors, wanted: frozenset[str]) -> Errors:
    """A GPU that cannot be listed has no UUID ("GPU 0"): where known GPUs are missing, they are
    these.
    """
    missing = {uuid for uuid, error in errors.items() if error.fault is GpuFault.MISSING}
    unnamed = without_uuid(errors, wanted)
    if not missing or not unnamed:
        return errors
    same = next(iter(unnamed.values()))
    return {
        gpu: same if gpu in missing else error
        for gpu, error in errors.items()
        if gpu not in unnamed
    }
