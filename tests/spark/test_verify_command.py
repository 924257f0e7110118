"""`python -m cdcd.spark verify`: a mirror that is equal, and one difference of each kind in its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdcd.cli.verify_mirror import require_mirror, verify_mirror, why_behind
from cdcd.cli.verify_output import Shown
from cdcd.errors import EXIT_FAILURE, EXIT_OK
from cdcd.spark import session as sessions
from cdcd.spark.clients import connection_options
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.commands.verify import EXIT_UNKNOWN
from cdcd.spark.mirroring import verify as verification
from cdcd.spark.reading.mirror import Mirror
from tests.spark.conftest import Command, _Lasting
from tests.spark.events import Table, column
from tests.spark.topics import PARTITIONS, Sent, TopicsWriter, run_mirror

ITEMS = [column("id", "int", required=True), column("name", "string"), column("body", "string")]
SECRET = "a value that is nowhere"


def _row(number: int, name: str | None = None, body: str | None = None) -> dict[str, object]:
    return {"id": number, "name": name, "body": body}


def _changes(topics: TopicsWriter, items: Table) -> list[Sent]:
    """Return changes of each kind; 2, 3 and 4 exist afterwards, and 11, which was 1 and then 10."""

    def sent() -> Any:
        yield topics.change(items, "u", 30, 1, after=_row(1, "a"), unchanged=["body"])
        yield topics.change(items, "u", 30, 2, after=_row(2, "null"))
        yield topics.change(items, "d", 30, 3, before=_row(1))
        yield topics.change(items, "c", 30, 4, after=_row(10, "moved"), unchanged=["body"])
        yield topics.change(items, "d", 30, 5, before=_row(10))
        yield topics.change(items, "c", 30, 6, after=_row(11, "again"), unchanged=["body"])
        yield topics.change(items, "d", 30, 7, before=_row(5))
        yield topics.change(items, "d", 30, 8, before=_row(4))
        yield topics.change(items, "c", 30, 9, after=_row(4, SECRET), special={"after.body": "infinity"})

    return [record for change in sent() for record in change]


def _written(topics: TopicsWriter, items: Table) -> None:
    """Write rows, a TRUNCATE, the rows again, and changes of each kind."""
    for lsn in (10, 20):
        rows = [_row(number, "r", f"body {number} of {lsn}") for number in range(1, 9)]
        copied = [
            record for n, row in enumerate(rows) for record in topics.change(items, "r", lsn, n, after=row)
        ]
        topics.commit(lsn, copied)
        if lsn == 10:
            topics.commit(15, topics.change(items, "t", 15, 1))
    topics.commit(
        30,
        [
            *_changes(topics, items),
            *(r for n in (6, 7, 8) for r in topics.change(items, "d", 30, 10 + n, before=_row(n))),
        ],
    )


Verified = Callable[..., tuple[int, Any]]


@pytest.fixture
def verified(command: Command, capsys: pytest.CaptureFixture[str], target: Path) -> Verified:
    """Return a function that verifies the target: the exit status and the printed document."""

    def run(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        status = command("verify", "--target", str(target), "--output", "json", *words)
        output = capsys.readouterr().out
        assert SECRET not in output
        return status, json.loads(output)

    return run


def _rewritten(opened: Mirror, topic: str, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the rows of the only file of a table."""
    (file,) = opened.version.tables[topic].files
    folder = opened.target.folder
    assert folder is not None
    path = folder / file.path
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def _damaged(rows: list[dict[str, Any]]) -> None:
    """Remove the row 2, change 3, add 12."""
    by_id = {row["id"]: row for row in rows}
    by_id[3]["body"] = None
    rows.append(by_id[11] | {"id": 12})
    rows.remove(by_id[2])


def test_an_equal_table_and_each_difference_are_found(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    verified: Verified,
) -> None:
    """`items` has changes of each kind, `others` a difference of each kind, `log` no key."""
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    log = topics.table("log", ITEMS, key=())
    rows = [
        record for n in (2, 3, 11) for record in topics.change(others, "c", 5, n, after=_row(n, "a", "b"))
    ]
    topics.commit(5, [*topics.change(log, "c", 5, 1, after=_row(1)), *rows])
    _written(topics, items)
    topics.commit(
        40,
        [
            record
            for n in (2, 3, 9)  # a copy that omits `body`, which 3 has in an earlier record
            for record in topics.change(items, "r", 40, n, after=_row(n, "copied"), unchanged=["body"])
        ],
    )
    _rewritten(run_mirror(spark, topics, target, buckets=1), others.topic, _damaged)
    status, found = verified("--show-keys")
    assert (status, found["status"]) == (EXIT_FAILURE, "differs")
    of_items, of_log, of_others = found["tables"]
    assert (of_items["status"], of_items["rows_in_topic"], of_items["rows_in_mirror"]) == ("equal", 5, 5), (
        of_items
    )
    assert of_others["keys"] == {"missing": ['{"id":2}'], "extra": ['{"id":12}'], "different": ['{"id":3}']}
    assert [of_others[kind] for kind in ("missing", "extra", "different")] == [1, 1, 1]
    assert of_log["status"] == "unknown"
    assert "no key" in of_log["reason"]
    assert {one["lsn"] for one in found["tables"]} == {
        "0/30"
    }  # a mirror that is behind is equal as of its LSN


