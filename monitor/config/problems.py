"""Errors in a file, as sentences for the person who edits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.errors import USAGE, UserError


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One sentence about one place: the error and what to do."""

    file: str
    line: int | None
    text: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.text}"


class ConfigError(UserError):
    """Files that cannot be used, with every problem found, not only the first."""

    exit_code = USAGE

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
