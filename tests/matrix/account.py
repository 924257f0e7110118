"""PostgreSQL's own account of the committed changes, value by value: test_decoding on a slot of its own.

In: a DSN.  Out: transactions in commit order, each with its changes in order.
Invariant: every line of the plugin is parsed completely; an unknown line is an error. Shares no code with cdcd.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg2

SLOT = "witness"
UNCHANGED = "unchanged TOAST"
FETCHED_ROWS = 10_000

_CHANGE = re.compile(r"table public\.(?P<table>\w+): (?P<verb>INSERT|UPDATE|DELETE):(?P<rest>.*)", re.DOTALL)
_TRUNCATE = re.compile(r"table (?P<tables>[\w., ]+): TRUNCATE: (?P<flags>.*)")
_MESSAGE = re.compile(
    r"message: transactional: (?P<transactional>[01]) prefix: (?P<prefix>.*), sz: \d+ content:(?P<content>.*)"
)
_VALUE = re.compile(
    r" (?P<name>\w+)\[(?P<type>(?:[^\[\]]|\[\])+)\]:(?P<value>'(?:[^']|'')*'|[^ ]+)(?= |$)", re.DOTALL
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A change of a row. `old` holds the columns of the replica identity, without NULLs."""

    lsn: int
    table: str
    verb: str
    old: Row | None
    new: Row | None


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE of these tables."""

    lsn: int
    tables: tuple[str, ...]
    flags: frozenset[str]


@dataclass(frozen=True)
class Emitted:
    """A logical message."""

    lsn: int
    prefix: str
    content: str


@dataclass
class Transaction:
    """One committed transaction."""

    xid: int
    changes: list[Change | Truncation | Emitted] = field(default_factory=list)


@dataclass
class Account:
    """All committed changes. `loose`: messages outside transactions."""

    transactions: list[Transaction] = field(default_factory=list)
    loose: list[Emitted] = field(default_factory=list)


def begin(dsn: str, slot: str = SLOT) -> None:
    """Create the slot; transactions that commit from now on are in the account."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (slot,))


def read(dsn: str, slot: str = SLOT) -> Account:
    """Read the slot to its end."""
    account = Account()
    current = Transaction(0)
    for lsn, line in _lines(dsn, slot):
        if line.startswith("BEGIN "):
            current = Transaction(int(line.split()[1]))
        elif line.startswith("COMMIT "):
            assert int(line.split()[1]) == current.xid
            account.transactions.append(current)
        elif found := _MESSAGE.fullmatch(line):
            emitted = Emitted(lsn, found["prefix"], found["content"])
            (current.changes if found["transactional"] == "1" else account.loose).append(emitted)
        else:
            current.changes.append(_truncation(lsn, line) or _change(lsn, line))
    return account


def _lines(dsn: str, slot: str) -> Iterator[tuple[int, str]]:
    query = "SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM pg_logical_slot_get_changes(%s, NULL, NULL)"
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor("witness") as cursor:
        cursor.itersize = FETCHED_ROWS
        cursor.execute(query, (slot,))
        yield from cursor


def _truncation(lsn: int, line: str) -> Truncation | None:
    found = _TRUNCATE.fullmatch(line)
    if found is None:
        return None
    tables = tuple(table.removeprefix("public.") for table in found["tables"].split(", "))
    return Truncation(lsn, tables, frozenset(found["flags"].split()) - {"(no-flags)"})


def _change(lsn: int, line: str) -> Change:
    found = _CHANGE.fullmatch(line)
    assert found is not None, "a line of an unknown kind"
    verb, rest = found["verb"], found["rest"]
    old: Row | None = None
    if rest.startswith(" old-key:"):
        old, rest = _row(rest.removeprefix(" old-key:"), " new-tuple:")
    if verb == "DELETE":
        assert rest != " (no-tuple-data)", "a DELETE without an identity"
        return Change(lsn, found["table"], verb, _row(rest)[0], None)
    return Change(lsn, found["table"], verb, old, _row(rest)[0])


def _row(text: str, end: str = "") -> tuple[Row, str]:
    """Return the values up to `end`, and the rest of the line."""
    row: Row = {}
    position = 0
    while position < len(text) and not (end and text.startswith(end, position)):
        found = _VALUE.match(text, position)
        assert found is not None, "a value of an unknown form"
        row[found["name"]] = _value(found["type"], found["value"])
        position = found.end()
    return row, text[position + len(end) :]


def _value(kind: str, text: str) -> Any:
    if text == "null":
        return None
    if text == "unchanged-toast-datum":
        return UNCHANGED
    if text.startswith("'"):
        text = text[1:-1].replace("''", "'")
    return _READ[kind](text)


def _array(text: str) -> list[int | None]:
    return [None if item == "NULL" else int(item) for item in text[1:-1].split(",")]


_READ: dict[str, Any] = {
    "integer": int,
    "bigint": int,
    "numeric": str,
    "text": str,
    "boolean": lambda text: {"true": True, "false": False}[text],
    "double precision": float,
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
    "timestamp with time zone": lambda text: datetime.fromisoformat(text).astimezone(UTC),
    "integer[]": _array,
}
