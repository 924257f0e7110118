"""PostgreSQL's warnings and notices, in libpq's format, as events of cdcd's log.

In: libpq's text of a notice.  Out: `server_notice` with severity and message; repetitions are counted.
Invariant: only the first line of a notice is logged, because DETAIL and CONTEXT may contain values of rows.
Must not: decide anything, or receive notices from decoding, whose first line may contain values of rows, too.
"""

from __future__ import annotations

import logging
import re

from cdcd.ops.log_dedup import LogDeduplicator
from cdcd.redaction import clean

__all__ = ["NOTICES", "belongs_to_notice", "emit", "log_notices", "parse_notice"]

NOTICES = LogDeduplicator("cdcd.source.server")

_LEVELS = {"LOG": logging.INFO, "INFO": logging.INFO, "NOTICE": logging.INFO, "DEBUG": logging.DEBUG}
_BELOW = re.compile(
    r"(DETAIL|HINT|CONTEXT|QUERY|LOCATION|STATEMENT|(SCHEMA|TABLE|COLUMN|\w+ TYPE|\w+) NAME|LINE \d+): "
)
_NOTICE = re.compile(r"(?P<severity>[^\W\d_]+[1-5]?):  (?P<message>\S.*)")
_MOST_CHARACTERS = 500


def parse_notice(line: str) -> tuple[str, str] | None:
    """Return severity (in any language) and message of a notice's first line, None for any other line."""
    found = None if belongs_to_notice(line) else _NOTICE.match(line)
    return None if found is None else (found["severity"], found["message"])


def belongs_to_notice(line: str) -> bool:
    """Return whether libpq writes this line below a notice's first line."""
    return _BELOW.match(line) is not None


def emit(severity: str, message: str) -> None:
    """Log one notice."""
    level = _LEVELS.get(severity.rstrip("12345"), logging.WARNING)
    NOTICES.say(level, "server_notice", severity=severity, message=clean(message, _MOST_CHARACTERS))


def log_notices(notices: list[str]) -> None:
    """Log the notices of a connection, and empty its list."""
    texts, notices[:] = list(notices), []
    for text in texts:
        line = text.strip().partition("\n")[0]
        emit(*(parse_notice(line) or ("WARNING", line)))
