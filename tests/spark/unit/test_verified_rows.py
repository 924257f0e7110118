"""The comparison of a mirror's rows with those of its topic, and the status of a whole run, without servers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.errors import EXIT_FAILURE
from cdcd.spark.commands import verify as command
from cdcd.spark.mirroring import verify
from cdcd.spark.mirroring.verify import TableResult, _Table, _Unknown

Rows = dict[int | None, str | None]
UNSENT: Any = None


def compared(spark: SparkSession, topic: Rows, mirror: Rows) -> TableResult:
    """Compare rows of an id and a text; a text of None was never sent."""
    table: Any = _Table.__new__(_Table)
    table._topic = "shop.public.t"
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
    result: TableResult = table._joined(*frames, 2, shows_keys=True)
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
def test_a_difference_is_found_beside_rows_of_unknown_state(
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


def test_an_error_of_any_kind_of_one_table_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the JVM, which is none of PySpark's."""

    def compare(self: Any, *, shows_keys: bool) -> TableResult:
        if self._topic == "shop.public.a":
            raise RuntimeError("secret value")
        return TableResult(self._topic, "differs", missing=1)

    version = SimpleNamespace(
        offsets={"shop.public.a": {}, "shop.public.b": {}}, tables={}, dropped={}, prefix="shop"
    )
    monkeypatch.setattr(verify, "read_mirror", lambda *_: SimpleNamespace(version=version))
    for name in ("Cluster", "_check_origin", "register"):
        monkeypatch.setattr(verify, name, lambda *_: None)
    monkeypatch.setattr(_Table, "compare", compare)
    conf = SimpleNamespace(get=lambda _: "false", set=lambda *_: None)
    connection = SimpleNamespace(brokers="", read_properties=dict)
    found = list(verify.verify(SimpleNamespace(conf=conf), connection, "/data/shop"))  # type: ignore[arg-type]
    assert [(one.status, one.reason) for one in found] == [
        ("unknown", "an internal error: RuntimeError"),
        ("differs", ""),
    ]


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
