"""Situations of the stream: messages damaged on the way and then intact, and transactions written in part."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from cdcd.failpoints import EXIT_STATUS
from tests.faults.test_fault_28_corrupt_protocol import COPY_DATA, DAMAGES, ID, MARK, Damage, Damaged, put
from tests.hints.situation import World, situation
from tests.support.hints import commands_in
from tests.support.proxy import Proxy, Way
from tests.support.topics import committed_records
from tests.support.waiting import eventually

SENT_AGAIN = "run `cdcd resume`: the server sends"
_BEGIN = re.compile(rb"d\x00\x00\x002w.{24}B.{20}", re.DOTALL)
"""A whole frame: CopyData of 50 bytes, XLogData, Begin."""


def _too_long(piece: bytearray, mark: int) -> None:
    (length,) = struct.unpack_from(">I", piece, mark + COPY_DATA + 1)
    struct.pack_into(">I", piece, mark + COPY_DATA + 1, length + 3)
    end = mark + len(MARK)
    piece[end:end] = b"xyz"


DAMAGED: dict[str, tuple[str, Damage]] = {
    "a row's columns are more than its relation's": ("CDCD-PROTOCOL", DAMAGES["too many columns"]),
    "a row ends inside a value": ("CDCD-PROTOCOL-TRUNCATED", DAMAGES["cut short"]),
    "a row goes on behind its values": ("CDCD-PROTOCOL-TRAILING", _too_long),
    "an unknown kind of tuple": ("CDCD-PROTOCOL-UNKNOWN", DAMAGES["unknown tuple"]),
    "a row without a Relation message before it": ("CDCD-PROTOCOL-RELATION", DAMAGES["unknown relation"]),
    "an integer is not numeric": ("CDCD-VALUE-TEXT", put(ID + 5, b"x")),
}


def damaged(damage: Damage, w: World) -> Iterator[None]:
    """The first damage may come from the link, so it is retried; the daemon halts when it repeats."""
    link = _over_a_link(w)
    link.change(Damaged(damage, 1000))
    w.sql(f"INSERT INTO t VALUES (1, '{MARK.decode()}')")
    yield
    link.change(None)
    w.resume()


for _what, (_code, _damage) in DAMAGED.items():
    situation(_code, _what, SENT_AGAIN)(partial(damaged, _damage))


@situation("CDCD-PROTOCOL-ORDER", "rows come outside a transaction", SENT_AGAIN)
def no_begin(w: World) -> Iterator[None]:
    link = _over_a_link(w)

    def without_begin(way: Way, piece: bytes) -> bytes:
        return _BEGIN.sub(b"", piece) if way == "down" else piece

    link.change(without_begin)
    w.insert()
    yield
    link.change(None)
    w.resume()


def _over_a_link(w: World) -> Proxy:
    link = w.closing.enter_context(Proxy(w.server.port))
    dsn = w.daemon.config["source"]["dsn"]
    w.stream(source={"dsn": dsn.replace(f":{w.server.port}/", f":{link.port}/")})
    return link


# --- in part ---------------------------------------------------------------------------------------------------


@situation(
    "CDCD-PARTIAL-TRANSACTION-MISSING",
    "its changes are numbered differently, and the option is changed back",
    "source.protocol.messages",
    "restore the option's value",
)
def numbered_otherwise(w: World) -> Iterator[None]:
    _written_in_part(w)
    w.start(source={"protocol": {"messages": False}})
    yield
    w.start(source={"protocol": {"messages": True}})


@situation("CDCD-PARTIAL-TRANSACTION-MISSING", "its changes stay numbered differently", "cdcd resnapshot")
def numbered_otherwise_for_good(w: World) -> Iterator[None]:
    _written_in_part(w)
    w.start(source={"protocol": {"messages": False}})
    yield
    (words,) = [one for one in commands_in(w.hint) if one[0] != "resume"]
    w.resume(*words)


def _written_in_part(w: World) -> None:
    """Kill the daemon between two parts of a transaction."""
    w.stream(sink={"large_transactions": {"policy": "parts", "max_rows": 500}})
    w.daemon.stop()
    w.sql("INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(10001, 22000) g")
    w.daemon.environment["CDCD_TEST_CRASH_AT"] = "committed"

    def has_part() -> bool:
        assert w.daemon.start().wait_exit() == EXIT_STATUS
        return "part" in _progress(w)

    eventually(has_part, "a part is written")
    del w.daemon.environment["CDCD_TEST_CRASH_AT"]


def _progress(w: World) -> dict[str, Any]:
    found = committed_records(w.kafka.bootstrap, f"{w.daemon.name}.__progress")
    own = [message.value() for message in found if message.key() == w.slot.encode()]
    return dict(json.loads(own[-1] or b""))
