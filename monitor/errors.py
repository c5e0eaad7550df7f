"""The base class of all expected failures: their text is a sentence for the person who can act on
it.

UserError
├── ConfigError            a configuration or probe file (exit 2)
├── CommandError           the command line (exit 2)
├── CsvError               a CSV file (exit 2)
├── PinFileError           a pin file (exit 2)
├── ScenarioError          a scenario of the simulator (exit 2)
├── IncidentError          an incident that does not exist, or not in that state (exit 2)
├── SeveralModelsError     several models and none configured (exit 2)
├── ConnectionSetupError   a key or certificate that is not at its configured place (exit 2)
├── ListenError            an address in use (exit 2)
├── DatabaseError          the history (exit 3, or 2 for an error of the user)
├── ServerUnreachableError no answer (exit 3)
├── ServerRefusedError     an error answer (exit 2 for a wrong key or an unknown model, else 3)
└── LeaseTakenError        another process measures (exit 3)
"""

from __future__ import annotations

REGRESSION, USAGE, UNMEASURED = 1, 2, 3


class UserError(Exception):
    """An expected failure. `exit_code` is the exit status of a command: USAGE for an error of the
    user, UNMEASURED where something cannot be reached.
    """

    exit_code: int = UNMEASURED
