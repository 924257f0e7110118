"""The root of the tree of errors: the attributes of each class, and who can resolve the error.

In: the failure, and its location (file, key, table, LSN) as keyword context.  Out: one clear line.
Invariant: no row value ever enters a message; `context` holds names, numbers and LSNs only. `str` redacts, escapes
and truncates the texts that come from a server, a name or a path.
`retry` says who can resolve the error. AUTO: cdcd retries with back-off. LIMITED: cdcd retries a few times, then
treats the error as OPERATOR. OPERATOR: cdcd halts and stays up until an operator resumes it. NEVER: the process ends.
An error that is not in this tree is treated as OPERATOR.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from cdcd.errors.commands import typeable
from cdcd.lsn import Lsn, format_lsn
from cdcd.redaction import clean


class Retry(enum.Enum):
    """Who can resolve an error."""

    AUTO = "auto"
    LIMITED = "limited"
    OPERATOR = "operator"
    NEVER = "never"


EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_FORCED = 130
EXIT_MEMORY = 71
EXIT_FENCED = 75
EXIT_CONFIG = 78


class CdcdError(Exception):
    """Any error of the tree.

    `str(error)` has code, message, location and hint in one line; `next_step` is the hint with complete commands.
    docs/errors.md is generated: the first line of each class's docstring, `retry`, and `resolution`, or the hint of a
    class without a resolution of its own.
    """

    code: ClassVar[str] = "CDCD-ERROR"
    retry: ClassVar[Retry] = Retry.OPERATOR
    hint: ClassVar[str] = ""
    exit_status: ClassVar[int] = EXIT_FAILURE
    resolution: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.advice = self.hint if hint is None else hint
        self.context = context

    @property
    def without_hint(self) -> str:
        """The failure and its location, without the hint."""
        where = " ".join(f"{key}={_shown(key, value)}" for key, value in self.context.items())
        return self._cleaned(f"{self.code}: {self.message}" + (f" [{where}]" if where else ""))

    @property
    def next_step(self) -> str:
        """The hint as an operator can type it: its commands name the configuration file."""
        return self._cleaned(typeable(self.advice))

    def __str__(self) -> str:
        return self._cleaned(f"{self.without_hint} -> {self.next_step}") if self.advice else self.without_hint

    @staticmethod
    def _cleaned(text: str) -> str:
        return clean(text)


def _shown(key: str, value: object) -> str:
    if key == "lsn" or key.endswith("_lsn"):
        return (
            format_lsn(Lsn(value)) if isinstance(value, int) else "unknown" if value is None else str(value)
        )
    return str(value)
