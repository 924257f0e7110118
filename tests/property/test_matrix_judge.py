"""The judge of the matrix detects each kind of loss, repetition, reordering and wrong value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.matrix.account import UNCHANGED, Account, Change, Emitted, Transaction, Truncation
from tests.matrix.cells import Cell
from tests.matrix.judge import Counts, judge
from tests.matrix.workload import Done
from tests.support.reader import Event

CELL = Cell(1, "off", binary=False, messages=True, two_phase=False, origin="any", via_root=False)
ACCOUNT = Account(
    [
        Transaction(
            7,
            [
                Change(10, "listed", "INSERT", None, {"id": 1, "a": "x", "hidden": "h"}),
                Change(11, "listed", "UPDATE", {"id": 1}, {"id": 2, "a": UNCHANGED, "hidden": "h"}),
                Emitted(12, "within", "said"),
            ],
        ),
        Transaction(6, [Truncation(20, ("parent", "child"), frozenset({"cascade"}))]),
        Transaction(8, [Change(30, "entire", "DELETE", {"id": 3, "v": "old"}, None)]),
    ],
    [Emitted(5, "loose", "beside")],
)
Events = list[Event]


def _event(table: str, op: str, at: tuple[int, int], xid: int, lsn: int, key: Any, **rows: Any) -> Event:
    source = {
        "schema": "public",
        "table": table,
        "timeline": 1,
        "commit_lsn": at[0],
        "tx_seq": at[1],
        "txId": xid,
        "lsn": lsn,
    }
    source |= {"origin": None, "unchanged": rows.pop("unchanged", []), "special": rows.pop("special", None)}
    value = {"op": op, "before": None, "after": None, "source": source, **rows}
    return Event(f"d.public.{table}", 0, at[0] * 100 + at[1], key, value)


def _message(number: int, content: str, **of_transaction: int | None) -> Event:
    value = {"prefix": "within", "content": content.encode(), "lsn": number, **of_transaction}
    value["timeline"] = None if of_transaction.get("txId") is None else 1
    value["transactional"] = of_transaction.get("txId") is not None
    return Event("d.message", 0, number, {"prefix": "within"}, value)


def events() -> Events:
    """Return the events that a correct daemon writes for ACCOUNT."""
    deleted = {"id": 1, "a": None}
    flags = {"truncate.cascade": "true"}
    return [
        _event("listed", "c", (100, 1), 7, 10, {"id": 1}, after={"id": 1, "a": "x"}),
        _event("listed", "d", (100, 2), 7, 11, {"id": 1}, before=deleted),
        Event("d.public.listed", 0, 10_003, {"id": 1}, None),
        _event("listed", "c", (100, 3), 7, 11, {"id": 2}, after={"id": 2, "a": None}, unchanged=["a"]),
        _message(5, "beside", commit_lsn=None, tx_seq=None, txId=None),
        _message(12, "said", commit_lsn=100, tx_seq=4, txId=7),
        _event("parent", "t", (200, 1), 6, 20, None, special=flags),
        _event("child", "t", (200, 2), 6, 20, None, special=flags),
        _event("entire", "d", (300, 1), 8, 30, None, before={"id": 3, "v": "old", "f": None}),
    ]


def test_the_expected_events_pass() -> None:
    assert judge(CELL, 18, ACCOUNT, Done("o"), "d", events()) == Counts(3, 7, 1)


@pytest.mark.parametrize("number", range(len(events())))
def test_a_missing_record_fails(number: int) -> None:
    read = events()
    del read[number]
    with pytest.raises(AssertionError):
        judge(CELL, 18, ACCOUNT, Done("o"), "d", read)


@pytest.mark.parametrize("number", range(len(events())))
def test_a_repeated_record_fails(number: int) -> None:
    read = events()
    read.insert(number, read[number])
    with pytest.raises(AssertionError):
        judge(CELL, 18, ACCOUNT, Done("o"), "d", read)


def _changed(number: int, **of_source: Any) -> Callable[[Events], None]:
    def change(read: Events) -> None:
        value = dict(read[number].value)
        value["source"] = value["source"] | of_source
        read[number] = replace(read[number], value=value)

    return change


def _swapped(one: int, other: int) -> Callable[[Events], None]:
    """Exchange the sequence numbers of two changes."""

    def change(read: Events) -> None:
        numbers = [read[place].value["source"]["tx_seq"] for place in (one, other)]
        _changed(one, tx_seq=numbers[1])(read)
        _changed(other, tx_seq=numbers[0])(read)

    return change


def _other_value(read: Events) -> None:
    read[0].value["after"]["a"] = "y"


def _unlisted_column(read: Events) -> None:
    read[0].value["after"]["hidden"] = "h"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_other_value, id="value"),
        pytest.param(_unlisted_column, id="unlisted column"),
        pytest.param(_changed(3, unchanged=[]), id="unchanged"),
        pytest.param(_changed(0, lsn=9), id="lsn"),
        pytest.param(_changed(0, txId=9), id="xid"),
        pytest.param(_changed(0, origin="o"), id="origin"),
        pytest.param(_changed(6, special={}), id="flags"),
        pytest.param(_changed(8, commit_lsn=150), id="commit order"),
        pytest.param(_swapped(6, 7), id="order"),
    ],
)
def test_a_wrong_value_or_order_fails(change: Callable[[Events], None]) -> None:
    read = events()
    change(read)
    with pytest.raises(AssertionError):
        judge(CELL, 18, ACCOUNT, Done("o"), "d", read)


@pytest.mark.parametrize("streaming", ["off", "on", "parallel"])
def test_an_origin_may_be_missing_only_where_the_server_need_not_send_it(streaming: str) -> None:
    """The server omits the origin of a streamed transaction whose first change is not a row change."""
    cell = replace(CELL, version=4, streaming=streaming)
    done = Done("o", origin_xids={7, 8}, unreported_xids={7})
    of_8 = _changed(8, origin="o")

    def verdict(origin_of_7: str | None, change_8: Callable[[Events], None]) -> Counts:
        read = events()
        for number in (0, 1, 3):
            _changed(number, origin=origin_of_7)(read)
        change_8(read)
        return judge(cell, 18, ACCOUNT, done, "d", read)

    assert verdict("o", of_8) == Counts(3, 7, 1)
    with pytest.raises(AssertionError, match="transaction 8 has the origin None"):
        verdict("o", _changed(8, origin=None))
    with pytest.raises(AssertionError, match="transaction 7 has the origin other"):
        verdict("other", of_8)
    if streaming == "off":
        with pytest.raises(AssertionError, match="transaction 7 has the origin None"):
            verdict(None, of_8)
    else:
        assert verdict(None, of_8) == Counts(3, 7, 1)
