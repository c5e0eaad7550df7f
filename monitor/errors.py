"""The one thing that all expected failures share: their text is a sentence for the person who can
mend it.

Told
├── ConfigError            a file of the user's (exit 2)
├── CommandError           what was asked for on the command line (exit 2)
├── IncidentError          an incident that is not there, or not in that state (exit 2)
├── SeveralModelsError     nobody said which model (exit 2)
├── ConnectionSetupError   a key or certificate that is not where the configuration says (exit 2)
├── ListenError            an address that is taken (exit 2)
├── DatabaseError          the history (exit 3, or 2 where it is the user's to mend)
├── ServerUnreachableError nobody answers (exit 3)
├── ServerRefusedError     the server said no (exit 2 for a wrong key or an unknown model, else 3)
└── LeaseTakenError        another process measures (exit 3)
"""

from __future__ import annotations

REGRESSION, USAGE, UNMEASURED = 1, 2, 3


class UserError(Exception):
    """An expected failure. `exit_code` is what a command ends with: USAGE is the user's to mend,
    UNMEASURED is out of reach.
    """

    exit_code: int = UNMEASURED
