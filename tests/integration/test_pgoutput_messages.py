"""Messages of real servers are read, written back to the same bytes, and assembled into the committed transactions.

The judge is PostgreSQL: for every protocol version, plain or streamed, the committed rows are the same, and equal the
rows that the statements left; each message of the server equals the writer's output.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from cdcd.lsn import parse_lsn
from cdcd.model import Control, Item, RowBatch
from cdcd.pgoutput import messages as m
from cdcd.pgoutput.decode import decode
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import LogicalMessage, RelationSeen, Rows, TransactionCommitted, Truncated
from cdcd.txn.states import ROW_TYPES
from tests.support.nightly import nightly
from tests.support.pgoutput_encode import encode
from tests.support.stack import PostgresServers

_FILL = "insert into t select g, repeat('x', 200) from generate_series({}, {}) g"
_SETUP = (
    "create table t (id int primary key, v text)",
    "create publication p for all tables",
    "select pg_create_logical_replication_slot('s_' || current_database(), 'pgoutput')",
)
_STATEMENTS = (
    "insert into t values (1, 'plain')",
    "select pg_logical_emit_message(false, 'loose', '')",
    "begin",
    _FILL.format(1000, 2499),
    "savepoint one",
    _FILL.format(3000, 4499),
    "savepoint two",
    _FILL.format(5000, 6499),
    "rollback to one",
    _FILL.format(7000, 8499),
    "alter table t add column kept int default 6",
    _FILL.format(9000, 9999),
    "commit",
    "begin",
    _FILL.format(20000, 21499),
    "rollback",
    "truncate t cascade",
    "insert into t values (2, 'plain', 3)",
)
_BULK = [*range(1000, 2500), *range(7000, 8500), *range(9000, 10000)]


@pytest.mark.parametrize(
    ("major", "version", "streaming"),
    [
        nightly(14, 1, "off"),
        nightly(14, 2, "on"),
        nightly(16, 2, "on"),
        nightly(16, 4, "parallel"),
        (18, 1, "off"),
        (18, 4, "parallel"),
    ],
)
def test_what_a_server_sends_becomes_what_was_committed(
    pg_server: PostgresServers, major: int, version: int, streaming: str
) -> None:
    server = pg_server(major)
    name = f"pgoutput_{major}_{version}_{streaming}"
    server.create_database(name)
    try:
        with closing(psycopg2.connect(server.dsn(name))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in (*_SETUP, *_STATEMENTS):
                    cursor.execute(statement)
                sent = _sent(cursor, version, streaming)
    finally:
        server.drop_database(name)
    _check(sent, version, streaming)


def _sent(cursor: Any, version: int, streaming: str) -> list[tuple[int, bytes]]:
    options = ["proto_version", str(version), "publication_names", "p", "messages", "true"]
    if streaming != "off":
        options += ["streaming", streaming]
    cursor.execute("set logical_decoding_work_mem = '64kB'")
    cursor.execute(
        "select lsn::text, data from pg_logical_slot_peek_binary_changes("
        "'s_' || current_database(), null, null, variadic %s)",
        (options,),
    )
    return [(parse_lsn(lsn), bytes(data)) for lsn, data in cursor.fetchall()]


def _items(sent: list[tuple[int, bytes]], session: dict[str, Any]) -> Iterator[Item]:
    in_stream = False
    for lsn, payload in sent:
        message = decode(payload, in_stream=in_stream, **session)
        assert encode(message, in_stream=in_stream, **session) == payload
        if payload[0] in ROW_TYPES:
            yield RowBatch(struct.pack(">IQ", len(payload), lsn) + payload, 1, getattr(message, "xid", None))
        else:
            yield Control(lsn, payload)
        in_stream = isinstance(message, m.StreamStart) or (
            in_stream and not isinstance(message, m.StreamStop)
        )


def _check(sent: list[tuple[int, bytes]], version: int, streaming: str) -> None:
    session = {"protocol_version": version, "streaming_parallel": streaming == "parallel"}
    assembler = Assembler(**session)
    columns: tuple[str, ...] = ()
    transactions: list[list[int | str]] = [[]]
    for item in _items(sent, session):
        for event in assembler.feed(item):
            if isinstance(event, RelationSeen):
                columns = tuple(column.name for column in event.relation.columns)
            elif isinstance(event, Rows):
                transactions[-1].append(_inserted_id(event.batch, version, columns))
            elif isinstance(event, Truncated):
                transactions[-1].append(f"truncate {event.relations[0].name} {event.cascade}")
            elif isinstance(event, LogicalMessage):
                transactions[-1].append(event.prefix)
            elif isinstance(event, TransactionCommitted):
                transactions.append([])
    # The non-transactional message is sent as soon as it is decoded, so it comes before the next commit's items.
    assert transactions == [[1], ["loose", *_BULK], ["truncate t True"], [2], []]
    assert assembler.open_streams == 0
    assert (b"S" in {payload[:1] for _, payload in sent}) == (streaming != "off")


def _inserted_id(batch: RowBatch, version: int, columns: tuple[str, ...]) -> int:
    message = decode(batch.frames[12:], in_stream=batch.xid is not None, protocol_version=version)
    assert isinstance(message, m.Insert)
    row = message.new.columns
    assert len(row) == len(columns), "a row and the description in force disagree"
    assert row[0].value is not None
    return int(row[0].value)
