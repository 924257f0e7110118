"""Changes without a database, Kafka or a registry, for tests of code that reads the topics.

    orders = Table("public.orders", {"id": "bigint", "total": "numeric(10,2)"}, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1, total=Decimal("9.50")), orders.insert(id=2, total=None))
    shop.commit(orders.update(id=1, total=Decimal("7.00")), orders.delete(id=2))
    changes = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection)   # your code is next
    assert shop.mirror(tmp_path).table(orders.topic).num_rows == 1

In: tables with PostgreSQL's types, commits of changes.
Out: raw records as Kafka's source of Spark returns them, a connection that has their schemas, a mirror of them.
Invariant: schemas are those of the daemon, and records are written by fastavro under them; each record of a commit
has its LSN and its number in it. `decode` and the mirror are those of production.
Must not: be used to write to topics.
"""

from __future__ import annotations

import functools
import io
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cdcd.columnar.record_schema import RAW_DDL, RAW_SCHEMA
from cdcd.errors import ConfigError
from cdcd.escaped_names import escape
from cdcd.schema.described_columns import schemas_of_columns
from cdcd.spark.clients.connection import Connection, GivenAccess
from cdcd.spark.decoding.name_lists import check_lists
from cdcd.spark.decoding.schemas import key_subject, value_subject
from cdcd.spark.mirroring.arguments import check_choices
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import Target, open_storage
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.mirror_sizes import DEFAULT_BUCKETS
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import ScdType, TargetVersion

__all__ = ["Change", "Database", "Table"]

