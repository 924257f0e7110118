"""An independent record of committed changes: PostgreSQL's own test_decoding, with a separate slot.

In: a DSN whose role has REPLICATION; later, the events that an independent consumer has read.
Out: nothing, or an AssertionError that names the transaction and the table that differ.
It shares no code with cdcd: it parses the plugin's text line by line.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import closing

import psycopg2

from tests.support.reader import Event

SLOT = "witness"
CHANGE = re.compile(r"table (?P<tables>.*?): (?P<verb>INSERT|UPDATE|DELETE|TRUNCATE): ")
PARTITION = re.compile("events_.*")
"""Matches partitions of the shop's partitioned table: cdcd uses the root's name, the plugin the partition's."""
Place = tuple[int, str]
"""A transaction id, and a table or MESSAGES."""
MESSAGES = "message"


class Witness:
    """Records every transaction that commits after the witness was created."""

    def __init__(self, dsn: str, password: str | None = None) -> None:
        self._dsn, self._password = dsn, password
        row = self._rows(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'test_decoding')"
        )
        self.from_lsn = int(row[0][0])

    def read(self) -> dict[Place, Counter[str]]:
        """Return the number of each verb for each transaction and table. Drop the slot."""
        seen: dict[Place, Counter[str]] = defaultdict(Counter)
        xid = 0
        for (line,) in self._rows("SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL)"):
            if line.startswith("BEGIN "):
                xid = int(line.split()[1])
            elif line.startswith("message: transactional: 1 "):
                seen[xid, MESSAGES]["message"] += 1
            elif found := CHANGE.match(line):
                for table in found["tables"].split(", "):
                    seen[xid, PARTITION.sub("events", table.removeprefix("public."))][found["verb"]] += 1
            else:
                assert line.startswith(("COMMIT", "message: transactional: 0 ")), "an unknown kind of line"
        self._rows("SELECT pg_drop_replication_slot(%s)")
        return seen

    def _rows(self, query: str) -> list[tuple[str, ...]]:
        with (
            closing(psycopg2.connect(self._dsn, password=self._password)) as connection,
            connection.cursor() as cursor,
        ):
            connection.autocommit = True
            cursor.execute(query, (SLOT,))
            return cursor.fetchall()


def changes_of(
    events: list[Event], from_lsn: int, topics: str, message_topic: str
) -> dict[Place, Counter[str]]:
    """Return the number of each op for each transaction from `from_lsn` on and topic; a truncate counts once.

    `topics` is the prefix of the tables' topics, before the table's name.
    """
    seen: dict[Place, Counter[str]] = defaultdict(Counter)
    truncates = set()
    for event in events:  # a BEGIN or END has no sequence
        if event.sequence is None or event.sequence[1] < from_lsn or event.op == "r":
            continue
        xid = event.source["txId"]
        if event.op == "t":
            if (event.topic, event.sequence) in truncates:
                continue
            truncates.add((event.topic, event.sequence))
        table = MESSAGES if event.topic == message_topic else event.topic.removeprefix(f"{topics}.")
        seen[xid, table][str(event.op)] += 1
    return seen


def assert_same_changes(witnessed: dict[Place, Counter[str]], read: dict[Place, Counter[str]]) -> None:
    """Assert that each transaction has the same changes of each table; an UPDATE of a key is a `d` and a `c`."""
    assert witnessed, "the witness has no transactions"
    for place in sorted(set(witnessed) | set(read)):
        done, ops = witnessed.get(place, Counter()), read.get(place, Counter())
        moved = ops["c"] - done["INSERT"]
        expected = {
            "c": done["INSERT"] + moved,
            "d": done["DELETE"] + moved,
            "u": done["UPDATE"] - moved,
            "t": done["TRUNCATE"],
            "m": done["message"],
        }
        assert 0 <= moved <= done["UPDATE"], f"{place}: {dict(done)} committed, {dict(ops)} read"
        assert {op: ops[op] for op in expected} == expected, (
            f"{place}: {dict(done)} committed, {dict(ops)} read"
        )
