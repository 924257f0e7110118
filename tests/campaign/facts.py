"""The checker's input: plain data, whatever its source.

Comes from: PostgreSQL's own history of committed changes (`witness`), read_committed readers during the faults
(`readers`).  Goes to: `checker`.
Invariant: the value of a row is the text of its judged column; None is a row that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Place = tuple[str, int]
"""A topic and a partition."""
Key = tuple[str, str]
"""A table and the text of a row's primary key."""
State = dict[Key, str]
"""The rows that exist, with their values."""

TOTALLED = ("checking", "savings")
"""The tables of the accounts: the sum over all of their values is constant."""
LISTS = "lists"
"""The table of the lists. A list is its elements with a comma after each of them."""
REGISTERS = "registers"
"""The table of the registers, which get each value once."""


class Write(NamedTuple):
    """One change of one row: its value after the change."""

    key: Key
    value: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed transaction; `end_lsn`: the position after its commit record."""

    xid: int
    end_lsn: int
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One record as a reader got it. `op`: c, u, d, r or t; x for a tombstone, ? for one that cannot be decoded."""

    place: Place
    offset: int
    op: str
    key: Key
    value: str | None = None
    xid: int = 0
    digest: int = 0

    def __str__(self) -> str:
        table, row_id = self.key
        topic, partition = self.place
        return f"{self.op} of {table} {row_id}, xid {self.xid}, {topic}/{partition} at {self.offset}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A progress record: all transactions up to `end_lsn` are below `offsets` in the topics, and no later one.

    `is_whole`: False during the copy of the tables, when the topics are no state of the database yet. `floor`: a
    position up to which tables were copied after the stream's first one; None during the copy.
    """

    number: int
    end_lsn: int
    offsets: Mapping[Place, int]
    is_whole: bool = True
    floor: int | None = 0

    @property
    def copied_to(self) -> int | None:
        """No row was copied as of a later position than this one; None during the copy."""
        return None if self.floor is None else max(self.floor, self.end_lsn)


@dataclass(frozen=True, slots=True)
class Visit:
    """What a reader that began at the first offset found below the offsets of a cut: a digest for each record."""

    cut: Cut
    digests: Mapping[tuple[str, int, int], int]


@dataclass(frozen=True, slots=True)
class History:
    """A whole run. `records`: in the order in which the following reader got them; `rows`: the tables at the end."""

    commits: tuple[Commit, ...]
    records: tuple[ReadRecord, ...]
    cuts: tuple[Cut, ...]
    rows: Mapping[Key, str]
    visits: tuple[Visit, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must never happen. `kind`: its name in the report."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"
