"""The oracle in its small form: some types through the topics of the newest major, judged by PostgreSQL itself.

`make oracle` runs every type with more values on several majors, and prints the counts of each type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.oracle.judge import Judge
from tests.oracle.kinds import Column, DeclaredType, Table, array
from tests.oracle.report import failures, table_of
from tests.oracle.run import run
from tests.oracle.topic import Row
from tests.support.nightly import nightly
from tests.support.stack import Stack

SOME = {
    "int4",
    "date",
    "interval",
    "hstore",
    '"Per son"',
    "tsquery",
    "money",
    "regproc",
    "aclitem",
    "long values",
}
FEW = {"interval", '"Per son"'}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("types", "count"), [(FEW, 4), nightly(SOME, 10)], ids=["few", "some"])
def test_a_value_comes_back_as_the_row_was(
    types: set[str],
    count: int,
    postgres: PostgresServer,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """Snapshot and stream, text and binary; alone, in arrays, domains, composites, ranges and multiranges."""
    outcome = run(Stack(postgres, kafka, registry, tmp_path), count=count, only=types)
    print(table_of(outcome))
    assert not failures(outcome)
    assert all(verdict.sum("text", "values") for verdict in outcome.verdicts)
    assert all(verdict.sum("binary", "values") for verdict in outcome.verdicts)


@pytest.fixture
def judge(postgres: PostgresServer, database: str) -> Iterator[Judge]:
    with contextlib.closing(Judge(postgres.dsn(database))) as judge:
        yield judge


MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
INTS = {"type": "array", "items": ["null", "int"]}


@pytest.mark.parametrize(
    ("kind", "literal", "avro", "right", "wrong"),
    [
        (DeclaredType("float8"), "-0", "double", -0.0, 0.0),
        (DeclaredType("float8"), "5e-324", "double", 5e-324, 0.0),
        (DeclaredType("numeric"), "1.10", "string", "1.10", "1.1"),
        (DeclaredType("char(3)"), "a", "string", "a  ", "b  "),
        (DeclaredType("text"), "", "string", "", None),
        (DeclaredType("text"), "a ", "string", "a ", "a"),
        (DeclaredType("text"), None, "string", None, ""),
        (DeclaredType("json"), '{"a":  1}', "string", '{"a":  1}', '{"a": 1}'),
        (DeclaredType("timestamp"), "0044-03-15 BC", MICROS, -63517824000000000, -63517824000000001),
        (DeclaredType("int4"), "7", "int", 7, "seven"),
        (array(DeclaredType("int4")), "{1,NULL}", INTS, [1, None], [1]),
        (array(DeclaredType("int4")), "{}", INTS, [], None),
    ],
)
def test_the_judge_notices_what_is_wrong(
    judge: Judge,
    postgres: PostgresServer,
    database: str,
    kind: DeclaredType,
    literal: str,
    avro: Any,
    right: Any,
    wrong: Any,
) -> None:
    postgres.execute(f"CREATE TABLE t1 (id int, v {kind.sql})", dbname=database)
    postgres.execute("INSERT INTO t1 VALUES (1, %s), (2, %s)", literal, literal, dbname=database)
    table = Table("t1", kind.sql, (Column("v", kind),))
    rows = [(n, Row({"v": value}, {}, {"v": ["null", avro]}, False)) for n, value in ((1, right), (2, wrong))]
    found = judge.judge(table, rows, may_be_special=False)["v"]
    assert (found.values, found.specials, len(found.mismatches)) == (2, 0, 1)
    assert f"{kind.sql} v id 2" in found.mismatches[0]


def test_the_judge_accepts_specials_and_counts_needless_ones(
    judge: Judge, postgres: PostgresServer, database: str
) -> None:
    postgres.execute("CREATE TABLE t1 (id int, v int, a int[])", dbname=database)
    postgres.execute("INSERT INTO t1 VALUES (1, 5, '{1,2}'), (2, 6, '{{1},{2}}')", dbname=database)
    table = Table("t1", "int4", (Column("v", DeclaredType("int4")), Column("a", array(DeclaredType("int4")))))
    avro = {"v": ["null", "int"], "a": ["null", INTS]}
    rows = [
        (1, Row({"v": None, "a": None}, {"v": "5", "a": "{1,2}"}, avro, False)),
        (2, Row({"v": 6, "a": None}, {"a": "{{1},{3}}"}, avro, False)),
    ]
    found = judge.judge(table, rows, may_be_special=False)
    assert {name: (one.specials, one.needless, len(one.mismatches)) for name, one in found.items()} == {
        "v": (1, 1, 0),
        "a": (2, 1, 1),
    }
