"""The plain values that every layer shares: frozen, typed, units in their names, no I/O.

Absence is None everywhere: an unknown figure is never 0, "" or False. Wall-clock times are
timezone-aware UTC datetimes; measured durations come from a monotonic clock.
"""

from monitor.model.answer import (
    ObservedAnswer,
    Pin,
    PinnedOutput,
    TokenLogprob,
)
from monitor.model.gpu_warning import (
    DriftDetail,
    GpuFigures,
    GpuWarning,
    Predicted,
)
from monitor.model.identity import (
    DERIVED_FIELDS,
    DIGEST_FIELDS,
    ROOT_FIELDS,
    SOFT_FIELDS,
    Change,
    Fingerprint,
    FingerprintField,
)
from monitor.model.incident import (
    Finding,
    Incident,
)
from monitor.model.points import (
    CanaryPoint,
    GpuPoint,
    Point,
    ServerPoint,
)
from monitor.model.probe import (
    Expectation,
    Probe,
)
from monitor.model.readings import (
    DRIVER,
    Contact,
    GpuEvent,
    GpuFault,
    GpuReading,
    GpusView,
    ReadProblem,
    ServerPage,
)
from monitor.model.sample import (
    SAMPLE_FIELDS,
    Marks,
    Sample,
)
from monitor.model.times import (
    from_us,
    to_us,
)
from monitor.model.words import (
    REGRESSIONS,
    WAITED,
    Cause,
    Kind,
    Outcome,
    Phase,
    Severity,
    Verdict,
)

__all__ = [
    "DERIVED_FIELDS",
    "DIGEST_FIELDS",
    "DRIVER",
    "REGRESSIONS",
    "ROOT_FIELDS",
    "SAMPLE_FIELDS",
    "SOFT_FIELDS",
    "WAITED",
    "CanaryPoint",
    "Cause",
    "Change",
    "Contact",
    "DriftDetail",
    "Expectation",
    "Finding",
    "Fingerprint",
    "FingerprintField",
    "GpuEvent",
    "GpuFault",
    "GpuFigures",
    "GpuPoint",
    "GpuReading",
    "GpuWarning",
    "GpusView",
    "Incident",
    "Kind",
    "Marks",
    "ObservedAnswer",
    "Outcome",
    "Phase",
    "Pin",
    "PinnedOutput",
    "Point",
    "Predicted",
    "Probe",
    "ReadProblem",
    "Sample",
    "ServerPage",
    "ServerPoint",
    "Severity",
    "TokenLogprob",
    "Verdict",
    "from_us",
    "to_us",
]
