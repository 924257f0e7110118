"""The mirror's guarantees, with real Spark, a real broker and a real registry."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from cdcd.errors import CdcdError
from cdcd.spark.target.commit_log import read_latest
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rewind, rows_of, run_mirror
from tests.support.hints import hint_of

ITEMS = [column("id", "int", required=True), column("name", "string"), column("body", "string")]


def _row(number: int, name: str | None = None, body: str | None = None) -> dict[str, object]:
    return {"id": number, "name": name, "body": body}


@pytest.mark.nightly  # unchanged columns have several changes of a key
def test_the_last_change_of_a_key_wins(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, [r for n in range(1, 9) for r in topics.change(items, "r", 10, n, after=_row(n, "s"))])
    topics.commit(
        20,
        [
            *topics.change(items, "u", 20, 1, after=_row(1, "a")),
            *topics.change(items, "u", 20, 2, after=_row(1, "b")),
            *topics.change(items, "d", 20, 3, before=_row(2)),
            *topics.change(items, "d", 20, 4, before=_row(3)),
            *topics.change(items, "c", 20, 5, after=_row(3, "again")),
        ],
    )
    opened = run_mirror(spark, topics, target)
    rows = {row["id"]: row["name"] for row in rows_of(opened, items)}
    assert rows == {1: "b", 3: "again", 4: "s", 5: "s", 6: "s", 7: "s", 8: "s"}
    assert opened.commit_lsn == 20


@pytest.mark.nightly
def test_later_batches_change_only_what_they_name(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, [r for n in range(20) for r in topics.change(items, "r", 10, n, after=_row(n, "s"))])
    before = run_mirror(spark, topics, target).version.tables[items.topic].files
    topics.commit(20, topics.change(items, "u", 20, 1, after=_row(5, "new")))
    opened = run_mirror(spark, topics, target)
    assert {row["id"]: row["name"] for row in rows_of(opened, items)} == {
        number: "new" if number == 5 else "s" for number in range(20)
    }
    table = opened.version.tables[items.topic]
    assert table.files == before
    assert [one.rows for one in table.deltas] == [1]


def test_unchanged_columns_keep_their_value(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    """F46: the value comes from the target, or from an earlier change of the same batch."""
    items = topics.table("items", ITEMS)
    rows = [_row(1, "one", "long 1"), _row(2, "two", "long 2"), _row(3, "three", "long 3")]
    topics.commit(10, [r for row in rows for r in topics.change(items, "r", 10, row["id"], after=row)])
    run_mirror(spark, topics, target)
    topics.commit(
        20,
        [
            *topics.change(items, "u", 20, 1, after=_row(1, "x"), unchanged=["body"]),
            *topics.change(items, "u", 20, 2, after=_row(2, "y", "longer")),
            *topics.change(items, "u", 20, 3, after=_row(2, "z"), unchanged=["body"]),
            *topics.change(items, "u", 20, 4, after=_row(3, "null", None)),
        ],
    )
    assert rows_of(run_mirror(spark, topics, target), items) == [
        _row(1, "x", "long 1"),
        _row(2, "z", "longer"),
        _row(3, "null", None),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_row_keeps_its_values_under_a_new_key(
    spark: SparkSession, topics: TopicsWriter, target: Path, in_one_batch: bool
) -> None:
    """F46, F47: delete under the old key, tombstone, create under the new key with unchanged columns."""
    items = topics.table("items", ITEMS)
    numbers = range(1, 9)
    topics.commit(
        10, [r for n in numbers for r in topics.change(items, "r", 10, n, after=_row(n, "s", f"long {n}"))]
    )
    if not in_one_batch:
        run_mirror(spark, topics, target)
    moves = []
    for place, number in enumerate(numbers):
        moves += topics.change(items, "d", 20, 2 * place + 1, before=_row(number))
        moves += topics.change(
            items, "c", 20, 2 * place + 2, after=_row(number + 100, "moved"), unchanged=["body"]
        )
    topics.commit(20, moves)
    opened = run_mirror(spark, topics, target)
    assert rows_of(opened, items) == [_row(n + 100, "moved", f"long {n}") for n in numbers]


@pytest.mark.nightly
@pytest.mark.parametrize("again", [(), (30,)])
def test_truncate_empties_all_buckets(
    spark: SparkSession, topics: TopicsWriter, target: Path, again: tuple[int, ...]
) -> None:
    """F51: the barrier comes once per partition and counts once; the rows after it stay. `again`: more of them."""
    items = topics.table("items", ITEMS)
    topics.commit(10, [r for n in range(20) for r in topics.change(items, "r", 10, n, after=_row(n))])
    run_mirror(spark, topics, target)
    topics.commit(
        20,
        [
            *topics.change(items, "c", 20, 1, after=_row(50, "gone")),
            *topics.change(items, "t", 20, 2),
            *topics.change(items, "c", 20, 3, after=_row(51, "stays")),
        ],
    )
    assert rows_of(run_mirror(spark, topics, target), items) == [_row(51, "stays")]
    for lsn in again:
        topics.commit(lsn, topics.change(items, "t", lsn, 1))
        assert rows_of(run_mirror(spark, topics, target), items) == []


@pytest.mark.nightly  # test_loading has these rows
def test_special_texts_stay_until_a_value_replaces_them(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(
        10,
        [
            *topics.change(items, "r", 10, 1, after=_row(1), special={"after.name": "infinity"}),
            *topics.change(items, "r", 10, 2, after=_row(2), special={"after.body": "NaN"}),
            *topics.change(items, "r", 10, 3, after=_row(3), special={"after.name": "-infinity"}),
        ],
    )
    run_mirror(spark, topics, target)
    topics.commit(
        20,
        [
            *topics.change(items, "u", 20, 1, after=_row(1, "plain")),
            *topics.change(items, "u", 20, 2, after=_row(2, "n"), unchanged=["body"]),
        ],
    )
    assert rows_of(run_mirror(spark, topics, target), items) == [
        {**_row(1, "plain")},
        {**_row(2, "n"), "__special": [("body", "NaN")]},
        {**_row(3), "__special": [("name", "-infinity")]},
    ]


@pytest.mark.nightly  # a lost checkpoint has such a table
def test_a_table_without_a_key_is_a_bag(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    log = topics.table("log", [column("n", "int"), column("t", "string")], key=())
    one, two, three = {"n": 1, "t": None}, {"n": 1, "t": "x"}, {"n": 3, "t": "y"}
    topics.commit(
        10,
        [r for n, row in enumerate([one, one, one, two]) for r in topics.change(log, "r", 10, n, after=row)],
    )
    run_mirror(spark, topics, target)
    topics.commit(
        20,
        [
            *topics.change(log, "d", 20, 1, before=one),
            *topics.change(log, "u", 20, 2, before=two, after=three),
            *topics.change(log, "u", 20, 3, before=three, after=two),
            *topics.change(log, "c", 20, 4, after=two),
        ],
    )
    opened = run_mirror(spark, topics, target)
    assert rows_of(opened, log) == sorted([one, one, two, two], key=repr)
    topics.commit(30, [*topics.change(log, "t", 30, 1), *topics.change(log, "c", 30, 2, after=three)])
    assert rows_of(run_mirror(spark, topics, target), log) == [three]


def test_what_is_not_committed_is_never_seen(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    """F64: neither aborted records nor those of an open Kafka transaction are read."""
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=_row(1, "s")))
    topics.write(topics.change(items, "u", 20, 1, after=_row(1, "aborted")))
    topics.abort()
    topics.commit(30, topics.change(items, "c", 30, 1, after=_row(2, "t")))
    topics.write(topics.change(items, "u", 40, 1, after=_row(1, "open")))
    opened = run_mirror(spark, topics, target)
    assert rows_of(opened, items) == [_row(1, "s"), _row(2, "t")]


@pytest.mark.nightly  # test_loading_mirror repeats a batch
def test_a_batch_done_twice_changes_nothing(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    """The target's own watermark excludes changes already applied, also the first ones."""
    log = topics.table("log", [column("n", "int")], key=())
    topics.commit(10, topics.change(log, "r", 10, 1, after={"n": 1}))
    run_mirror(spark, topics, target)
    topics.commit(20, topics.change(log, "c", 20, 1, after={"n": 2}))
    run_mirror(spark, topics, target)
    rewind(target)
    topics.commit(30, topics.change(log, "c", 30, 1, after={"n": 3}))
    assert rows_of(run_mirror(spark, topics, target), log) == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.nightly  # test_cuts has the limits