@pytest.mark.nightly
def test_the_text_has_digests_of_keys(
    spark: SparkSession,
    command: Command,
    topics: TopicsWriter,
    target: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = topics.table("items", ITEMS)
    _written(topics, items)
    _rewritten(run_mirror(spark, topics, target, buckets=1), items.topic, _damaged)
    capsys.readouterr()
    assert command("verify", "--target", str(target)) == EXIT_FAILURE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"{items.topic}: differs, 4 rows in the topic, 4 in the mirror: 1 missing, 1 extra, 1 different"
    )
    digests = [hashlib.sha256(b'{"id":%d}' % number).hexdigest()[:16] for number in (2, 12, 3)]
    expected = zip(("missing", "extra", "different"), digests, strict=True)
    assert lines[1:] == [f"  {kind} {digest}" for kind, digest in expected]


@pytest.mark.nightly
def test_types_and_columns_that_change_are_equal(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    verified: Verified,
) -> None:
    """A column that is dropped and added again is empty in older rows, also in the topic's."""
    first = [
        column("id", "long", required=True),
        column("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}),
        column("at", {"type": "long", "logicalType": "timestamp-micros"}),
        column("day", {"type": "long", "logicalType": "time-micros"}),
        column("tags", {"type": "array", "items": ["null", "string"]}),
        column("times", {"type": "array", "items": ["null", {"type": "long", "logicalType": "time-micros"}]}),
        column("names", {"type": "map", "values": ["null", "string"]}),
        column("body", "string"),
    ]
    values: dict[str, object] = {
        "price": Decimal("12.34"),
        "at": 1_764_158_400_123_456,
        "day": 43_200_000_001,
        "tags": ["a", None, "b, c"],
        "times": [1, None],
        "names": {"b": "2", "a": None},
    }
    items = topics.table("items", first)
    topics.commit(
        10,
        [
            r
            for n in (1, 2)
            for r in topics.change(items, "c", 10, n, after={"id": n, "body": "old", **values})
        ],
    )
    without = Table(items.topic, first[:-1], ("id",), topics.registry_url)
    topics.commit(20, topics.change(without, "c", 20, 1, after={"id": 3, **values}))
    again = Table(items.topic, [*first, column("more", "int")], ("id",), topics.registry_url)
    row = {"body": None, "more": 1, **values}
    topics.commit(30, topics.change(again, "u", 30, 1, after={"id": 2, **row}, unchanged=["body", "tags"]))
    topics.commit(
        40,
        topics.change(
            again, "c", 40, 1, after={"id": 4, **row} | {"at": None}, special={"after.at": "infinity"}
        ),
    )
    run_mirror(spark, topics, target, max_rows=2)
    status, found = verified()
    assert (status, found["tables"][0]["rows_in_mirror"]) == (EXIT_OK, 4), found


def test_columns_whose_names_differ_only_in_case_are_compared(
    spark: SparkSession, topics: TopicsWriter, target: Path, verified: Verified
) -> None:
    """PostgreSQL's ID and id are two columns; the session's own setting remains what it was."""
    columns = [column("id", "long", required=True), column("ID", "string"), column("Id", "long")]
    items = topics.table("items", columns)
    rows = [{"id": n, "ID": f"text {n}", "Id": 10 * n} for n in (1, 2)]
    topics.commit(10, [r for n, row in enumerate(rows) for r in topics.change(items, "c", 10, n, after=row)])
    opened = run_mirror(spark, topics, target, buckets=1)
    assert verified()[0] == EXIT_OK
    assert spark.conf.get("spark.sql.caseSensitive") == "false"
    _rewritten(opened, items.topic, lambda found: found[0].update({"ID": "another"}))
    status, found = verified()
    assert (status, found["tables"][0]["different"]) == (EXIT_FAILURE, 1), found


def test_the_sign_of_zero_is_compared(
    spark: SparkSession, topics: TopicsWriter, target: Path, verified: Verified
) -> None:
    """PostgreSQL's texts are 0 and -0; Spark holds both numbers for equal, also inside other values."""
    point = {"type": "record", "name": "point", "fields": [column("x", "float")]}
    floats = {"ratio": "double", "part": "float", "many": {"type": "array", "items": ["null", "double"]}}
    columns = [
        column("id", "int", required=True),
        *(column(*one) for one in floats.items()),
        column("p", point),
    ]
    items = topics.table("items", columns)
    zeros: dict[str, Any] = {"ratio": 0.0, "part": 0.0, "many": [0.0, None], "p": {"x": 0.0}}
    negative: dict[str, Any] = {"ratio": -0.0, "part": -0.0, "many": [-0.0, None], "p": {"x": -0.0}}
    rows = [{"id": n, **(zeros if n % 2 else negative)} for n in range(8)]
    topics.commit(10, [r for row in rows for r in topics.change(items, "c", 10, row["id"], after=row)])

    def plant(found: list[dict[str, Any]]) -> None:
        for row in found:
            name = list(zeros)[row["id"] // 2]
            row[name] = (negative if row["id"] % 2 else zeros)[name]

    opened = run_mirror(spark, topics, target, buckets=1)
    assert verified()[0] == EXIT_OK
    _rewritten(opened, items.topic, plant)
    status, found = verified()
    assert (status, found["tables"][0]["different"]) == (EXIT_FAILURE, 8), found


def test_rows_of_another_writer_of_a_delta_table_are_no_equality(
    spark: SparkSession, topics: TopicsWriter, target: Path, verified: Verified
) -> None:
    """The mirror's files are those of the topic, but readers of the newest version of the table find other rows."""
    items = topics.table("items", ITEMS)
    rows = [r for n in (1, 2) for r in topics.change(items, "c", 10, n, after=_row(n, "a", "b"))]
    topics.commit(10, rows)
    opened = run_mirror(spark, topics, target, format="delta")
    assert verified()[0] == EXIT_OK
    DeltaTable(str(target / "public.items")).delete("id = 1")
    status, found = verified()
    assert (status, found["status"]) == (EXIT_UNKNOWN, "unknown"), found
    assert "another writer has changed the table" in found["tables"][0]["reason"]
    _rewritten(opened, items.topic, lambda found: found[0].update({"name": "another"}))
    status, found = verified()
    assert (status, found["tables"][0]["different"]) == (EXIT_FAILURE, 1), found


def _removed(topics: TopicsWriter, items: Table) -> None:
    """Remove the records of all partitions, as retention does; the marker of the last transaction stays."""
    partitions = [(items.topic, partition) for partition in range(PARTITIONS)]
    ends = Cluster(topics.bootstrap, {}).high_watermarks(partitions)
    before = [TopicPartition(*partition, end - 1) for partition, end in ends.items() if end]
    for future in topics.admin.delete_records(before).values():
        future.result(60)


def _compacted(topics: TopicsWriter, items: Table) -> None:
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, items.topic, incremental_configs=[entry])
    topics.admin.incremental_alter_configs([resource])[resource].result(60)


def _lacks_rows(topics: TopicsWriter, items: Table) -> None:
    topics.loading = (items.topic,)
    topics.commit(40, [])


def _has_gap(topics: TopicsWriter, items: Table) -> None:
    special = {
        "gap.from_lsn": "0/A",
        "gap.to_lsn": "0/14",
        "gap.reason": "CDCD-SLOT-LOST",
        "gap.decided": "2026",
    }
    _, value = items.event("g", 40, 1, special=special)
    topics.commit(40, [(items.topic, partition, None, value) for partition in range(PARTITIONS)])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (None, _removed, "Kafka has removed the first records"),
        (None, _compacted, "the topic is compacted"),
        (_lacks_rows, None, "cdcd still copied the table"),
        (_has_gap, None, "a marker of missing changes"),
    ],
)
def test_what_cannot_be_known_is_no_equality(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    verified: Verified,
    before: Callable[[TopicsWriter, Table], None] | None,
    after: Callable[[TopicsWriter, Table], None] | None,
    reason: str,
) -> None:
    """`before` and `after`: what happens before and after the mirror runs."""
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "c", 10, 1, after=_row(1, "a", "b")))
    if before is not None:
        before(topics, items)
    run_mirror(spark, topics, target, accept_gaps=True)
    if after is not None:
        after(topics, items)
    status, found = verified()
    assert (status, found["status"]) == (EXIT_UNKNOWN, "unknown")
    assert reason in found["tables"][0]["reason"]


