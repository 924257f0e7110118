"""Columns of a query that its table lost while the query ran: by DROP COLUMN or by a new name, also of an attribute.

In: the versions of the schemas when the query started; the topic of a record and the id of its schema.
Out: the paths of the lost columns and attributes.
Invariant: a schema is new if its id was not among the topic's versions at the start. The ids themselves have no
order: without a registry they are hashes. A version that was deleted from a registry is an old one: its records lack
the columns that were added later.
Must not: compare schemas of two topics, which may share a record's name (`<topic>.v2`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding.columns import AvroType, without_null
from cdcd.spark.decoding.frame import column_name
from cdcd.spark.decoding.schemas import TopicVersions, expanded, value_record

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Start:
    """A topic when the query started: the ids of its versions, and the paths of the newest one's columns."""

    ids: frozenset[int]
    columns: tuple[Path, ...]


class LostColumns:
    """The losses of one query, for one task.

    `wanted`: the names of its columns. `schema_of` returns the expanded schema of an id. `is_deleted`: whether
    an id is that of a deleted version of a topic; it is asked only for an unknown schema that lacks columns.
    """

    def __init__(
        self,
        versions: Sequence[TopicVersions],
        wanted: Collection[str],
        schema_of: Callable[[int], AvroType],
        is_deleted: Callable[[str, int], bool],
    ) -> None:
        self._wanted = frozenset(wanted)
        self._start = {one.topic: self._at_start(one) for one in versions}
        self._schema_of = schema_of
        self._is_deleted = is_deleted
        self._found: dict[tuple[str, int], tuple[str, ...]] = {}

    def of_batch(self, topics: pa.Array, schema_ids: pa.Array) -> dict[tuple[str, int], tuple[str, ...]]:
        """Return the lost columns by topic and id, of those of these records that lost some. A null id has none."""
        pairs = [(topic, number) for topic, number in _pairs(topics, schema_ids) if number is not None]
        found = {pair: self._lost(*pair) for pair in pairs}
        return {pair: names for pair, names in found.items() if names}

    def _lost(self, topic: str, number: int) -> tuple[str, ...]:
        pair = (topic, number)
        if pair not in self._found:
            self._found[pair] = self._compared(topic, number)
        return self._found[pair]

    def _compared(self, topic: str, number: int) -> tuple[str, ...]:
        start = self._start.get(topic)
        if start is None or number in start.ids:
            return ()
        now = frozenset(self._columns(self._schema_of(number)))
        lost = [one for one in start.columns if one not in now and (len(one) == 1 or one[:-1] in now)]
        if not lost or self._is_deleted(topic, number):
            return ()
        return tuple(".".join(one) for one in lost)

    def _at_start(self, versions: TopicVersions) -> _Start:
        newest = expanded(versions.values[-1].text, topic=versions.topic)
        return _Start(frozenset(one.schema_id for one in versions.values), self._columns(newest))

    def _columns(self, envelope: AvroType) -> tuple[Path, ...]:
        fields = value_record(envelope)["fields"]
        return tuple(_paths(one for one in fields if column_name(one) in self._wanted))


def _pairs(topics: pa.Array, schema_ids: pa.Array) -> Iterable[tuple[str, int | None]]:
    """Return the pairs of a topic and an id that records have; most batches are of one topic, which is cheaper."""
    if len(topics) and pc.all(pc.equal(topics, topics[0])).as_py():
        topic = topics[0].as_py()
        return [(topic, number) for number in pc.unique(schema_ids).to_pylist()]
    both = pa.table({"topic": topics, "id": schema_ids}).group_by(["topic", "id"], use_threads=False)
    pairs = both.aggregate([])
    return zip(pairs["topic"].to_pylist(), pairs["id"].to_pylist(), strict=True)


def _paths(fields: Iterable[AvroType], above: Path = ()) -> Iterator[Path]:
    """Yield the paths of fields by PostgreSQL's names, also of records in fields, arrays and maps."""
    for one in fields:
        path = (*above, column_name(one))
        yield path
        inside = _record_in(one["type"])
        if inside is not None:
            yield from _paths(inside["fields"], path)


def _record_in(avro: AvroType) -> AvroType | None:
    """Return the record that a type is, or that its items or values are."""
    avro = without_null(avro)
    while isinstance(avro, dict):
        if avro["type"] == "record":
            return avro
        avro = without_null(avro.get("items") or avro.get("values") or avro["type"])
    return None
