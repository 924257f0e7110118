"""Fault 28: bytes of the stream are corrupted in transit. A typed error, a new connection, and each row once.

F19, F31: cdcd never skips a message that it cannot decode; it halts if the same message is corrupt repeatedly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.link import NewLinked
from tests.support.nightly import nightly_except
from tests.support.proxy import Way
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run
from tests.support.waiting import eventually

MARK = b"a note that is like no other"
# The fields before the mark in an Insert of (id, note) with an id of one digit, in the server's order:
# d, length | w, three times 8 bytes | I, relation, N, number of columns | t, length, id | t, length, mark
COPY_DATA, XLOG_DATA, INSERT, RELATION, TUPLE, ID, NOTE = -49, -44, -19, -18, -14, -11, -5
Damage = Callable[[bytearray, int], None]


def put(offset: int, what: bytes) -> Damage:
    """Return a damage that overwrites the bytes at `offset` from the mark."""

    def damage(piece: bytearray, mark: int) -> None:
        piece[mark + offset : mark + offset + len(what)] = what

    return damage


def cut_short(piece: bytearray, mark: int) -> None:
    """Cut the message within its last value; the frame has the shorter length."""
    (length,) = struct.unpack_from(">I", piece, mark + COPY_DATA + 1)
    struct.pack_into(">I", piece, mark + COPY_DATA + 1, length - 3)
    end = mark + len(MARK)
    del piece[end - 3 : end]


DAMAGES = {
    "unknown message": put(INSERT, b"J"),
    "unknown relation": put(RELATION, b"\x7f\x00\x00\x01"),
    "unknown tuple": put(TUPLE, b"Q"),
    "unknown kind of a column": put(NOTE, b"x"),
    "too many columns": put(TUPLE + 1, b"\x00\x07"),
    "a value longer than its message": put(NOTE + 1, b"\x00\x00\xff\xff"),
    "a value of a negative length": put(NOTE + 1, b"\xff\xff\xff\xf0"),
    "not UTF-8": put(2, b"\xff\xfe"),
    "unknown frame": put(XLOG_DATA, b"z"),
    "a frame longer than it is": put(COPY_DATA + 1, b"\x00\x00\x00\xff"),
    "cut short": cut_short,
}


class Damaged:
    """For `Proxy.change`: damages the first `times` pieces that contain the mark."""

    def __init__(self, damage: Damage, times: int) -> None:
        self._damage, self._left = damage, times
        self.done = 0

    def __call__(self, direction: Way, piece: bytes) -> bytes:
        mark = piece.find(MARK)
        if direction != "down" or mark < 0 or self.done >= self._left:
            return piece
        self.done += 1
        changed = bytearray(piece)
        self._damage(changed, mark)
        return bytes(changed)


@pytest.mark.parametrize(
    "damage",
    nightly_except(
        (pytest.param(damage, id=name) for name, damage in DAMAGES.items()),
        "a frame longer than it is",
    ),
)
def test_a_damaged_message_is_read_again(
    damage: Damage, postgres: PostgresServer, database: str, new_linked: NewLinked, reader: Reader
) -> None:
    """The message is read again over a new connection; no row is lost, invented or repeated."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    with new_linked(postgres, database) as (daemon, link):
        daemon.start().wait_state("streaming")
        damaged = Damaged(damage, 1)
        link.change(damaged)
        postgres.execute("INSERT INTO t VALUES (1, %s)", MARK.decode(), dbname=database)
        topic = f"{daemon.name}.public.t"
        # a frame with too large a length waits for the next bytes
        eventually(lambda: damaged.done, "a message is damaged")
        postgres.execute(
            "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(2, 9) g", dbname=database
        )
        events = reader.wait([topic], lambda events: len(events) >= 9)
        assert_each_once(events)
        assert [event.value["after"]["note"] for event in events if event.key["id"] == 1] == [MARK.decode()]
        assert len(events) == 9
        assert daemon.events("retrying")
        assert not daemon.events("halted")
        assert not daemon.events("internal_error")


def test_a_message_that_is_always_damaged_halts(
    postgres: PostgresServer, database: str, new_linked: NewLinked, reader: Reader
) -> None:
    """The third time, the error halts; once the message is no longer corrupt, the daemon continues after a retry."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    with new_linked(postgres, database) as (daemon, link):
        daemon.start().wait_state("streaming")
        link.change(Damaged(DAMAGES["unknown tuple"], 1000))
        postgres.execute("INSERT INTO t VALUES (1, %s)", MARK.decode(), dbname=database)
        page = daemon.wait_state("halted")
        assert "CDCD-PROTOCOL-UNKNOWN" in page["reason"]
        assert MARK.decode() not in daemon.log()
        assert len(daemon.events("retrying")) == 2
        link.change(None)
        daemon.reload()
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 1)
        assert len(events) == 1


def test_one_byte_at_a_time(
    postgres: PostgresServer, database: str, new_linked: NewLinked, reader: Reader
) -> None:
    """The rows are complete even if each byte arrives separately."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    with new_linked(postgres, database) as (daemon, link):
        daemon.start().wait_state("streaming")
        link.slice(1)
        postgres.execute("INSERT INTO t SELECT g, 'n' FROM generate_series(1, 50) g", dbname=database)
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 50)
        assert_each_once(events)
        assert len(events) == 50
        assert not daemon.events("retrying")
