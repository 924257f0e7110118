"""Decode a slot's changes to records without Kafka: real stream, catalog, assembler and codec.

In: source settings, options, policies.  Out: each record as fastavro reads it, and the error that ended the stream.
Invariant: nothing is confirmed, so one slot can be read several times with different options.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import fastavro

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.ack.position_tracker import PositionTracker
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError
from cdcd.model import Record, TransactionInfo
from cdcd.pipeline.interfaces import Output
from cdcd.pipeline.plans import Plans
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.schema.policy import NO_RULES, Policies
from cdcd.source.catalog import Catalog
from cdcd.source.settings import SourceSettings, StreamOptions
from cdcd.txn.assembler import Assembler
from tests.support.source import choose_options, streaming


@dataclass(frozen=True)
class Decoded:
    """One record; `value` is None for a tombstone."""

    table: str
    key: dict[str, Any] | None
    value: dict[str, Any] | None


@dataclass
class Decoding:
    """The result. `is_streamed`: the server sent changes of a transaction before its commit."""

    records: list[Decoded] = field(default_factory=list)
    error: CdcdError | None = None
    is_streamed: bool = False

    def of(self, table: str) -> list[Decoded]:
        """Return the records of one table, without tombstones."""
        return [one for one in self.records if one.table == table and one.value is not None]


async def decode(
    settings: SourceSettings,
    last_table: str,
    policies: Policies = NO_RULES,
    *,
    server_version_num: int,
    **options: Any,
) -> Decoding:
    """Read the slot until `last_table` has a row, or until cdcd raises an error."""
    found = Decoding()
    registry = Schemas()
    catalog = Catalog(settings)
    plans = Plans(
        catalog, OnePartition(), registry, name="shop", template="{name}.{schema}.{table}", policies=policies
    )

    chosen = choose_options(server_version_num, **options)
    pump = _pump(plans, _Output(found, registry), chosen)
    try:
        async with streaming(settings, server_version_num=server_version_num, **options) as stream:
            while not found.of(last_table):
                items = await stream.read()
                found.is_streamed |= any(getattr(item, "payload", b"")[:1] == b"S" for item in items)
                await pump.feed(items)
    except CdcdError as error:
        found.error = error
    finally:
        catalog.close()
    return found


def _pump(plans: Plans, output: Output, options: StreamOptions) -> Pump:
    assembler = Assembler(options.protocol_version, options.streaming == "parallel", options.two_phase)
    progress = StreamProgress(assembler, PositionTracker(0))
    return Pump(assembler, plans, output, _context, _Uncounted(), progress)


@dataclass
class _Output:
    found: Decoding
    registry: Schemas

    async def add(self, chunk: RecordChunk) -> None:
        self.found.records += [self.registry.read(record) for record in chunk.records]

    def idle(self, _commit_position: CommitPosition, *, is_urgent: bool) -> None:
        """Do nothing: no position is confirmed."""


def _context(info: TransactionInfo) -> TransactionContext:
    return TransactionContext(info, timeline=1, name="shop", database="shop", now_us=1, version="1")


class _Uncounted:
    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_more: None


class OnePartition:
    """Topics, each with one partition."""

    def ensure(self, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    ensure_new = ensure

    def has_records(self, _name: str) -> bool:
        return False


class Schemas:
    """An in-memory registry that gives each schema of each subject an id, and accepts all."""

    registers = True

    def __init__(self) -> None:
        self._by_id: list[dict[str, Any]] = []
        self._latest: dict[str, dict[str, Any]] = {}

    def latest(self, subject: str) -> dict[str, Any] | None:
        return self._latest.get(subject)

    def registered(self, subject: str) -> list[dict[str, Any]]:
        return [self._latest[subject]] if subject in self._latest else []

    def knows(self, subject: str, schema: dict[str, Any]) -> bool:
        return self._latest.get(subject) == schema

    def schema_id(self, subject: str, schema: dict[str, Any], *, is_forced: bool = False) -> int:
        self._latest[subject] = schema
        self._by_id.append(schema)
        return len(self._by_id)

    def read(self, record: Record) -> Decoded:
        """Return the record as fastavro reads it."""
        table = record.topic.rpartition(".")[2]
        return Decoded(table, self._read(record.key), self._read(record.value))

    def _read(self, framed: bytes | None) -> dict[str, Any] | None:
        if framed is None:
            return None
        schema = self._by_id[int.from_bytes(framed[1:5], "big") - 1]
        value = fastavro.schemaless_reader(io.BytesIO(framed[5:]), schema, None)
        assert isinstance(value, dict)
        return value
