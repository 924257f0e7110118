"""Functions for the messages of a walsender: each returns the item that the drain yields for the message."""

from __future__ import annotations

from collections.abc import Iterable

from cdcd.model import Column, Control, Item, Relation, ReplicaIdentity, RowBatch
from cdcd.pgoutput import messages as m
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import Event, RelationSeen, Rows
from tests.support.pgoutput_encode import encode, row_batch_of

ITEMS_RELID = 16401


def control(message: m.AnyMessage, *, in_stream: bool = False, lsn: int = 0x100) -> Control:
    return Control(lsn, encode(message, in_stream=in_stream))


def begin(xid: int, commit_lsn: int) -> Control:
    return control(m.Begin(commit_lsn, commit_lsn * 1000, xid))


def commit(commit_lsn: int) -> Control:
    return control(m.Commit(commit_lsn, commit_lsn + 8, commit_lsn * 1000))


def origin(name: str, lsn: int = 0) -> Control:
    return control(m.Origin(lsn, name))


def relation(*columns: str, xid: int | None = None, relid: int = ITEMS_RELID, namespace: str = "") -> Control:
    """Describe a relation of int4 columns; the first one is the key."""
    described = tuple(m.RelationColumn(at == 0, name, 23, -1) for at, name in enumerate(columns))
    message = m.Relation(relid, namespace, "items", "d", described, xid=xid)
    return control(message, in_stream=xid is not None, lsn=0)


def relation_model(*columns: str, relid: int = ITEMS_RELID, schema: str = "pg_catalog") -> Relation:
    described = tuple(Column(name, 23, -1, at == 0) for at, name in enumerate(columns))
    return Relation(relid, schema, "items", ReplicaIdentity.DEFAULT, described)


def pg_type(xid: int | None = None) -> Control:
    return control(m.Type(16500, "app", "mood", xid=xid), in_stream=xid is not None)


def rows(*values: str, xid: int | None = None) -> RowBatch:
    data = [m.TupleData((m.text(value.encode()),)) for value in values]
    return row_batch_of([(0x100, m.Insert(ITEMS_RELID, one, xid=xid)) for one in data], xid=xid)


def truncate(*relids: int, options: int = 0, xid: int | None = None) -> Control:
    return control(m.Truncate(options, relids, xid=xid), in_stream=xid is not None, lsn=0x77)


def message(transactional: bool, xid: int | None = None, content: bytes = b"c", prefix: str = "p") -> Control:
    return control(m.Message(transactional, 0x88, prefix, content, xid=xid), in_stream=xid is not None)


def stream_start(xid: int, *, first: bool = True) -> Control:
    return control(m.StreamStart(xid, first))


def stream_stop() -> Control:
    return control(m.StreamStop())


def segment(xid: int, *items: Item, first: bool = True) -> list[Item]:
    return [stream_start(xid, first=first), *items, stream_stop()]


def stream_commit(xid: int, commit_lsn: int) -> Control:
    return control(m.StreamCommit(xid, commit_lsn, commit_lsn + 8, commit_lsn * 1000))


def stream_abort(xid: int, subxid: int | None = None) -> Control:
    return control(m.StreamAbort(xid, xid if subxid is None else subxid))


def begin_prepare(xid: int, prepare_lsn: int, gid: str = "gid") -> Control:
    return control(m.BeginPrepare(prepare_lsn, prepare_lsn + 8, prepare_lsn * 1000, xid, gid))


def prepare(xid: int, prepare_lsn: int, gid: str = "gid") -> Control:
    return control(m.Prepare(prepare_lsn, prepare_lsn + 8, prepare_lsn * 1000, xid, gid))


def prepared(xid: int, prepare_lsn: int, *items: Item, gid: str = "gid") -> list[Item]:
    return [begin_prepare(xid, prepare_lsn, gid), *items, prepare(xid, prepare_lsn, gid)]


def stream_prepare(xid: int, prepare_lsn: int, gid: str = "gid") -> Control:
    return control(m.StreamPrepare(prepare_lsn, prepare_lsn + 8, prepare_lsn * 1000, xid, gid))


def commit_prepared(xid: int, commit_lsn: int, gid: str = "gid") -> Control:
    return control(m.CommitPrepared(commit_lsn, commit_lsn + 8, commit_lsn * 1000, xid, gid))


def rollback_prepared(xid: int, prepare_lsn: int, rollback_lsn: int, gid: str = "gid") -> Control:
    times = (prepare_lsn * 1000, rollback_lsn * 1000)
    return control(m.RollbackPrepared(prepare_lsn + 8, rollback_lsn + 8, *times, xid, gid))


def feed(assembler: Assembler, *items: Item) -> list[Event]:
    return [event for item in items for event in assembler.feed(item)]


def batches(events: Iterable[Event]) -> list[RowBatch]:
    return [event.batch for event in events if isinstance(event, Rows)]


def relations(events: Iterable[Event]) -> list[Relation]:
    return [event.relation for event in events if isinstance(event, RelationSeen)]