def test_batches_end_on_commits_within_the_limit(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    for lsn in range(10, 60, 10):
        topics.commit(
            lsn,
            [
                *topics.change(items, "c", lsn, 1, after=_row(lsn)),
                *topics.change(others, "c", lsn, 2, after=_row(lsn)),
            ],
        )
    seen: list[tuple[int, int]] = []
    run_mirror(spark, topics, target, max_rows=4, on_batch=lambda b: seen.append((b.commit_lsn, b.rows)))
    assert [lsn for lsn, _ in seen] == sorted({lsn for lsn, _ in seen})
    assert seen[-1][0] == 50
    assert len(seen) >= 3
    assert all(rows % 2 == 0 for _, rows in seen)


@pytest.mark.nightly  # the storm of DDL has both
def test_a_new_column_is_null_in_old_rows_and_a_dropped_one_does_not_come_back(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(
        10, [r for n in range(6) for r in topics.change(items, "r", 10, n, after=_row(n, "s", "b"))]
    )
    run_mirror(spark, topics, target)
    items.alter(
        [*ITEMS[:2], column("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})]
    )
    topics.commit(20, topics.change(items, "u", 20, 1, after={"id": 0, "name": "n", "price": Decimal(1)}))
    rows = rows_of(run_mirror(spark, topics, target), items)
    assert [(row["id"], str(row["price"])) for row in rows] == [
        (0, "1.00"),
        *((n, "None") for n in range(1, 6)),
    ]
    items.alter(ITEMS)
    topics.commit(30, topics.change(items, "u", 30, 1, after=_row(0, "n", "new")))
    rows = rows_of(run_mirror(spark, topics, target), items)
    assert [row["body"] for row in rows] == ["new", None, None, None, None, None]


def test_a_start_that_kafka_has_removed_is_an_error(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, [r for n in range(50) for r in topics.change(items, "r", 10, n, after=_row(n))])
    for future in topics.admin.delete_records([TopicPartition(items.topic, 0, 3)]).values():
        future.result(30)
    with pytest.raises(CdcdError, match="CDCD-HISTORY-MISSING") as raised:
        run_mirror(spark, topics, target)
    opened = read_latest(target)
    assert opened is not None
    assert opened.tables == {}
    hint = hint_of(str(raised.value))
    assert "another `name`" in hint
    assert "a mirror with an empty target" in hint
    again = TopicsWriter(topics.bootstrap, topics.registry_url, f"{topics.prefix}b")
    try:
        others = again.table("items", ITEMS)
        again.commit(20, again.change(others, "r", 20, 1, after=_row(60)))
        assert rows_of(run_mirror(spark, again, target.with_name("empty")), others) == [_row(60)]
    finally:
        again.close()


@pytest.mark.nightly
def test_a_large_batch_is_folded_by_sparks_tasks(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    count = 500
    topics.commit(
        10,
        (r for n in range(count) for r in topics.change(items, "r", 10, n + 1, after=_row(n, "s", "b" * 50))),
    )
    opened = run_mirror(spark, topics, target, driver_bytes=10_000)
    assert opened.rows(items.topic) == count
    assert {row["id"] for row in rows_of(opened, items)} == set(range(count))


@pytest.mark.nightly  # test_order has it
def test_a_transaction_may_begin_exactly_at_the_snapshots_point(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """F1: its commit LSN equals that of the snapshot rows, which come before it."""
    items = topics.table("items", ITEMS)
    topics.commit(10, [r for n in range(1, 6) for r in topics.change(items, "r", 10, n, after=_row(n, "s"))])
    run_mirror(spark, topics, target)
    topics.commit(10, topics.change(items, "u", 10, 1, after=_row(5, "streamed")))
    rows = {row["id"]: row["name"] for row in rows_of(run_mirror(spark, topics, target), items)}
    assert rows[5] == "streamed"


@pytest.mark.nightly  # test_source has one
def test_a_compacted_progress_topic_hides_nothing(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """Partitions that no retained record names are read to their end."""
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=_row(1)))
    topics.commit(20, topics.change(others, "r", 20, 1, after=_row(2)))
    # Offsets 0 to 2 are the joining record, the first progress record and the marker: removed, as by a compaction.
    for future in topics.admin.delete_records([TopicPartition(topics.progress_topic, 0, 3)]).values():
        future.result(30)
    opened = run_mirror(spark, topics, target)
    assert (rows_of(opened, items), rows_of(opened, others)) == ([_row(1)], [_row(2)])


@pytest.mark.nightly  # test_target has it
def test_files_left_by_a_crash_are_removed_at_the_next_start(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=_row(1)))
    opened = run_mirror(spark, topics, target)
    left = target / "_data" / items.topic / f"delta-{'0' * 32}.parquet"
    left.write_bytes(b"half a file")
    topics.commit(20, topics.change(items, "u", 20, 1, after=_row(1, "x")))
    opened = run_mirror(spark, topics, target)
    assert not left.exists()
    assert rows_of(opened, items) == [_row(1, "x")]
