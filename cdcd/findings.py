"""Finding: the result of one start check.

In: facts about a server, a topic, a slot or a setting.
Out: a plain value. `cdcd check` prints all findings and derives its exit status from their levels. The daemon's start
evaluates the same findings and raises the error of the first that fails, so that both report the same.
Invariant: a finding that is not "ok" has a hint. "fail": the start is refused with `error`; with `at_row` the start
logs the finding and continues, and the first row concerned ends the session with `error`. "warn": the start
continues. "unknown": the check could not be made; `cdcd check` fails, a start logs the finding and continues.
Must not: hold row values, passwords, or objects of a client library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from cdcd.errors import CdcdError, SourceSetup

__all__ = ["CORRECT_FIRST", "Finding", "Level", "failure", "refusal"]

Level = Literal["ok", "warn", "unknown", "fail"]
CORRECT_FIRST = "correct this first, then run `cdcd check` again"
"""The hint of a finding that has no other."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact: its level, its subject, the message, and a hint (empty if ok).

    `error`: the error that a start raises for the finding. Without one, a failure raises SourceSetup.
    """

    level: Level
    subject: str
    message: str
    hint: str = ""
    error: CdcdError | None = field(default=None, compare=False)
    at_row: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a finding that is not ok and has no hint: an operator needs the next step."""
        if self.level != "ok" and not self.hint:
            raise ValueError(f"finding {self.subject!r} is {self.level} but has no hint")

    @property
    def code(self) -> str:
        """The code of the error with which a start halts or waits, empty if the start continues."""
        return "" if self.level != "fail" else self.refused.code

    @property
    def refused(self) -> CdcdError:
        """The error that a start raises for this finding."""
        return self.error or SourceSetup(
            f"{self.subject}: {self.message}", hint=f"{self.hint}; then `cdcd resume`"
        )


def failure(subject: str, error: CdcdError) -> Finding:
    """Return the finding for an error that a check met; the error's advice becomes the hint and is shown once."""
    return Finding("fail", subject, error.without_hint, error.advice or CORRECT_FIRST, error)


def refusal(findings: Iterable[Finding]) -> CdcdError | None:
    """Return the error of the first finding that fails, None if the start continues."""
    failing = (one for one in findings if one.level == "fail" and not one.at_row)
    return next((one.refused for one in failing), None)
