"""Timelines: the LSNs at which a server left earlier timelines, from its timeline history file.

In: the file's content, or a walsender connection to read it (TIMELINE_HISTORY).  Out: switch points by timeline.
Invariant: the file has one line per ancestor, `timeline, tab, switch point, tab, reason`. WAL of a timeline up to its
switch point belongs to the history of the file's own timeline, later WAL does not (F58). A malformed line is an error
and is never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SourceError
from cdcd.lsn import Lsn, parse_lsn
from cdcd.source.connection import fetch

_NO_FILE = "58P01"


def parse_history(content: bytes) -> dict[int, Lsn]:
    """Return the switch point of each ancestor. Raises SourceError for an invalid timeline history file."""
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
                "the server's timeline history has a malformed line", line=len(points) + 1
            ) from None
        if points and timeline <= max(points):
            raise SourceError("the server's timeline history is not in order", timeline=timeline)
        points[timeline] = switch_lsn
    return points


def read_history(connection: Connection, timeline: int) -> Mapping[int, Lsn]:
    """Return the switch points of this timeline's ancestors, queried over a walsender connection.

    Empty for the first timeline, and if the server lacks the file: then the ancestors are unknown. Raises Source
    errors.
    """
    if timeline == 1:
        return {}
    try:
        content = fetch(connection, f"TIMELINE_HISTORY {timeline}")[0][1]
    except CdcdError as error:
        if error.context.get("sqlstate") == _NO_FILE:
            return {}
        raise
    # Before PostgreSQL 15 the column's type is bytea, since then text.
    return parse_history(content.encode() if isinstance(content, str) else bytes(content))
