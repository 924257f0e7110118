"""Fold changes into a table without a key, a bag: each change adds or removes one row.

In: events of one table, the target's rows.  Out: the new rows, as Arrow tables with `__key` and `__special`.
Invariant: a row that a change removes is found by all values that PostgreSQL has sent of it; of rows that are equal
in these, one is removed.
Must not: do I/O, log values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from heapq import heappop, heappush

import pyarrow as pa

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.events import Event
from cdcd.spark.tables.fold import RowState, row_state, rows_of, where_of
from cdcd.spark.target.large_columns import taken
from cdcd.spark.target.shape import KEY, SPECIAL, SPECIAL_TYPE, Field, TableShape, with_digests

__all__ = ["fold_bag"]


def fold_bag(events: list[Event], shape: TableShape, existing: pa.Table) -> pa.Table:
    """Return the rows of a table without a key: changes add and remove one occurrence of a whole row."""
    states: list[RowState] = []
    signs: list[int] = []
    lacks: list[tuple[str, ...]] = []
    for event in events:
        if event.key is not None:
            raise MirrorInconsistent("a change of a table without a key has a key", **where_of(shape, event))
        if event.unchanged:
            raise MirrorInconsistent(
                "a change of a table without a key has an incomplete row", **where_of(shape, event)
            )
        if any(name.endswith(_NOT_LOGGED) for name in event.special or ()):
            raise MirrorInconsistent(_PARTIAL, hint=_PARTIAL_HINT, **where_of(shape, event))
        for image, sign in _IMAGES.get(event.op, ()):
            values = event.before if image == "before" else event.after
            if values is None:
                raise MirrorInconsistent(f"a change lacks its {image} row", **where_of(shape, event))
            states.append(row_state(event, shape, image, values))
            signs.append(sign)
            lacks.append(shape.lacks.get(event.schema_id, ()))
        if event.op not in _IMAGES:
            raise MirrorInconsistent(
                "the change has an operation that produces no row", **where_of(shape, event)
            )
    changed = _rows_of_bag(states, shape, existing)
    return _bag_sum(changed, signs, existing, _Forms(changed, existing, lacks, shape))


_NOT_LOGGED = ".not_logged"
_PARTIAL = "PostgreSQL logged only the partition's replica identity of an old row, and the table has no key"
_PARTIAL_HINT = (
    "give its records a key (format.key_columns), or set REPLICA IDENTITY FULL on its partitions; then take a new "
    "snapshot under another name, into an empty target"
)
_IMAGES: dict[str, tuple[tuple[str, int], ...]] = {
    "c": (("after", 1),),
    "r": (("after", 1),),
    "u": (("before", -1), ("after", 1)),
    "d": (("before", -1),),
}


def _rows_of_bag(states: list[RowState], shape: TableShape, existing: pa.Table) -> pa.Table:
    numbers = [number.to_bytes(8, "big") for number in range(len(states))]
    return with_digests(rows_of(numbers, states, shape, existing), shape)


def _bag_sum(changed: pa.Table, signs: list[int], existing: pa.Table, forms: _Forms) -> pa.Table:
    """Return the rows after applying each change in turn, because a change may remove a row added just before."""
    counts: Counter[bytes] = Counter(existing.column(KEY).to_pylist() if -1 in signs else ())
    held = counts.copy()
    sample: dict[bytes, int] = {}
    for number, (digest, sign) in enumerate(zip(forms.digests(0), signs, strict=True)):
        if sign < 0:
            counts[forms.find(number, counts)] -= 1
        else:
            counts[digest] += 1
            forms.note_added(digest)
            sample[digest] = number
    added = [number for digest, number in sample.items() for _ in range(counts[digest] - held[digest])]
    lost = held - counts
    if lost:
        keep = []
        for digest in existing.column(KEY).to_pylist():
            keep.append(not lost[digest])
            lost[digest] -= 1 if lost[digest] else 0
        existing = existing.filter(pa.array(keep, pa.bool_()))
    return pa.concat_tables([existing, taken(changed, pa.array(added, pa.int64()))])


class _Forms:
    """Rows with all columns, and without the newest ones: the versions of a row that the target may have.

    PostgreSQL does not send the rows when a column is added with a default or renamed. It sends no values of a column
    that the target retains: `lacks` names these for each row, and the row of the target may have any values there.
    """

    def __init__(
        self, rows: pa.Table, existing: pa.Table, lacks: list[tuple[str, ...]], shape: TableShape
    ) -> None:
        self._rows, self._shape, self._lacks = rows, shape, lacks
        self._all = (rows, existing)
        self._without: dict[tuple[str, ...], dict[bytes, list[bytes]]] = {}
        self._absent: dict[bytes, list[list[bytes]]] = {}
        self._later = sorted((one for one in shape.fields if one.is_later), key=lambda one: one.number)
        self._digests: list[list[bytes]] = [rows.column(KEY).to_pylist()]

    def digests(self, age: int) -> list[bytes]:
        """Return the rows' digests without the `age` newest columns."""
        while len(self._digests) <= age:
            self._rows = with_digests(_without(self._rows, self._later.pop()), self._shape)
            self._digests.append(self._rows.column(KEY).to_pylist())
        return self._digests[age]

    def note_added(self, digest: bytes) -> None:
        """Note that a row with all columns is there."""
        for heap in self._absent.pop(digest, ()):
            heappush(heap, digest)

    def find(self, number: int, counts: Mapping[bytes, int]) -> bytes:
        """Return the digest of an existing row that a change removes."""
        for age in range(len(self._digests) + len(self._later)):
            digest = self.digests(age)[number]
            if counts[digest] > 0:
                return digest
            held = self._with_any(self._lacks[number]).get(digest, [])
            while held and counts[held[0]] <= 0:
                self._absent.setdefault(held[0], []).append(held)
                heappop(held)
            if held:  # which of them PostgreSQL has removed is not known
                return held[0]
        raise MirrorInconsistent(
            "the target does not have the row that a change removes", topic=self._shape.topic
        )

    def _with_any(self, lacks: tuple[str, ...]) -> dict[bytes, list[bytes]]:
        """Return heaps of the digests of all rows, by those that they have without some columns.

        Without columns nothing.
        """
        columns = [one for one in self._shape.fields if one.avro_name in lacks]
        if columns and lacks not in self._without:
            found: dict[bytes, set[bytes]] = {}
            for rows in self._all:
                bare = with_digests(reduce(_without, columns, rows), self._shape)
                for digest, whole in zip(bare[KEY].to_pylist(), rows[KEY].to_pylist(), strict=True):
                    found.setdefault(digest, set()).add(whole)
            # The lowest digest comes first, so that the result does not depend on the batches.
            self._without[lacks] = {one: sorted(both) for one, both in found.items()}
        return self._without.get(lacks, {})


def _without(row: pa.Table, column: Field) -> pa.Table:
    """Return the rows with null in a column."""
    place = row.schema.get_field_index(column.name)
    row = row.set_column(place, row.schema.field(place), pa.nulls(row.num_rows, row.schema.field(place).type))
    special = [
        [entry for entry in entries or () if entry[0] != column.name] or None
        for entries in row.column(SPECIAL).to_pylist()
    ]
    place = row.schema.get_field_index(SPECIAL)
    return row.set_column(place, row.schema.field(place), pa.array(special, SPECIAL_TYPE))