@pytest.mark.nightly
def test_a_new_copy_after_removed_records_is_compared(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    verified: Verified,
) -> None:
    """What is before a TRUNCATE does not count."""
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "c", 10, 1, after=_row(1)))
    run_mirror(spark, topics, target)
    _removed(topics, items)
    copied = [*topics.change(items, "t", 20, 1), *topics.change(items, "c", 20, 2, after=_row(2))]
    topics.commit(20, copied)
    run_mirror(spark, topics, target)
    status, found = verified()
    assert (status, found["tables"][0]["rows_in_topic"]) == (EXIT_OK, 1)


@pytest.mark.nightly
def test_what_is_no_mirror_of_the_topics_is_an_error(
    spark: SparkSession,
    command: Command,
    topics: TopicsWriter,
    target: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert command("verify", "--target", str(target)) == EXIT_UNKNOWN
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "c", 10, 1, after=_row(1)))
    run_mirror(spark, topics, target)
    assert command("verify", "--target", str(target), "--table", "public.item") == EXIT_UNKNOWN
    assert command("verify", "--target", str(target), "--prefix", "other") == EXIT_UNKNOWN
    errors = [one.getMessage() for one in caplog.records if one.name == "cdcd.spark"]
    assert len(errors) == 3
    for error, reason in zip(
        errors,
        ("there is no mirror", "did you mean public.items", "the target mirrors another prefix"),
        strict=True,
    ):
        assert reason in error


