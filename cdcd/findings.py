"""Finding: one thing that a start looks at, and what was seen of it.

In: what a room found out about a server, a topic, a slot or a setting.
Out: a plain value. `cdcd check` prints all of them and picks its exit status from the levels; the daemon's start goes
through the same ones and raises the first that fails, so that both say the same.
Invariant: a finding that is not "ok" says what to do. "fail": a start is refused, with `error`; where it is
`at_row`, the start goes on and says it, and the first row that is concerned ends the session with `error`. "warn": a
start goes on. "unknown": it could not be looked at, so nobody knows; a check fails for it, a start logs it and goes
on.
Must not: hold row values, passwords, or anything of a client library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from cdcd.errors import CdcdError, SourceSetup

__all__ = ["Finding", "Level", "failure", "refusal"]

Level = Literal["ok", "warn", "unknown", "fail"]
_LOOK_AGAIN = "correct this first, then run `cdcd check` again"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact: how bad, about what, what was seen, and what to do (empty when ok).

    `error`: what a start raises for it. A failure without one is SourceSetup.
    """

    level: Level
    subject: str
    message: str
    hint: str = ""
    error: CdcdError | None = field(default=None, compare=False)
    at_row: bool = False

    def __post_init__(self) -> None:
        """Refuse a complaint without a remedy: an operator at night needs the next step."""
        if self.level != "ok" and not self.hint:
            raise ValueError(f"finding {self.subject!r} is {self.level} but has no hint")

    @property
    def code(self) -> str:
        """The code of the error that a start halts or waits with, empty where it goes on."""
        return "" if self.level != "fail" else self.refused.code

    @property
    def refused(self) -> CdcdError:
        """What a start raises for this finding."""
        return self.error or SourceSetup(
            f"{self.subject}: {self.message}", hint=f"{self.hint}; then `cdcd resume`"
        )


def failure(subject: str, error: CdcdError) -> Finding:
    """Return the finding of what asking has met; its advice is said once."""
    return Finding("fail", subject, error.said, error.advice or _LOOK_AGAIN, error)


def refusal(findings: Iterable[Finding]) -> CdcdError | None:
    """Return the error of the first finding that fails, None where a start goes on."""
    failing = (one for one in findings if one.level == "fail" and not one.at_row)
    return next((one.refused for one in failing), None)
