"""The contract of a ChangeStore: it preserves order, and an abort drops only the subtransaction's changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdcd.model import Control, RowBatch
from cdcd.txn.store import MemoryStore, abortable_xid

from . import wire

_ITEMS = st.integers(1, 4).flatmap(
    lambda xid: st.sampled_from(
        [
            wire.rows("1", xid=xid),
            wire.truncate(1, xid=xid),
            wire.message(True, xid),
            wire.relation("id", xid=xid),
            wire.pg_type(xid),
        ]
    )
)


def test_rows_truncates_and_messages_belong_to_their_xid_descriptions_to_none() -> None:
    assert [abortable_xid(item) for item in (wire.rows("1", xid=5), wire.truncate(1, xid=5))] == [5, 5]
    assert abortable_xid(wire.message(True, 5)) == 5
    assert [abortable_xid(item) for item in (wire.relation("id", xid=5), wire.pg_type(5))] == [None, None]


@given(st.lists(st.one_of(_ITEMS, st.integers(1, 4))))
def test_a_store_equals_a_list_that_is_filtered_at_each_abort(steps: list[RowBatch | Control | int]) -> None:
    store, model = MemoryStore(), list[RowBatch | Control]()
    for one in steps:
        if isinstance(one, int):
            store.abort_subtransaction(one)
            model = [item for item in model if abortable_xid(item) != one]
        else:
            store.append(one)
            model.append(one)
    assert list(store.replay()) == model
