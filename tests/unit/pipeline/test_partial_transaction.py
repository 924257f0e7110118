"""A partially written transaction that is sent again: written records are dropped, the rest is unchanged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from cdcd.config import load_config
from cdcd.config.sample import sample_yaml
from cdcd.errors import PartialTransactionMissing
from cdcd.model import Item, PartPosition
from cdcd.pipeline.partial_transaction import check_numbers, numbered_by
from tests.unit.pipeline.session_items import (
    Flow,
    begin,
    commit,
    inserts,
    keepalive,
    key_change,
    message,
    relation,
    streamed,
    truncate,
    update,
)

CHANGES: list[Item] = [
    relation(),
    inserts("a", "b"),
    key_change("a", "c"),
    truncate(),
    message(90, transactional=True),
    inserts("d", "e", "f"),
]
TRANSACTION: list[Item] = [begin(100), *CHANGES, commit(100)]
CUTS = (2, 4, 5, 6, 9)
"""The sequence numbers at the ends of its chunks."""


async def test_each_chunk_says_how_far_the_transaction_is_written_with_it() -> None:
    flow = await Flow().feed(*TRANSACTION)
    assert [chunk.reached for chunk in flow.chunks] == [*(PartPosition(100, number) for number in CUTS), None]


@pytest.mark.parametrize("cut", CUTS)
async def test_the_rest_follows_what_is_written(cut: int) -> None:
    """F4, F5, F27, F47: the part may end with any change; the rest has the same records as without parts."""
    whole = await Flow().feed(*TRANSACTION)
    written = [
        r for chunk in whole.chunks if chunk.reached and chunk.reached.tx_seq <= cut for r in chunk.records
    ]
    rest = await Flow(part=PartPosition(100, cut)).feed(*TRANSACTION)
    assert written + rest.records == whole.records
    assert rest.commit_positions == whole.commit_positions
    assert rest.commit_positions[-1].part is None


@pytest.mark.parametrize("written", range(1, 6))
async def test_row_batches_may_be_divided_differently_the_next_time(written: int) -> None:
    """A row batch has the rows of one read of the socket, so its end has no meaning."""
    again = await Flow(part=PartPosition(100, written)).feed(
        begin(100), relation(), inserts("a", "b", "c", "d", "e"), commit(100)
    )
    assert [change[2] for change in again.changes()] == list(range(written + 1, 6))


async def test_the_transaction_may_be_streamed_the_next_time() -> None:
    """F27."""
    rows: list[Item] = [relation(xid=7), inserts("a", "b", "c", xid=7)]
    again = await Flow(part=PartPosition(100, 2)).feed(*streamed(7, 100, *rows))
    assert again.changes() == [("c", 100, 3)]


async def test_positions_before_it_comes_keep_the_part() -> None:
    """With a progress record without the part, the rest would look like the complete transaction."""
    flow = await Flow(start_lsn=50, part=PartPosition(100, 2)).feed(keepalive(90))
    assert [commit_position.part for commit_position, _ in flow.idles] == [PartPosition(100, 2)]
    await flow.feed(begin(60), relation(), inserts("x"), commit(60))
    assert flow.commit_positions[-1].part == PartPosition(100, 2)
    assert flow.changes() == [("c", 60, 1)]


@pytest.mark.parametrize(
    "items",
    [
        [begin(200), relation(), inserts("x")],  # another transaction arrives instead
        [keepalive(101)],  # the server is past the transaction
        [begin(100), relation(), inserts("a"), commit(100)],  # fewer changes than are already written
        [
            begin(100),
            relation(),
            inserts("a"),
            key_change("a", "b"),
        ],  # other sequence numbers: 1, then 2 and 3
    ],
    ids=["another transaction", "past the transaction", "fewer changes", "other numbers"],
)
async def test_a_rest_that_does_not_come_is_an_error(items: list[Item]) -> None:
    """Readers have the beginning of the transaction, so cdcd must not guess."""
    with pytest.raises(PartialTransactionMissing):
        await Flow(start_lsn=50, part=PartPosition(100, 2)).feed(*items)


UPDATES: list[Item] = [
    begin(100),
    relation("id", "v", is_full=True),
    *(update((f"{number}", "a"), (f"{number + 100}", "a")) for number in range(6)),
    truncate(),
    inserts(("1", "a"), ("2", "b")),
    commit(100),
]


@pytest.mark.parametrize("cut", [4, 7, 9])
async def test_a_first_key_since_the_part_was_written_is_an_error(cut: int) -> None:
    """F27, F47: with a key each of these updates has two numbers, so rows would be written a second time."""
    written = await Flow(key=()).feed(*UPDATES)
    (part,) = {chunk.reached for chunk in written.chunks if chunk.reached and chunk.reached.tx_seq == cut}
    again = await Flow(part=part, key=()).feed(*UPDATES)
    assert [change[2] for change in again.changes()][:1] == ([] if cut == 9 else [cut + 1])
    with pytest.raises(PartialTransactionMissing, match="other keys"):
        await Flow(part=part, key=("id",)).feed(*UPDATES)


async def test_only_the_tables_of_the_part_count() -> None:
    """The table after the part has a key meanwhile; a batch may end elsewhere."""
    part = PartPosition(100, 2)
    written = await Flow().feed(begin(100), relation(), inserts("a", "b"))
    assert written.chunks[-1].reached == part
    later: list[Item] = [relation("id", "v", is_full=True), *UPDATES[2:]]
    again = await Flow(part=part, key=("id",)).feed(begin(100), relation(), inserts("a", "b", "c"), *later)
    assert again.commit_positions[-1].part is None


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        ({"CDCD_LOG__LEVEL": "debug"}, False),
        ({"CDCD_FORMAT__TOMBSTONES": "false"}, False),
        ({"CDCD_SOURCE__PUBLICATION__NAMES": '["shop"]'}, True),
        ({"CDCD_SOURCE__PROTOCOL__MESSAGES": "false"}, True),
        ({"CDCD_SOURCE__PROTOCOL__ORIGIN": "none"}, True),
        ({"CDCD_FORMAT__KEYLESS": "row"}, True),
        ({"CDCD_FORMAT__KEY_COLUMNS": '["id"]'}, True),
        ({"CDCD_FORMAT__OVERRIDES": '[{"table": "a.b", "tombstones": false}]'}, False),
        ({"CDCD_FORMAT__OVERRIDES": '[{"table": "a.b", "key_columns": ["id"]}]'}, True),
    ],
)
def test_a_part_is_only_gone_on_with_as_it_was_numbered(
    tmp_path: Path, change: dict[str, str], is_another: bool
) -> None:
    """With one table less, other changes would get the sequence numbers of changes already written."""
    path = tmp_path / "cdcd.yaml"
    path.write_text(sample_yaml())
    was, now = (numbered_by(load_config(path, {"CDCD_NAME": "x", **over})) for over in ({}, change))
    check_numbers(None, now)
    check_numbers(PartPosition(100, 5), now)  # written by a version without this field
    with pytest.raises(PartialTransactionMissing, match="numbers") if is_another else nullcontext():
        check_numbers(PartPosition(100, 5, was), now)
