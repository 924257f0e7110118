"""`python -m cdcd.spark read`, in the tests' Spark, from a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import EXIT_FAILURE, EXIT_OK
from tests.spark.conftest import Command
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter
from tests.support.nightly import nightly

ITEMS = [
    column("id", "int", required=True),
    column("name", "string"),
    column("at", {"type": "long", "logicalType": "timestamp-micros"}),
]
AT_US = 1_764_158_400_123_456
AT = "2025-11-26T12:00:00.123456Z"


def _written(topics: TopicsWriter) -> Table:
    """Write a table with two commits; the second has an update, and a row with its tombstone."""
    items = topics.table("items", ITEMS)
    rows = [{"id": number, "name": f"n{number}", "at": AT_US} for number in (1, 2, 3)]
    topics.commit(
        16, [sent for n, row in enumerate(rows) for sent in topics.change(items, "r", 16, n, after=row)]
    )
    topics.commit(
        32,
        [
            *topics.change(items, "u", 32, 1, after=rows[0] | {"name": None}, before=rows[0]),
            *topics.change(items, "d", 32, 2, before=rows[1]),
        ],
    )
    return items


def test_the_first_changes_are_shown_in_order_as_json(
    command: Command, topics: TopicsWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    _written(topics)
    assert (
        command("read", "--table", "public.it*", "--before", "--columns", "name,at", "--show", "5") == EXIT_OK
    )
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["op"], one["key"], one["commit_lsn"], one["tx_seq"]) for one in shown] == [
        ("r", {"id": 1}, 16, 0),
        ("r", {"id": 2}, 16, 1),
        ("r", {"id": 3}, 16, 2),
        ("u", {"id": 1}, 32, 1),
        ("d", {"id": 2}, 32, 2),
    ]
    assert shown[3]["before"] == {"name": "n1", "at": AT}
    assert shown[3]["after"] == {"name": None, "at": AT}
    assert shown[4]["after"] is None


@pytest.mark.nightly  # the positions are those of the data source
def test_the_changes_of_a_range_are_shown(
    command: Command, topics: TopicsWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    _written(topics)
    assert command("read", "--table", "public.items", "--starting", "0/20") == EXIT_OK
    assert [json.loads(line)["op"] for line in capsys.readouterr().out.splitlines()] == ["u", "d", None]
    assert command("read", "--table", "public.items", "--ending", "0/20") == EXIT_OK
    assert [json.loads(line)["op"] for line in capsys.readouterr().out.splitlines()] == ["r", "r", "r"]


@pytest.mark.parametrize("written_as", ["parquet", nightly("json"), nightly("orc")])
def test_an_output_has_each_change_once_over_several_runs(
    command: Command, spark: SparkSession, topics: TopicsWriter, tmp_path: Path, written_as: str
) -> None:
    items = _written(topics)
    output = ["--output", str(tmp_path / "items"), "--format", written_as, "--available-now"]
    words = ["--table", "public.items", *output, "--checkpoint", str(tmp_path / "position")]
    assert command("read", *words) == EXIT_OK
    topics.commit(48, topics.change(items, "c", 48, 1, after={"id": 4, "name": "n4", "at": AT_US}))
    assert command("read", *words) == EXIT_OK
    files = spark.read.format(written_as).load(str(tmp_path / "items"))
    found = files.selectExpr(
        "op", "key.id", "commit_lsn", "unix_micros(cast(after.at as timestamp)) as at"
    ).collect()
    assert sorted(map(tuple, found), key=repr) == sorted(
        [
            *(("r", number, 16, AT_US) for number in (1, 2, 3)),
            ("u", 1, 32, AT_US),
            ("d", 2, 32, None),
            (None, 2, None, None),
            ("c", 4, 48, AT_US),
        ],
        key=repr,
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--table", "public.item"], "CDCD-SPARK-READ: the table has no topic"),
        nightly(["--table", "public.items", "--columns", "nmae"], "CDCD-SPARK-READ: columns has a name"),
        nightly(
            ["--table", "public.items", "--option", "onErr=fail"],
            "option onerr is unknown - did you mean onError?",
        ),
        nightly(
            ["--table", "public.items", "--output", "o", "--checkpoint", "c", "--format", "delta"],
            "CDCD-CONFIG: Spark has no format delta",
        ),
        (
            ["--table", "public.items", "--output", "s3a://b/o", "--checkpoint", "s3a://b/c"],
            "the reader stopped: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache",
        ),
    ],
)
def test_an_error_is_one_line(
    command: Command, topics: TopicsWriter, words: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    _written(topics)
    assert command("read", *words) == EXIT_FAILURE
    (line,) = [one.getMessage() for one in caplog.records if one.name == "cdcd.spark"]
    assert reason in line
    assert "\n" not in line
