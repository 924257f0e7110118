"""The lookahead finds the relations with rows in the next items, so that their topics are created together."""

from __future__ import annotations

import pytest

from cdcd.model import Control, Item, RowBatch
from cdcd.pgoutput import messages as m
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import Event
from cdcd.txn.lookahead import of_events, of_items
from tests.support.pgoutput_encode import encode, row_batch_of

ROW = m.TupleData((m.text(b"x"),))


def described(relid: int, name: str, *columns: str, xid: int | None = None) -> Control:
    fields = tuple(m.RelationColumn(True, column, 25, -1) for column in columns or ("id",))
    message = m.Relation(relid, "public", name, "d", fields, xid=xid)
    return Control(0, encode(message, in_stream=xid is not None))


def row(relid: int, xid: int | None = None) -> RowBatch:
    return row_batch_of([(50, m.Insert(relid, ROW, xid=xid))], xid=xid)


BEGIN, COMMIT, START = (
    Control(0, encode(message, in_stream=False))
    for message in (m.Begin(100, 100, 7), m.Commit(100, 108, 100), m.StreamStart(7, True))
)
MANY = [described(1, "root"), described(2, "leaf"), row(1), described(3, "t", "a"), row(3), row(9)]


@pytest.mark.parametrize(
    ("items", "relids", "names"),
    [
        ([], set(), {}),
        (MANY, {1, 3, 9}, {1: "root", 2: "leaf", 3: "t"}),
        ([row(1), COMMIT, BEGIN, described(4, "next"), row(4)], {1, 4}, {4: "next"}),
        ([row(1), START, described(4, "t", xid=7), row(4, xid=7)], {1}, {}),
        ([described(1, "was"), row(1), described(1, "now"), row(1)], {1}, {1: "now"}),
    ],
    ids=["nothing", "a leaf has no row of its own", "the next transaction too", "no open stream", "renamed"],
)
def test_what_was_read_at_once(items: list[Item], relids: set[int], names: dict[int, str]) -> None:
    ahead = of_items(items)
    assert ahead.relids == relids
    assert {relid: relation.name for relid, relation in ahead.described.items()} == names


def test_a_replay_says_the_same_as_its_items() -> None:
    assembler = Assembler(4)
    events: list[Event] = []
    for item in [BEGIN, *MANY, COMMIT]:
        events += assembler.feed(item)
    ahead, expected = of_events(events), of_items(MANY)
    assert ahead.relids == expected.relids
    names = [{relid: one.name for relid, one in found.described.items()} for found in (ahead, expected)]
    assert names[0] == names[1]
