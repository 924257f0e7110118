"""Timelines: which one a server left another at, from its timeline history file.

In: the file's content, or a walsender connection to ask for it (TIMELINE_HISTORY).  Out: switch points by timeline.
Invariant: the file has one line for each ancestor, `timeline, tab, switch point, tab, reason`: what is written on a
timeline up to its switch point belongs to the history of the file's own timeline, what is behind it does not (F58).
A line that cannot be read is an error, never passed over.
"""

from __future__ import annotations

from collections.abc import Mapping

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SourceError
from cdcd.lsn import Lsn, parse_lsn
from cdcd.source.connection import fetch

_NO_FILE = "58P01"


def parse_history(content: bytes) -> dict[int, Lsn]:
    """Return where each ancestor was left. Raises SourceError for what is no timeline history file."""
    points: dict[int, Lsn] = {}
    for line in content.splitlines():
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        words = line.split(None, 2)
        try:
            timeline, switch_lsn = int(words[0]), parse_lsn(words[1].decode("ascii"))
        except (IndexError, ValueError):
            raise SourceError(
                "the server's timeline history has a line that is none", line=len(points) + 1
            ) from None
        if points and timeline <= max(points):
            raise SourceError("the server's timeline history is not in order", timeline=timeline)
        points[timeline] = switch_lsn
    return points


def read_history(connection: Connection, timeline: int) -> Mapping[int, Lsn]:
    """Return where the ancestors of this timeline were left, asked over a walsender connection.

    Empty for the first timeline, and where the server does not have the file: then nothing is known of them.
    """
    if timeline == 1:
        return {}
    try:
        content = fetch(connection, f"TIMELINE_HISTORY {timeline}")[0][1]
    except CdcdError as error:
        if error.context.get("sqlstate") == _NO_FILE:
            return {}
        raise
    # Before PostgreSQL 15 the column says that it is bytea, since then text.
    return parse_history(content.encode() if isinstance(content, str) else bytes(content))