@pytest.mark.parametrize("offsets", [{}, {"0": 1, "1": 1, "2": 1}])
def test_rows_of_a_mirror_whose_topic_has_no_change_are_extra(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    verified: Verified,
    monkeypatch: pytest.MonkeyPatch,
    offsets: dict[str, int],
) -> None:
    """Up to the mirror's offsets, which have no record, or only a tombstone in each partition."""
    items = topics.table("items", ITEMS)
    key, _ = items.event("c", 10, 1, after=_row(7))
    tombstones = [(items.topic, partition, key, None) for partition in range(PARTITIONS)]
    changes = [
        *topics.change(items, "c", 10, 1, after=_row(1)),
        *topics.change(items, "c", 10, 2, after=_row(2)),
    ]
    topics.commit(10, [*tombstones, *changes])
    opened = run_mirror(spark, topics, target)
    version = replace(opened.version, offsets={**opened.version.offsets, items.topic: offsets})
    monkeypatch.setattr(verification, "read_mirror", lambda *_: replace(opened, version=version))
    status, found = verified("--show-keys")
    (table,) = found["tables"]
    assert (status, table["status"], table["extra"]) == (EXIT_FAILURE, "differs", 2), found
    assert table["keys"] == {"extra": ['{"id":1}', '{"id":2}']}
    emptied = replace(
        version, tables={items.topic: replace(version.tables[items.topic], files=(), deltas=())}
    )
    monkeypatch.setattr(verification, "read_mirror", lambda *_: replace(opened, version=emptied))
    assert verified()[0] == EXIT_OK


def test_cdcd_verify_compares_the_mirror_by_the_same_code(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    items = topics.table("items", ITEMS)
    changes = [record for n in (1, 2) for record in topics.change(items, "c", 10, n, after=_row(n, SECRET))]
    topics.commit(10, changes)
    opened = run_mirror(spark, topics, target, buckets=1)
    _rewritten(opened, items.topic, lambda rows: [row.update(name="b") for row in rows])
    monkeypatch.setattr(connection_options, "connection_from", lambda _: topics.connection)
    monkeypatch.setattr(sessions, "session", lambda *_, **__: _Lasting(spark))
    require_mirror(str(target), {})
    assert why_behind(str(target), {}, 0x12, 0.0, slot=topics.slot.decode()) == ""
    behind = why_behind(str(target), {}, 0x13, 0.0, slot=topics.slot.decode())
    assert "lacks commits with which the source was compared" in behind, "as if the mirror had stopped"
    outcomes = Shown("topic", "mirror")
    verify_mirror(target, str(target), {}, (), shows_keys=True, most_rows=1, limit_s=3600, outcomes=outcomes)
    table, *rows = capsys.readouterr().out.splitlines()
    assert table.startswith(
        f"differs {items.topic}: 2 rows in the topic at 0/12, 2 in the mirror, 2 different ("
    )
    assert rows == ['        different: key {"id":1}', "        and 1 more rows"]
