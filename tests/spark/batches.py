"""A mirror of one table without Spark and Kafka: batches of records, through plan, fold and manifest.

In: keys and values from `tests.spark.events`.  Out: the rows that a reader sees after each batch.
Invariant: the steps are those of `cdcd.spark.mirror.MirrorBatch`, on the driver's path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcd.spark.cuts import with_loading
from cdcd.spark.manifest import Manifest, TableEntry, read_manifest, sweep, write_manifest
from cdcd.spark.next_manifest import next_manifest, refuse_incomplete
from cdcd.spark.plan import Look, TablePlan, plan_table
from cdcd.spark.reading import read_mirror
from cdcd.spark.schemas import HEADER_BYTES
from cdcd.spark.tasks import WHOLE, Folded, bucket_of, fold_frame
from tests.spark.events import Table, envelope_schema, key_schema

TOPIC = "shop.public.items"
BUCKETS = 4
Record = tuple[bytes | None, bytes]


class _Frame:
    """The part of a DataFrame that `fold_frame` uses for a small batch."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def select(self, *_: str) -> _Frame:
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        types = [("topic", pa.string()), ("bucket", pa.int32()), ("key", pa.binary()), ("value", pa.binary())]
        return pa.Table.from_pylist(self._rows, schema=pa.schema(types))


class Batches:
    """The mirror of one table. Its key is the first column, or it has none."""

    def __init__(self, target: Path, fields: list[dict[str, Any]], *, has_key: bool = True) -> None:
        self.target = target
        target.mkdir()
        self._schemas: dict[int, Any] = {}
        names = (fields[0]["name"],) if has_key else ()
        key = (1, key_schema(TOPIC, fields[:1])) if has_key else None
        self._table = Table(TOPIC, fields, names, "", None, key)
        self._order_by = fields[0]["name"]
        self.alter(fields)

    def alter(self, fields: list[dict[str, Any]]) -> None:
        """Change the columns; later records have another schema. A registry gives the same schema the same id."""
        schema = envelope_schema(TOPIC, fields)
        known = [number for number, one in self._schemas.items() if one == schema]
        number = known[0] if known else len(self._schemas) + 2
        self._schemas[number] = schema
        self._table.alter(fields)
        self._table._value = (number, self._schemas[number])

    def change(self, op: str, commit_lsn: int, tx_seq: int, **rest: Any) -> Record:
        """Return the record of a change."""
        return self._table.event(op, commit_lsn, tx_seq, **rest)

    def run(
        self, records: Sequence[Record], *, loading: bool, accept_gaps: bool = False
    ) -> list[dict[str, Any]]:
        """Apply one batch, return the rows that a reader sees. `loading`: the table is being copied at its end."""
        manifest = read_manifest(self.target) or Manifest("shop", BUCKETS)
        plans: dict[str, TablePlan] = {}
        entries: dict[str, TableEntry] = {}
        if records:
            entry = manifest.tables.get(TOPIC, TableEntry(TOPIC))
            plans[TOPIC], entries[TOPIC] = plan_table(
                self._look(records), entry, self._schemas.__getitem__, accepts_gaps=accept_gaps
            )
        offsets = with_loading({}, frozenset({TOPIC}) if loading else frozenset())
        manifest = next_manifest(manifest, offsets, entries, plans, self._fold(records, plans))
        refuse_incomplete(str(self.target), manifest)
        write_manifest(self.target, manifest)
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that a reader sees, after a restart."""
        sweep(self.target)
        opened = read_mirror(self.target)
        if TOPIC not in opened.topics:
            return []
        found = [
            {name: value for name, value in row.items() if name != "__special" or value}
            for row in opened.table(TOPIC).to_pylist()
        ]
        assert opened.rows(TOPIC) == len(found)
        return sorted(found, key=lambda row: row[self._order_by])

    def incomplete_rows(self) -> int:
        """Return the number of incomplete rows."""
        manifest = read_manifest(self.target)
        assert manifest is not None
        return sum(file.rows for entry in manifest.tables.values() for file in entry.incomplete)

    def _look(self, records: Sequence[Record]) -> Look:
        last = {value[:HEADER_BYTES]: value for _, value in records}
        keyless = tuple(value for key, value in records if key is None)
        keyed = len(records) - len(keyless)
        return Look(TOPIC, len(records), keyed, tuple(last.values()), keyless)

    def _fold(self, records: Sequence[Record], plans: dict[str, TablePlan]) -> list[Folded]:
        rows = [
            {
                "topic": TOPIC,
                "bucket": bucket_of(key[HEADER_BYTES:], BUCKETS) if key else 0,
                "key": key,
                "value": value,
            }
            for key, value in records
        ]
        if not rows:
            return []
        folded = fold_frame(_Frame(rows), plans, str(self.target), BUCKETS, len(rows))
        if not any(one.moved for one in folded):
            return folded
        rows = [{**row, "bucket": WHOLE} for row in rows]
        return fold_frame(_Frame(rows), plans, str(self.target), BUCKETS, len(rows))
