"""Columns that PostgreSQL's table does not have any more, and that the mirror's table retains. Pure.

In: the policies of a mirror; the columns of a table while its schemas are followed.
Out: the columns that remain, with names that no other column of the table has.
Invariant: a retained column is no column of a later schema, whatever its name is, except one that comes back with its
attnum. The names do not depend on the batches in which the schemas come.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import pyarrow as pa

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.columns import AvroType, arrow_type, names_within
from cdcd.spark.target.shape import KEY, MISSING, SPECIAL, Field, Retained
from cdcd.spark.target.versions import TableEntry

__all__ = [
    "CHANGED_TYPES",
    "DEFAULT_POLICIES",
    "DROPPED_COLUMNS",
    "ChangedTypes",
    "ColumnPolicies",
    "ColumnTypeChanged",
    "Continued",
    "DroppedColumns",
    "continued_of",
    "with_free_names",
    "without_dropped",
]

DroppedColumns = Literal["drop", "keep"]
DROPPED_COLUMNS: tuple[DroppedColumns, ...] = ("drop", "keep")
ChangedTypes = Literal["park", "new_column", "fail"]
CHANGED_TYPES: tuple[ChangedTypes, ...] = ("park", "new_column", "fail")
_RESERVED = (KEY, SPECIAL, MISSING)


@dataclass(frozen=True, slots=True)
class ColumnPolicies:
    """What a mirror does with a column that PostgreSQL has dropped, and with one that gets an incompatible type."""

    dropped: DroppedColumns = "drop"
    changed_types: ChangedTypes = "park"


DEFAULT_POLICIES = ColumnPolicies()


class ColumnTypeChanged(MirrorInconsistent):
    """A column has a type whose values are not those of its type before."""


@dataclass(frozen=True, slots=True)
class Continued:
    """A column of the newest schema, or a retained one. `old`: the column of the entry that it is, None: a new one.

    `name`: PostgreSQL's; of a retained column that of the mirror. `avro`: the type in the last schema that has it.
    `since`: the place of the first schema of the batch that has it. `names`: its Avro names by ids of schemas.
    `attnum`, `is_carried` and `retained` as those of a `Field`.
    """

    avro_name: str
    name: str
    avro: AvroType
    attnum: int = 0
    is_carried: bool = False
    old: Field | None = None
    since: int = 0
    names: Mapping[int, str] = field(default_factory=dict)
    retained: Retained = ""


def continued_of(old: Field) -> Continued:
    """Return a column of an entry."""
    return Continued(
        old.avro_name, old.name, old.avro, old.attnum, old.is_carried, old, retained=old.retained
    )


def without_dropped(entry: TableEntry, policies: ColumnPolicies) -> TableEntry:
    """Return the entry without the dropped columns that a mirror with another policy has retained."""
    if policies.dropped == "keep" or not any(one.retained == "dropped" for one in entry.fields):
        return entry
    return replace(entry, fields=tuple(one for one in entry.fields if one.retained != "dropped"))


def with_free_names(current: Sequence[Continued], retained: Iterable[Continued]) -> list[Continued]:
    """Return the retained columns with names that differ from those of all others, not only in case.

    A name remains unless another column has it. The Avro name only identifies the column in the schemas of a batch.
    """
    retained = list(retained)
    if not retained:
        return []
    taken = {one.lower() for one in _RESERVED}
    for column in current:
        taken |= {column.avro_name.lower(), *_names(column, column.name)}
    found = []
    for column in retained:
        name = _free(_candidates(column), column, taken)
        avro_name = column.avro_name
        if avro_name.lower() in taken:
            avro_name = _free(_suffixed(avro_name, column.attnum), column, taken)
        taken |= {avro_name.lower(), *_names(column, name)}
        found.append(replace(column, name=name, avro_name=avro_name))
    return found


def _free(candidates: Iterator[str], column: Continued, taken: set[str]) -> str:
    return next(one for one in candidates if taken.isdisjoint(_names(column, one)))


def _names(column: Continued, name: str) -> set[str]:
    """Return the names of a column, and of the fields inside it, in lower case."""
    return {one.lower() for one in names_within(pa.field(name, arrow_type(column.avro)))}


def _candidates(column: Continued) -> Iterator[str]:
    """Yield the names that a retained column may have, the best one first."""
    yield column.name
    yield from _suffixed(column.name, column.attnum)


def _suffixed(name: str, attnum: int) -> Iterator[str]:
    """Yield names with the attnum, then with a further number."""
    first = f"{name}__{attnum or 'dropped'}"
    yield first
    yield from (f"{first}_{number}" for number in count(2))
