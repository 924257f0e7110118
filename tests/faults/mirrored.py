"""A mirror of a world's topics, compared with PostgreSQL row for row.

In: a world, Spark, a form of mirrors.  Out: a mirror; at the end of a run the differences of each table.
Invariant: PostgreSQL compares all rows and columns, as each reader of the form returns them. The mirror has null
where the last record of a row lacks an added column, because PostgreSQL does not send the rows that get its default;
only there the default is filled in before.
Must not: read while a session writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import psycopg2
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdcd.demo.compare import report
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.reading.plain_views import plain_views
from cdcd.spark.source.cuts import of_topics
from cdcd.spark.target.versions import ScdType, TableFormat
from tests.faults.assertions.folds import Fold, key_of
from tests.faults.truth import TABLES
from tests.faults.world import World
from tests.spark.foreign_readers import READERS
from tests.spark.running_mirrors import DEADLINE_S, MirrorInSession, await_all, compared
from tests.spark.unit.test_plain_views import duck
from tests.support.waiting import eventually

Form = tuple[TableFormat, ScdType]
FORMS: tuple[Form, ...] = (
    ("parquet", 1), ("delta", 1), ("iceberg", 1), ("parquet", 2), ("delta", 2), ("iceberg", 2),
)  # fmt: skip
HISTORY = "history"
Read = Callable[[str], pa.Table]


class WorldMirror:
    """A mirror of one world. Before `start` nothing runs; each error ends it."""

    def __init__(
        self, spark: SparkSession, world: World, kafka: KafkaBroker, registry: SchemaRegistry, form: Form
    ) -> None:
        self._spark, self._world, self._kafka, self._registry = spark, world, kafka, registry
        self._format, self._scd = form
        self._folder = world.daemon.folder.parent
        self._running: MirrorInSession | None = None

    def __enter__(self) -> WorldMirror:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._running is not None:
            self._running.stop()

    def start(self) -> None:
        """Run the mirror until the end."""
        self._running = MirrorInSession(
            self._spark,
            self._folder,
            self._world.daemon,
            self._kafka,
            self._registry,
            format=self._format,
            stored_as_scd_type=self._scd,
            on_error="fail",
        )

    def await_rows(self) -> None:
        """If the mirror runs and cdcd has copied rows, wait until the mirror has some.

        Those of the first attempt: a later one has another point, and no batch ends before the stream is there.
        """
        running = self._running
        if running is not None and self._is_written(running):
            eventually(
                lambda: running.check() and self._has_rows(running),
                "the mirror has copied rows",
                DEADLINE_S,
                0.2,
            )

    def _is_written(self, running: MirrorInSession) -> bool:
        """Return whether a progress record names rows."""
        topics = AdminClient({"bootstrap.servers": self._kafka.bootstrap}).list_topics(timeout=30).topics
        return self._world.topics.progress_topic in topics and bool(running.tables.end(self._kafka.bootstrap))

    @staticmethod
    def _has_rows(running: MirrorInSession) -> bool:
        return running.tables.position() >= 0 and bool(of_topics(read_mirror(running.target).version.offsets))

    def differences(self) -> list[str]:
        """Return the differences from PostgreSQL, by reader and table. Everything is confirmed and judged."""
        if self._running is None:
            self.start()
        assert self._running is not None
        await_all(self._running, self._kafka.bootstrap)
        assert read_mirror(self._running.target).loading == []
        return [
            f"{reader}: {line}"
            for reader, read in self._readers(self._running)
            for line in self._differences(read, [one.name for one in TABLES if one.key or reader != HISTORY])
        ]

    def _differences(self, read: Read, names: list[str]) -> list[str]:
        outcomes = compared(self._world.dsn, names, lambda name: self._with_defaults(name, read(name)))
        assert all(one.mirror_rows for one in outcomes), outcomes
        return report(outcomes)

    def _readers(self, running: MirrorInSession) -> Iterator[tuple[str, Read]]:
        """Yield what reads a table's rows."""
        yield "mirror", partial(running.tables.read, "public")
        if reader := READERS.get(self._format):
            opened = read_mirror(running.target)
            yield (
                self._format,
                lambda name: reader.recorded(opened, f"{self._world.daemon.name}.public.{name}"),
            )
        if self._scd == 2:
            yield HISTORY, partial(valid_versions, read_mirror(running.target))

    def _with_defaults(self, name: str, rows: pa.Table) -> pa.Table:
        defaults = defaults_of(self._world.dsn, name)
        return with_defaults(rows, self._world.oracle.memory.topic[name], defaults) if defaults else rows


def valid_versions(opened: Mirror, name: str) -> pa.Table:
    """Return the versions of rows that are valid, by DuckDB: Spark needs ten times as long for each table."""
    (view,) = [one for one in plain_views(opened) if one.name == f"public_{name}_history"]
    assert view.statement is not None, view
    with duck() as connection:
        connection.execute(view.statement)
        return connection.execute(f"SELECT * FROM {view.name} WHERE __end_at IS NULL").to_arrow_table()


def defaults_of(dsn: str, table: str) -> dict[str, Any]:
    """Return the values of the columns' defaults."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, pg_get_expr(adbin, adrelid) FROM pg_attrdef"
            " JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum WHERE adrelid = %s::regclass",
            (table,),
        )
        found = {}
        for column, expression in cursor.fetchall():
            cursor.execute(f"SELECT {expression}")
            (found[column],) = cursor.fetchone() or (None,)
        return found


def with_defaults(rows: pa.Table, sent: Fold, defaults: Mapping[str, Any]) -> pa.Table:
    """Replace null by the default in the columns that were added after the last record of the row. Pure."""
    keys = [key_of(sent.table, {name: str(one[name]) for name in sent.table.key}) for one in rows.to_pylist()]
    for column in defaults.keys() & set(rows.column_names):
        values = [
            defaults[column] if value is None and column not in sent.rows.get(key, {column}) else value
            for key, value in zip(keys, rows[column].to_pylist(), strict=True)
        ]
        place = rows.column_names.index(column)
        rows = rows.set_column(
            place, rows.schema.field(column), pa.array(values, rows.schema.field(column).type)
        )
    return rows
