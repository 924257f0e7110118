"""The output of a walsender for some WAL: plain, streamed and prepared transactions, relations as in pgoutput.

In: WAL records, options, a start position, a seeded `random.Random`.  Out: CopyData payloads in wire order.
Follows the rules of PostgreSQL's reorderbuffer.c and pgoutput.c: a transaction may be streamed at any moment
from the start position on; unsent changes of an aborted subtransaction are dropped; a relation is sent again after
an invalidation, and within a stream counts as sent for that transaction only. With two_phase a transaction is sent at
its PREPARE, unless the PREPARE is before the start; its decision is sent without rows. A transaction prepared before
two_phase was switched on is sent as a whole at COMMIT PREPARED (F33, F34).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from cdcd.pgoutput import messages as m
from cdcd.source.settings import StreamOptions
from tests.simulator.workload import (
    Change,
    Emitted,
    End,
    Loose,
    Prepare,
    Row,
    Schema,
    SubAbort,
    Truncation,
    WalRecord,
)
from tests.support.pgoutput_encode import encode

OWN_TYPE = 20_000


@dataclass
class _Entry:
    """pgoutput's RelationSyncEntry."""

    schema: Schema
    is_sent: bool = False
    sent_in_streams: set[int] = field(default_factory=set)


class Walsender:
    """One session. `decided`: the LSNs of the sent decisions about prepared transactions.

    `passed_over`: the LSNs of PREPAREs without changes, which were not sent. `is_reticent`: such PREPAREs are not
    sent, as by PostgreSQL 15 to 17, and neither are some rollbacks of streamed subtransactions.
    """

    def __init__(
        self,
        wal: list[WalRecord],
        options: StreamOptions,
        start_lsn: int,
        random: Random,
        *,
        two_phase_at_lsn: int = 0,
        is_reticent: bool = False,
    ) -> None:
        self._wal = wal
        self._options = options
        self._start_lsn = start_lsn
        self._two_phase_at_lsn = two_phase_at_lsn
        self._is_reticent = is_reticent
        self.decided: set[int] = set()
        self.passed_over: set[int] = set()
        self._random = random
        self._eagerness = random.choice([0.02, 0.2, 0.7]) if options.streaming != "off" else 0.0
        self._buffers: dict[int, list[Change]] = {}
        self._passed_over: dict[int, list[Change]] = {}
        """Transactions prepared before the start, until their decision."""
        self._streamed: dict[int, set[int]] = {}
        self._origins = {record.top: record.origin for record in wal if isinstance(record, End)}
        self._entries: dict[int, _Entry] = {}

    def payloads(self) -> Iterator[bytes]:
        """Yield the payloads sent until the end of the WAL."""
        for record in self._wal:
            yield from self._decoded(record)
            if self._random.random() < 0.1:
                reply = self._random.random() < 0.2
                yield self._keepalive(getattr(record, "end_lsn", record.lsn), reply_requested=reply)

    def _decoded(self, record: WalRecord) -> Iterator[bytes]:
        if isinstance(record, Change):
            self._buffers.setdefault(record.top, []).append(record)
            if record.lsn >= self._start_lsn and self._random.random() < self._eagerness:
                yield from self._segment(self._random.choice(list(self._buffers)))
        elif isinstance(record, Loose):
            if record.lsn >= self._start_lsn and self._options.messages:
                yield self._sent(record.end_lsn, m.Message(False, record.end_lsn, "loose", record.content))
        elif isinstance(record, SubAbort):
            yield from self._aborted(record.lsn, record.top, record.xids)
        elif isinstance(record, Prepare):
            if self._options.two_phase:
                yield from self._prepared(record)
        elif record.prepared is not None and self._options.two_phase:
            yield from self._decided(record, record.prepared)
        elif record.is_commit:
            yield from self._committed(record)
        else:
            yield from self._aborted(record.lsn, record.top, (*record.xids, record.top))
            self._buffers.pop(record.top, None)
            self._forget(record.top, is_commit=False)

    # --- ends ---------------------------------------------------------------------------------------------

    def _aborted(self, lsn: int, top: int, xids: tuple[int, ...]) -> Iterator[bytes]:
        buffered = self._buffers.get(top, [])
        self._buffers[top] = [change for change in buffered if change.xid not in xids]
        if not self._buffers[top]:
            del self._buffers[top]
        streamed = self._streamed.get(top)
        for xid in xids:
            is_announced = streamed is not None and (xid in streamed or xid == top)
            if is_announced and xid != top and self._is_reticent and self._random.random() < 0.4:
                continue
            # PostgreSQL 18 also reports the rollback of subtransactions of which it has sent nothing.
            if is_announced or (
                self._options.streaming != "off" and xid != top and self._random.random() < 0.2
            ):
                reported = (lsn, 5) if self._options.streaming == "parallel" else (None, None)
                yield self._sent(lsn, m.StreamAbort(top, xid, *reported))
                if streamed is not None:
                    streamed.discard(xid)

    def _committed(self, end: End) -> Iterator[bytes]:
        if end.lsn < self._start_lsn:
            self._buffers.pop(end.top, None)
            return
        if end.top in self._streamed:
            if end.top in self._buffers:
                yield from self._segment(end.top)
            yield self._sent(end.lsn, m.StreamCommit(end.top, end.lsn, end.end_lsn, end.lsn * 3))
            self._forget(end.top, is_commit=True)
            return
        changes = self._buffers.pop(end.top, [])
        if not changes and self._random.random() < 0.5:
            return  # PostgreSQL 15 and later skip empty transactions
        yield self._sent(end.lsn, m.Begin(end.lsn, end.lsn * 3, end.top))
        yield from self._origin(end.top, end.lsn)
        for change in changes:
            yield from self._change(change, in_stream=False)
        yield self._sent(end.lsn, m.Commit(end.lsn, end.end_lsn, end.lsn * 3))

    def _prepared(self, prepare: Prepare) -> Iterator[bytes]:
        times = (prepare.lsn, prepare.end_lsn, prepare.lsn * 3, prepare.top, prepare.gid)
        if prepare.lsn < self._start_lsn:
            self._passed_over[prepare.top] = self._buffers.pop(prepare.top, [])
        elif prepare.top in self._streamed:
            if prepare.top in self._buffers:
                yield from self._segment(prepare.top)
            yield self._sent(prepare.lsn, m.StreamPrepare(*times))
            self._forget(prepare.top, is_commit=False)  # relations are sent again to other transactions
        else:
            yield from self._whole(prepare, self._buffers.pop(prepare.top, []))

    def _whole(self, prepare: Prepare, changes: list[Change]) -> Iterator[bytes]:
        """Yield Begin Prepare, the changes, and Prepare; also for an empty transaction."""
        times = (prepare.lsn, prepare.end_lsn, prepare.lsn * 3, prepare.top, prepare.gid)
        if not changes and self._is_reticent:
            self.passed_over.add(prepare.lsn)
            return
        yield self._sent(prepare.lsn, m.BeginPrepare(*times))
        yield from self._origin(prepare.top, prepare.lsn)
        for change in changes:
            yield from self._change(change, in_stream=False)
        yield self._sent(prepare.lsn, m.Prepare(*times))

    def _decided(self, end: End, prepare: Prepare) -> Iterator[bytes]:
        changes = self._passed_over.pop(end.top, [])
        if end.lsn < self._start_lsn:
            return
        is_late = prepare.lsn < self._two_phase_at_lsn
        if end.is_commit and is_late:
            yield from self._whole(prepare, changes)
            if self._random.random() < 0.3:
                yield self._keepalive(end.lsn, reply_requested=False)
        if end.is_commit:
            decision: m.AnyMessage = m.CommitPrepared(end.lsn, end.end_lsn, end.lsn * 3, end.top, prepare.gid)
        else:
            ends = (prepare.end_lsn, end.end_lsn, prepare.lsn * 3, end.lsn * 3)
            decision = m.RollbackPrepared(*ends, end.top, prepare.gid)
        self.decided.add(end.lsn)
        yield self._sent(end.lsn, decision)

    def _forget(self, top: int, *, is_commit: bool) -> None:
        """pgoutput's cleanup_rel_sync_cache."""
        self._streamed.pop(top, None)
        for entry in self._entries.values():
            if top in entry.sent_in_streams:
                entry.sent_in_streams.remove(top)
                entry.is_sent = entry.is_sent or is_commit

    # --- contents -----------------------------------------------------------------------------------------

    def _segment(self, top: int) -> Iterator[bytes]:
        is_first = top not in self._streamed
        streamed = self._streamed.setdefault(top, set())
        yield self._sent(0, m.StreamStart(top, is_first))
        if is_first:
            yield from self._origin(top, 0)
        for change in self._buffers.pop(top):
            streamed.add(change.xid)
            yield from self._change(change, in_stream=True)
        yield self._sent(0, m.StreamStop())

    def _origin(self, top: int, lsn: int) -> Iterator[bytes]:
        origin = self._origins.get(top)
        if origin is not None:
            yield self._sent(0, m.Origin(lsn, origin))

    def _change(self, change: Change, *, in_stream: bool) -> Iterator[bytes]:
        what, xid = change.what, change.xid if in_stream else None
        if isinstance(what, Row):
            yield from self._relation(what.schema, change, in_stream=in_stream)
            yield self._sent(change.lsn, _row(what, xid), in_stream=in_stream)
        elif isinstance(what, Truncation):
            for schema in what.schemas:
                yield from self._relation(schema, change, in_stream=in_stream)
            relids = tuple(schema.relid for schema in what.schemas)
            truncate = m.Truncate(what.options, relids, xid=xid)
            yield self._sent(change.lsn, truncate, in_stream=in_stream)
        elif self._options.messages:
            yield self._sent(change.lsn, self._message(what, change, in_stream), in_stream=in_stream)

    def _message(self, what: Emitted, change: Change, in_stream: bool) -> m.Message:
        # the top transaction's xid, also for a subtransaction's message
        return m.Message(True, change.lsn, "m", what.content, xid=change.top if in_stream else None)

    def _relation(self, schema: Schema, change: Change, *, in_stream: bool) -> Iterator[bytes]:
        """pgoutput's maybe_send_schema."""
        entry = self._entries.get(schema.relid)
        if entry is None or entry.schema != schema or self._random.random() < 0.03:
            entry = self._entries[schema.relid] = _Entry(schema)
        is_sent = change.top in entry.sent_in_streams if in_stream else entry.is_sent
        if is_sent:
            return
        xid = change.xid if in_stream else None
        if schema.has_own_type:
            yield self._sent(0, m.Type(OWN_TYPE, "app", "mood", xid=xid), in_stream=in_stream)
        type_oid = OWN_TYPE if schema.has_own_type else 25
        columns = tuple(
            m.RelationColumn(at == 0, name, type_oid, -1) for at, name in enumerate(schema.columns)
        )
        relation = m.Relation(schema.relid, "app", schema.name, "d", columns, xid=xid)
        yield self._sent(0, relation, in_stream=in_stream)
        if in_stream:
            entry.sent_in_streams.add(change.top)
        else:
            entry.is_sent = True

    def _keepalive(self, wal_end_lsn: int, *, reply_requested: bool) -> bytes:
        return b"k" + struct.pack(">QqB", wal_end_lsn, 0, reply_requested)

    def _sent(self, lsn: int, message: m.AnyMessage, *, in_stream: bool = False) -> bytes:
        payload = encode(
            message,
            in_stream=in_stream,
            protocol_version=self._options.protocol_version,
            streaming_parallel=self._options.streaming == "parallel",
        )
        return b"w" + struct.pack(">QQq", lsn, lsn, 0) + payload


def _row(row: Row, xid: int | None) -> m.Insert | m.Update | m.Delete:
    data = m.TupleData(tuple(m.text(value.encode()) for value in row.values))
    if row.verb == "I":
        return m.Insert(row.schema.relid, data, xid=xid)
    if row.verb == "U":
        return m.Update(row.schema.relid, None, data, xid=xid)
    return m.Delete(row.schema.relid, m.OldTuple(b"O", data), xid=xid)