Row = Mapping[str, Any]
_OIDS = {
    "boolean": 16, "bool": 16, "bytea": 17, "bigint": 20, "int8": 20, "smallint": 21, "int2": 21, "integer": 23,
    "int": 23, "int4": 23, "text": 25, "json": 114, "real": 700, "float4": 700, "double precision": 701,
    "float8": 701, "char": 1042, "varchar": 1043, "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184,
    "numeric": 1700, "uuid": 2950, "jsonb": 3802,
}  # fmt: skip
_TYPE = re.compile(r"([a-z0-9 ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_SOURCE = {"version": "testing", "connector": "postgresql", "db": "testing"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a table. `op` as in the records: c, u, d, r (a copied row), t (TRUNCATE)."""

    table: Table
    op: str
    before: Row | None = None
    after: Row | None = None
    unchanged: tuple[str, ...] = ()


class Table:
    """A table `schema.name`. `columns`: PostgreSQL's types by the columns' names; `key`: the columns of its key."""

    def __init__(self, name: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> None:
        check_lists(key=key)
        if not all(name.partition(".")):
            raise ConfigError(
                "the name is not that of a schema and a table", hint="write SCHEMA.TABLE", table=name
            )
        self.name, self.key = name, tuple(key)
        self.prefix = "testing"
        self._columns: dict[str, str] = {}
        self._fields: dict[str, str] = {}
        self._types: dict[str, Any] = {}
        self.alter(columns)

    def alter(self, columns: Mapping[str, str]) -> None:
        """Give the table other columns; later changes have another schema. Raises ConfigError for an unknown type."""
        if unknown := set(self.key) - columns.keys():
            raise ConfigError(
                f"the key has columns that the table {self.name} lacks: {', '.join(sorted(unknown))}",
                hint=self._hint(columns),
            )
        typed = [(name, *_type(text)) for name, text in columns.items()]
        made = schemas_of_columns(self.name, typed, self.key, self.prefix)
        self._columns = dict(columns)
        self._fields = {one.name: one.field for one in made.columns}
        self._types = {
            one.name: one.codec.avro if one.is_required else ["null", one.codec.avro] for one in made.columns
        }
        self.value_text = json.dumps(made.value)
        self.key_text = None if made.key is None else json.dumps(made.key)

    @property
    def topic(self) -> str:
        """The topic of its records."""
        schema, _, name = self.name.partition(".")
        return f"{self.prefix}.{escape(schema)}.{escape(name)}"

    def insert(self, /, **row: Any) -> Change:
        """Return the insert of a row."""
        return Change(self, "c", after=self._row(row))

    def update(self, /, old: Row | None = None, *, unchanged: Sequence[str] = (), **row: Any) -> Change:
        """Return the update of a row. `old`: the row before, if the table's identity is FULL.

        `unchanged`: columns whose TOASTed values PostgreSQL did not send. A change of the key is a delete and an
        insert.
        """
        check_lists(unchanged=unchanged)
        self._check(unchanged)
        before = None if old is None else self._row(old)
        return Change(self, "u", before, self._row(row), tuple(unchanged))

    def delete(self, /, **row: Any) -> Change:
        """Return the delete of a row: its key, or all of its values."""
        return Change(self, "d", before=self._row(row))

    def copied(self, /, **row: Any) -> Change:
        """Return a row of a snapshot."""
        return Change(self, "r", after=self._row(row))

    def truncate(self) -> Change:
        """Return a TRUNCATE; before copied rows of the same commit, the event that begins the copy."""
        return Change(self, "t")

    def fields_of(self, row: Row | None) -> dict[str, Any] | None:
        """Return a row by the names of its columns in Avro."""
        return None if row is None else {self._fields.get(name, name): value for name, value in row.items()}

    def misfits(self, row: Row | None) -> list[str]:
        """Return the columns whose values in a row are none of their types."""
        found = []
        for name, value in (row or {}).items():
            try:
                fastavro.schemaless_writer(io.BytesIO(), fastavro.parse_schema(self._types[name]), value)
            except Exception:  # noqa: BLE001 - of fastavro, of Python: whatever a value causes
                found.append(name)
        return found

    def _row(self, row: Row) -> dict[str, Any]:
        self._check(row)
        return {name: row.get(name) for name in self._columns}

    def _check(self, names: Iterable[str]) -> None:
        """Raise ConfigError for names that no column has."""
        if unknown := set(names) - self._columns.keys():
            raise ConfigError(
                f"the table {self.name} has no columns {', '.join(sorted(unknown))}",
                hint=self._hint(self._columns),
            )

    @staticmethod
    def _hint(columns: Iterable[str]) -> str:
        return f"correct the name; the columns are {', '.join(columns)}"


def _type(text: str) -> tuple[int, int]:
    """Return the oid of a type and its modifier, -1 for none. Raises ConfigError."""
    found = _TYPE.fullmatch(text.strip().lower())
    if found is None or found[1] not in _OIDS:
        raise ConfigError(f"the type {text!r} is not known here", hint=f"use one of {', '.join(_OIDS)}")
    if found[2] is None:
        return _OIDS[found[1]], -1
    modifier = int(found[2]) << 16 | int(found[3] or 0) if found[1] == "numeric" else int(found[2])
    return _OIDS[found[1]], modifier + 4


@dataclass(slots=True)
class _Schemas:
    """The schemas of a database, with ids in the order of their first use."""

    texts: dict[int, str] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)

    def number(self, subject: str, text: str) -> int:
        known = next((number for number, one in self.texts.items() if one == text), None)
        number = len(self.texts) + 1 if known is None else known
        self.texts[number] = text
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number


class Database:
    """The tables of a database, and what it has committed."""

    def __init__(self, *tables: Table, prefix: str = "testing") -> None:
        self.prefix = prefix
        self._schemas = _Schemas()
        self._records: list[dict[str, Any]] = []
        self._applied: dict[str, int] = {}
        self._commit_us = 0
        self.lsn = 0
        """The LSN of the last commit."""
        for table in tables:
            if table.prefix != prefix:
                table.prefix = prefix
                table.alter(table._columns)

    def commit(self, *changes: Change, lsn: int | None = None, commit_time: datetime | None = None) -> int:
        """Commit changes in this order; return the LSN of the commit, which is higher than that of the last one.

        A TRUNCATE that copied rows of the table follow in the commit is the event that begins their copy.
        `commit_time`: with a time zone; without it the times of `history` and of the mirror's versions are unknown.
        Raises ConfigError for a time without a time zone, a lower LSN, and a value that is none of its column's type;
        then nothing is committed.
        """
        commit_us = None if commit_time is None else _us_of(commit_time)
        lsn = self.lsn + 100 if lsn is None else lsn
        if lsn <= self.lsn:
            raise ConfigError(
                "the LSN of a commit is not higher than that of the last one",
                hint="omit it, or pass a higher one",
                lsn=lsn,
                last_lsn=self.lsn,
            )
        records = []
        for number, change in enumerate(changes, 1):
            begins = any(one.op == "r" and one.table is change.table for one in changes[number:])
            is_copy = change.op == "r" or (change.op == "t" and begins)
            records.append(self._record(change, lsn, number, is_copy=is_copy, commit_us=commit_us))
        self._records += records
        self.lsn, self._commit_us = lsn, self._commit_us if commit_us is None else commit_us
        return lsn

    def _record(
        self, change: Change, lsn: int, number: int, *, is_copy: bool, commit_us: int | None
    ) -> dict[str, Any]:
        try:
            return self._written(change, lsn, number, is_copy=is_copy, commit_us=commit_us)
        except Exception:
            wrong = {*change.table.misfits(change.before), *change.table.misfits(change.after)}
            if not wrong:
                raise
        raise ConfigError(  # outside the handler, because the text of fastavro's error may have the row
            "a value is none of its column's type, or a column of the key is null",
            hint="pass Decimal with the digits of numeric, datetime for timestamps, date, time, text for "
            "json and uuid",
            table=change.table.name,
            columns=", ".join(sorted(wrong)),
        )

    def _written(
        self, change: Change, lsn: int, number: int, *, is_copy: bool, commit_us: int | None
    ) -> dict[str, Any]:
        table, row = change.table, change.after or change.before
        schema, _, name = table.name.partition(".")
        source = _SOURCE | {
            "name": self.prefix, "schema": schema, "table": name, "timeline": 1, "commit_lsn": lsn, "lsn": lsn,
            "tx_seq": number, "snapshot": "true" if is_copy else "false",
            "unchanged": [*(table.fields_of(dict.fromkeys(change.unchanged)) or ())],
            "ts_ms": (commit_us or 0) // 1000, "ts_us": commit_us,
        }  # fmt: skip
        before, after = table.fields_of(change.before), table.fields_of(change.after)
        envelope = {"before": before, "after": after, "source": source, "op": change.op}
        key = None
        if table.key_text is not None and row is not None and change.op != "t":
            columns = table.fields_of({name: row[name] for name in table.key}) or {}
            key = _framed(
                self._schemas.number(key_subject(table.topic), table.key_text), table.key_text, columns
            )
        value_id = self._schemas.number(value_subject(table.topic), table.value_text)
        value = _framed(value_id, table.value_text, envelope)
        return {
            "topic": table.topic,
            "partition": 0,
            "offset": len(self._records) + number - 1,
            "key": key,
            "value": value,
        }

    @property
    def connection(self) -> Connection:
        """A connection that has the schemas, for `decode`."""
        texts = tuple(self._schemas.texts.items())
        subjects = tuple((name, tuple(numbers)) for name, numbers in self._schemas.subjects.items())
        return Connection("testing", self.prefix, registry=GivenAccess(texts, subjects))

    @property
    def records(self) -> pa.Table:
        """All records with the columns of Kafka's source: topic, partition, offset, timestamp, key, value."""
        return pa.Table.from_pylist(self._records, schema=RAW_SCHEMA)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return all records as a DataFrame."""
        rows = [tuple(one.get(name) for name in RAW_SCHEMA.names) for one in self._records]
        return spark.createDataFrame(rows, RAW_DDL)

    def mirror(
        self, target: Target, *, loading: Iterable[Table] = (), stored_as_scd_type: ScdType = 1
    ) -> Mirror:
        """Apply the records that the mirror of the target does not have yet, in one batch, and open it.

        `loading`: tables that are still copied. `stored_as_scd_type`: of a new target; 2 is read by `history`, too.
        Raises what ends a mirror.
        """
        check_choices(stored_as_scd_type=stored_as_scd_type)
        storage = open_storage(target)
        start = read_latest(storage) or TargetVersion(
            self.prefix, DEFAULT_BUCKETS, cluster="testing", scd_type=stored_as_scd_type
        )
        batches = MirrorBatches(storage, take_over(storage, start), self._schema, on_error="fail")
        try:
            topics = frozenset(table.topic for table in loading)
            done = start.offsets.get(self.prefix, {}).get("0", 0)
            batches.apply(
                RecordsOnDriver(self.records.slice(done)),
                with_loading({self.prefix: {"0": len(self._records)}}, topics),
                SourcePosition(self.lsn + 1, self._commit_us),
            )
        finally:
            batches.close()
        return read_mirror(storage)

    def _schema(self, number: int) -> Any:
        return json.loads(self._schemas.texts[number])


def _us_of(time: datetime) -> int:
    """Return the microseconds since 1970. Raises ConfigError."""
    if time.tzinfo is None:
        raise ConfigError(
            "a commit time has no time zone", hint="pass one, such as datetime(2026, 1, 31, tzinfo=UTC)"
        )
    return (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


@functools.lru_cache(maxsize=1000)
def _parsed(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


def _framed(number: int, text: str, record: Mapping[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, _parsed(text), record)
    return b"\x00" + struct.pack(">I", number) + body.getvalue()
