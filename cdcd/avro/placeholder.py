"""The placeholder of a change whose record is too large for Kafka (F65).

In: the record, and the plan that encoded it.  Out: the identity of its change; the small record to write instead.
Invariant: the placeholder has the change's topic, partition, key and position in its transaction, so that all counts
remain correct; its op is `g`, which tells readers that changes are missing here. Its fields are copied from the
record's bytes, so the placeholder is the same whenever, and however often, it is made.
Must not: carry anything of the row but the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcd.avro.columns import Extras
from cdcd.avro.encode import OPS
from cdcd.avro.field_offsets import Span, field_offsets, named_types
from cdcd.avro.plan import HEADER_BYTES, RelationPlan
from cdcd.avro.transaction import NULL
from cdcd.errors import SchemaError
from cdcd.model import Record
from cdcd.schema.flat import FLAT_PROPERTY
from cdcd.schema.varint import decode_long

_FALSE = b"\x00"
_OF_A_ROW = frozenset("cudr")


@dataclass(frozen=True, slots=True)
class Change:
    """The change in a record. `xid` and `lsn` (the row's own) are None where the record does not have them.

    `key_columns` are the columns of the record's key, in its order.
    """

    topic: str
    partition: int
    schema: str
    table: str
    op: str
    xid: int | None
    timeline: int
    commit_lsn: int
    tx_seq: int
    lsn: int | None
    key_columns: tuple[str, ...]
    size_bytes: int


class RowRecord:
    """A parsed record of a table's topic. Raises SchemaError where the record does not match its plan."""

    def __init__(self, record: Record, plan: RelationPlan) -> None:
        assert record.value is not None, "a tombstone has no change"
        self._record = record
        self._plan = plan
        self._value = record.value
        schema = plan.value_schema
        named = named_types(schema)
        self._offsets = field_offsets(schema, self._value, HEADER_BYTES, named)
        if max(end for _, end in self._offsets.values()) != len(self._value):
            raise SchemaError("a record has bytes after its last field", name=schema["name"])
        if plan.is_flat:
            self._source = {
                meaning: self._offsets[name]
                for meaning, name in schema[FLAT_PROPERTY].items()
                if name in self._offsets
            }
        else:
            types = {field["name"]: field["type"] for field in schema["fields"]}
            self._source = field_offsets(types["source"], self._value, self._offsets["source"][0], named)

    @property
    def change(self) -> Change:
        """The record's change."""
        record, relation = self._record, self._plan.relation
        return Change(
            topic=record.topic,
            partition=record.partition,
            schema=relation.schema,
            table=relation.name,
            op=self._op,
            xid=self._optional("txId"),
            timeline=self._long(self._source["timeline"]),
            commit_lsn=self._long(self._source["commit_lsn"]),
            tx_seq=self._long(self._source["tx_seq"]),
            lsn=self._optional("lsn"),
            key_columns=tuple(relation.columns[i].name for i in self._plan.key_indexes),
            size_bytes=len(record.key or b"") + len(self._value),
        )

    @property
    def is_of_a_row(self) -> bool:
        """Whether the change is of one row, and not a truncate or a gap, whose records are always small."""
        return self._op in _OF_A_ROW

    def placeholder(self, details: Mapping[str, bytes]) -> Record:
        """Return the record to write instead. `details`: the entries of `special`, each under `gap.<name>`."""
        extras = Extras()
        extras.special.update((f"gap.{name}", text) for name, text in details.items())
        value = b"".join(self._flat(extras) if self._plan.is_flat else self._envelope(extras))
        return Record(self._record.topic, self._record.partition, self._record.key, value)

    def _envelope(self, extras: Extras) -> tuple[bytes, ...]:
        value, source = self._value, self._source
        return (
            value[:HEADER_BYTES],
            NULL,  # before
            NULL,  # after
            value[source["version"][0] : source["special"][0]],
            extras.encode(),
            value[slice(*self._offsets["transaction"])],
            OPS["g"],
            value[self._offsets["ts_ms"][0] :],
        )

    def _flat(self, extras: Extras) -> tuple[bytes, ...]:
        value, source = self._value, self._source
        of_the_change = value[source["timeline"][0] : source["special"][0]]
        return value[:HEADER_BYTES], self._plan.null_row, OPS["g"], _FALSE, of_the_change, extras.encode()

    @property
    def _op(self) -> str:
        begin, end = self._source["op"] if self._plan.is_flat else self._offsets["op"]
        return self._value[begin + 1 : end].decode()  # the length takes one byte

    def _long(self, span: Span) -> int:
        return decode_long(self._value, span[0])[0]

    def _optional(self, name: str) -> int | None:
        """Return an optional long of the envelope's source, None where it is null or the value is flat."""
        span: Any = self._source.get(name)
        if span is None or span[1] - span[0] == 1:
            return None
        return decode_long(self._value, span[0] + 1)[0]
