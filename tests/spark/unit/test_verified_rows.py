"""The comparison of a mirror's rows with those of its topic, and the status of a whole run, without servers."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.cli.verify_mirror import limited, require_mirror
from cdcd.errors import EXIT_FAILURE, ConfigError
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.commands import verify as command
from cdcd.spark.mirroring import verify
from cdcd.spark.mirroring.sql_fold import History, fold
from cdcd.spark.mirroring.verified_columns import CurrentNames
from cdcd.spark.mirroring.verify import TableResult, _Shown, _Table, _Unknown
from cdcd.spark.target.versions import Parked, TableEntry

Rows = dict[int | None, str | None]
UNSENT: Any = None


def compared(spark: SparkSession, topic: Rows, mirror: Rows) -> TableResult:
    """Compare rows of an id and a text; a text of None was never sent."""
    table: Any = _Table.__new__(_Table)
    table._topic, table._shown = "shop.public.t", _Shown(10, has_texts=True)
    frames = []
    for rows in (topic, mirror):
        made = spark.createDataFrame(list(rows.items()), "id int, text string")
        ids, texts = (
            F.struct(F.col(name).alias("value"), F.lit(None).cast("string").alias("special"))
            for name in ("id", "text")
        )
        frames.append(
            made.select(
                F.struct("id").alias("key"),
                ids.alias("c0"),
                F.when(F.expr("text is not null"), texts).alias("c1"),
            )
        )
    result: TableResult = table._joined(*frames, 2)
    return result


@pytest.mark.parametrize(
    ("mirror", "kind", "key"),
    [
        ({1: "a", 2: "x", 3: "c", 9: "?"}, "different", '{"id":2}'),
        ({1: "a", 3: "c", 9: "?"}, "missing", '{"id":2}'),
        ({1: "a", 2: "b", 3: "c", 4: "d", 9: "?"}, "extra", '{"id":4}'),
        ({1: "a", 2: "b", 3: "c"}, "missing", '{"id":9}'),  # that a row exists is known without its values
    ],
)
def test_rows_of_unknown_state_hide_no_difference(
    spark: SparkSession, mirror: Rows, kind: str, key: str
) -> None:
    found = compared(spark, {1: "a", 2: "b", 3: "c", 9: UNSENT}, mirror)
    assert (found.status, found.keys) == ("differs", {kind: (key,)})
    assert getattr(found, kind) == found.missing + found.extra + found.different == 1
    assert found.unknown_rows == (9 in mirror)


def test_a_key_outside_the_type_of_its_column_hides_no_difference(spark: SparkSession) -> None:
    found = compared(spark, {None: "a", 2: "b"}, {None: "c", 2: "x"})
    assert (found.status, found.different, found.unknown_rows) == ("differs", 1, 1)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ({1: UNSENT}, "1 rows have values that PostgreSQL did not send"),
        ({None: "a"}, "1 rows have a key outside"),
    ],
)
def test_without_a_difference_rows_of_unknown_state_leave_the_table_unknown(
    spark: SparkSession, topic: Rows, reason: str
) -> None:
    with pytest.raises(_Unknown, match=reason):
        compared(spark, topic, dict.fromkeys(topic, "a"))


def test_rows_differ_also_where_their_keys_cannot_be_read(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("secret value")

    monkeypatch.setattr(verify, "_keys", broken)
    found = compared(spark, {1: "a"}, {1: "b"})
    assert (found.status, found.different) == ("differs", 1)
    assert found.reason == "the keys of the rows that differ could not be read: an internal error: ValueError"
    (line,) = command.lines_of(found)
    assert line.startswith(
        "shop.public.t: differs, 1 rows in the topic, 1 in the mirror: 0 missing, 0 extra, 1"
    )


Compare = Callable[..., TableResult]


def verified(monkeypatch: pytest.MonkeyPatch, compare: Compare, **options: Any) -> list[tuple[str, str]]:
    """Return status and reason of the tables a and b."""
    offsets: dict[str, Any] = {"shop.public.a": {}, "shop.public.b": {}}
    version = SimpleNamespace(offsets=offsets, tables={}, dropped={}, prefix="shop")
    monkeypatch.setattr(verify, "read_mirror", lambda *_: SimpleNamespace(version=version, reached_lsn=int))
    for name in ("Cluster", "_check_origin", "register"):
        monkeypatch.setattr(verify, name, lambda *_: None)
    monkeypatch.setattr(_Table, "compare", compare)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "false", set=lambda *_: None))
    connection: Any = SimpleNamespace(brokers="", read_properties=dict)
    return [(one.status, one.reason) for one in verify.verify(spark, connection, "/data/shop", **options)]


def test_an_error_of_any_kind_of_one_table_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the JVM, which is none of PySpark's."""

    def compare(self: Any) -> TableResult:
        if self._topic == "shop.public.a":
            raise RuntimeError("secret value")
        return TableResult(self._topic, "differs", missing=1)

    assert verified(monkeypatch, compare) == [
        ("unknown", "an internal error: RuntimeError"),
        ("differs", ""),
    ]


