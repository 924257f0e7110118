"""A mirror of one table without Spark and Kafka: batches of records, through plan, fold and commit log.

In: keys and values from `tests.spark.events`.  Out: the rows that a reader sees after each batch.
Invariant: the steps are those of `cdcd.spark.mirroring.batches.MirrorBatches`, on the driver's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.spark.mirroring.batches import MirrorBatches, OnError
from cdcd.spark.mirroring.records import Records, RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.tables.retained_columns import DEFAULT_POLICIES
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.mirror_sizes import DEFAULT_RETAIN_S
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import ScdType, TableFormat, TargetVersion
from tests.spark.events import Table, envelope_schema, key_schema

TOPIC = "shop.public.items"
BUCKETS = 4
Record = tuple[bytes | None, bytes]


class Batches:
    """The mirror of one table. Its key is the first column, or it has none."""

    def __init__(
        self,
        target: Path,
        fields: list[dict[str, Any]],
        *,
        has_key: bool = True,
        table_format: TableFormat = "parquet",
    ) -> None:
        self.target, self.table_format = target, table_format
        self.retain_s = DEFAULT_RETAIN_S
        self.history_retain_s: float | None = None
        self.on_error: OnError = "fail"
        self.policies = DEFAULT_POLICIES
        self.scd_type: ScdType = 1
        self.records: Callable[[pa.Table], Records] = RecordsOnDriver
        self.storage: Storage | None = None
        """Of the target, for a test that makes it fail."""
        target.mkdir()
        self._schemas: dict[int, Any] = {}
        names = (fields[0]["name"],) if has_key else ()
        key = (1, key_schema(TOPIC, fields[:1])) if has_key else None
        self._table = Table(TOPIC, fields, names, "", None, key)
        self._order_by = fields[0]["name"]
        self.alter(fields)

    def alter(self, fields: list[dict[str, Any]], relid: int = 0) -> None:
        """Change the columns; later records have another schema. A registry gives the same schema the same id.

        `relid`: the table's oid, if the schema has it.
        """
        schema = envelope_schema(TOPIC, fields, relid)
        known = [number for number, one in self._schemas.items() if one == schema]
        number = known[0] if known else len(self._schemas) + 2
        self._schemas[number] = schema
        self._table.alter(fields)
        self._table._value = (number, self._schemas[number])

    def change(self, op: str, commit_lsn: int, tx_seq: int, **rest: Any) -> Record:
        """Return the record of a change."""
        return self._table.event(op, commit_lsn, tx_seq, **rest)

    def run(
        self,
        records: Sequence[Record],
        *,
        loading: bool,
        accept_gaps: bool = False,
        end_lsn: int = 0,
        commit_us: int = 0,
    ) -> list[dict[str, Any]]:
        """Apply one batch, return the rows that a reader sees. `loading`: the table is being copied at its end.

        `end_lsn`, `commit_us`: of its last commit, 0: unknown.
        """
        offsets = with_loading({}, frozenset({TOPIC}) if loading else frozenset())
        with self.mirror(accept_gaps=accept_gaps) as batches:
            found = self.records(records_table(records))
            batches.apply(found, offsets, SourcePosition(end_lsn, commit_us))
            found.close()
        return self.rows()

    @contextmanager
    def mirror(self, *, accept_gaps: bool = False) -> Iterator[MirrorBatches]:
        """Start a mirror; end it with the merge that it has begun."""
        target = self.storage or open_storage(str(self.target))
        start = read_latest(target) or TargetVersion(
            "shop", BUCKETS, table_format=self.table_format, scd_type=self.scd_type
        )
        writer = take_over(
            target, replace(start, retain_s=self.retain_s, history_retain_s=self.history_retain_s)
        )
        batches = MirrorBatches(
            *(target, writer, self._schemas.__getitem__),
            accept_gaps=accept_gaps,
            on_error=self.on_error,
            policies=self.policies,
        )
        try:
            yield batches
        finally:
            batches.close()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that a reader sees, after a restart."""
        if self.table_format == "parquet":  # of others a start restores the tables before it removes files
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
        version = read_latest(self.target)
        assert version is not None
        return sum(file.rows for entry in version.tables.values() for file in entry.incomplete)


def records_table(records: Sequence[Record]) -> pa.Table:
    """Return the records as a batch has them on the driver."""
    rows = [
        {"topic": TOPIC, "partition": 0, "offset": place, "key": key, "value": value}
        for place, (key, value) in enumerate(records)
    ]
    return pa.Table.from_pylist(rows, schema=RAW_SCHEMA)