def test_after_the_time_no_table_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared_tables: list[str] = []

    def compare(self: Any) -> TableResult:
        compared_tables.append(self._topic)
        raise RuntimeError("the job was cancelled")

    found = verified(monkeypatch, compare, is_over=lambda: bool(compared_tables))
    assert compared_tables == ["shop.public.a"]
    assert found == [("unknown", verify._OVER)] * 2


def test_jobs_are_cancelled_after_the_time(spark: SparkSession) -> None:
    """The first job, which would take weeks, and any later one."""
    endless = spark.range(10**15).selectExpr("bit_xor(xxhash64(id))")
    with limited(spark, 0.5) as is_over:
        for _ in range(2):
            with pytest.raises((PySparkException, Py4JJavaError), match=r"(?i)cancel"):
                endless.collect()
        assert is_over()
    with limited(spark, None) as is_over:
        assert spark.range(3).count() == 3
        assert not is_over()


def test_an_error_after_a_difference_leaves_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one of the JVM, with which Spark cannot be stopped."""

    def results(*_: Any, **__: Any) -> Iterator[TableResult]:
        yield TableResult("shop.public.t", "differs", missing=1)
        raise RuntimeError("secret value")

    def stop() -> None:
        raise ConnectionError("the JVM is gone")

    monkeypatch.setattr(command, "connection_of", lambda _: None)
    monkeypatch.setattr(command, "submitted_or_local", lambda *_: SimpleNamespace(stop=stop))
    monkeypatch.setattr(command, "verify", results)
    options = argparse.Namespace(
        cores="1", memory="1g", target="x", target_option=[], table="*", show_keys=False, output="json"
    )
    assert command.run(options) == EXIT_FAILURE
    page = json.loads(capsys.readouterr().out)
    assert (page["status"], page["tables"][0]["missing"]) == ("differs", 1)
    assert page["errors"] == ["an internal error: RuntimeError"]


AT = "struct<timeline: bigint, commit_lsn: bigint, phase: int, tx_seq: bigint>"
CHANGES = f"""
    key struct<id: int>, op string, at {AT}, after struct<id: int, small: string, large: string>,
    unchanged array<string>, special map<string, string>
"""
COLUMNS = [("id", "int"), ("small", "string"), ("large", "string")]


def moves(count: int, first: int, sent_at: int) -> list[tuple[Any, ...]]:
    """Return the changes of a row whose key is changed so often; `large` is sent with one of the first rows only."""
    changes: list[tuple[Any, ...]] = []
    for number in range(count + 1):
        key, lsn = first + number, 10 * first + number
        if number:
            changes.append(((key - 1,), "d", (1, lsn, 1, 1), None, [], {}))
        is_sent = number == sent_at
        row = (key, f"small {number}", f"large of {first}" if is_sent else None)
        changes.append(((key,), "c", (1, lsn, 1, 2), row, [] if is_sent else ["large"], {}))
    return changes


@pytest.mark.parametrize("count", [1, 100])
def test_a_row_whose_key_changes_often_takes_few_evaluations(spark: SparkSession, count: int) -> None:
    """The value that PostgreSQL did not send is that of the first key, or there is none."""
    evaluated = spark.sparkContext.accumulator(0)
    rows = [*moves(count, 1000, 0), *moves(count, 5000, -1)]

    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        evaluated.add(1)
        yield from batches

    changes = spark.createDataFrame(rows, CHANGES).coalesce(1).mapInArrow(for_tasks(counted), CHANGES)
    history = History(None, frozenset(), None, moved=True, keyless=False, last={})
    spark.sparkContext.setJobGroup(group := uuid.uuid4().hex, "fold")
    found = fold(changes, COLUMNS, history, {}).orderBy("key").collect()
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    spark.sparkContext.setJobGroup("", "")
    assert [(row["key"]["id"], row["c1"]["value"]) for row in found] == [
        (1000 + count, f"small {count}"),
        (5000 + count, f"small {count}"),
    ]
    assert found[0]["c2"]["value"] == "large of 1000"
    assert found[1]["c2"] is None
    assert evaluated.value == 1
    assert len(jobs) <= 6 + 3 * count.bit_length()


def test_changes_under_their_current_names_are_read_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a column was renamed, too."""
    table: Any = _Table.__new__(_Table)
    table._topic, table._ends, table._ids = "shop.public.t", {"0": 1}, {}
    table._entry = TableEntry(table._topic)
    table._opened = SimpleNamespace(version=SimpleNamespace(loading=frozenset()))
    table._connection = None
    at = {7: (1, 10, 1, 1)}
    frame = spark.createDataFrame([((1,), "c")], "key struct<id: int>, op string")
    given: list[bool] = []
    monkeypatch.setattr(verify, "order_changes", lambda changes: changes)
    monkeypatch.setattr(verify, "history_of", lambda _: History(None, frozenset(), None, False, False, at))
    names = CurrentNames({}, {}, {7: {"a": "b"}}, None)
    monkeypatch.setattr(verify, "current_names", lambda *_: names)
    monkeypatch.setattr(verify, "access_of", lambda _: None)
    for name, stub in {
        "_changes": lambda *_: frame.select("*"),
        "_check": lambda *_: None,
        "_compared": lambda _self, renamed, *_, **__: given.append(renamed.is_cached),
    }.items():
        monkeypatch.setattr(_Table, name, stub)
    table._compare()
    assert given == [True]


def test_a_parked_table_is_unknown_with_the_reason() -> None:
    """It is of an earlier commit than the offsets of the mirror."""
    table: Any = _Table.__new__(_Table)
    table._topic, table._ends = "shop.public.t", {"0": 1}
    parked = Parked("CDCD-SPARK-SCHEMA", "the type of a column changed", 0, 0.0)
    table._entry = TableEntry(table._topic, keyed=True, parked=parked)
    table._opened = SimpleNamespace(version=SimpleNamespace(loading=frozenset()))
    with pytest.raises(_Unknown, match="parked: CDCD-SPARK-SCHEMA: the type of a column changed"):
        table._compare()


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        ("ftp://host/shop", {}, "the scheme of the target is unknown"),
        ("s3://", {}, "no bucket"),
        ("folder", {"aws_endpoint": "x"}, "a local target has no options"),
        ("folder", {}, "there is no mirror"),
    ],
)
def test_a_wrong_mirror_is_refused_before_anything_is_read(
    tmp_path: Path, target: str, options: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        require_mirror(str(tmp_path / target) if target == "folder" else target, options)
    assert "--mirror" in str(refused.value)
