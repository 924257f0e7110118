"""Both engines of `decode` on the same records: equal columns, types, metadata and values.

`make spark-matrix` runs this file by its name, in a process of its own, with the Spark for which there is spark-avro:
the JVM gets its jars when it starts. The other tests have a session without jars.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import ConfigError
from cdcd.spark import decode
from cdcd.spark.data_source import register
from cdcd.spark.decoding.columns import plain_type
from cdcd.spark.session import run_to_end, session
from tests.bench.spark.jars import submit_with_avro
from tests.spark.events import column
from tests.spark.topics import TopicsWriter
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed
from tests.support.stack import run
from tests.support.values import BY_HAND

ENGINES: tuple[Literal["native", "spark-avro"], ...] = ("native", "spark-avro")
ID = column("id", "long", required=True)
BORN = column("born", {"type": "int", "logicalType": "date"})
LARGE = "repeat(md5(random()::text), 400)"
TYPES = {name: found for name, found in BY_HAND.items() if found}
ROWS = 12


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a session with spark-avro on its class path."""
    submit_with_avro()
    running = session("cdcd engines", "2", memory="1g", shuffle_partitions=2)
    yield running
    running.stop()


def _raw(spark: SparkSession, bootstrap: str, prefix: str) -> DataFrame:
    register(spark)
    return spark.read.format("cdcd").options(brokers=bootstrap, prefix=prefix).load()


def _plan(df: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        df.explain()
    return shown.getvalue()


def _rows(df: DataFrame) -> list[dict[str, Any]]:
    table = df.toArrow()
    columns = [column.cast(plain_type(column.type)).to_pylist() for column in table.columns]
    rows = [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    return sorted(map(_sorted, rows), key=lambda row: (row["topic"], row["partition"], row["offset"]))


def _sorted(value: Any) -> Any:
    """Return the value with the entries of maps sorted: they have no order."""
    if isinstance(value, dict):
        return {name: _sorted(one) for name, one in value.items()}
    if isinstance(value, list):
        items = [_sorted(one) for one in value]
        return sorted(items) if items and all(isinstance(one, tuple) for one in items) else items
    return value


def _compared(raw: DataFrame, **parameters: Any) -> list[dict[str, Any]]:
    """Return the rows, which are the same by both engines."""
    native, on_jvm = (decode(raw, engine=engine, **parameters) for engine in ENGINES)
    assert "MapInArrow" in _plan(native)
    assert "from_avro" in (plan := _plan(on_jvm))
    assert "MapInArrow" not in plan
    assert on_jvm.schema.json() == native.schema.json()
    rows = _rows(native)
    assert repr(_rows(on_jvm)) == repr(rows)
    return rows


@pytest.fixture
def daemon(
    tmp_path: Path, postgres: PostgresServer, database: str, kafka: KafkaBroker, registry: SchemaRegistry
) -> Iterator[Daemon]:
    """Yield a daemon that has written changes of two tables, one of them with every type, altered in between."""
    name = f"engines{database}"
    execute = partial(run, postgres, database)
    columns = ", ".join(f'"{_named(kind)} ü" {kind}, "{_named(kind)}[]" {kind}[]' for kind in TYPES)
    execute(
        "CREATE EXTENSION hstore",
        "CREATE TYPE place AS (street text, number int, since date, more int[])",
        'CREATE TABLE "All" (id int PRIMARY KEY, small int, at time, place place, places place[], tags hstore, '
        f"large text, {columns})",
        'ALTER TABLE "All" REPLICA IDENTITY FULL',
        "CREATE TABLE other (id bigint PRIMARY KEY, small bigint, large text, word text)",
        "ALTER TABLE other ALTER large SET STORAGE EXTERNAL",
        f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES",
    )
    for row in range(ROWS // 2):
        execute(_insert(row))
    with Daemon(
        tmp_path / "cdcd",
        name,
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
        snapshot=STREAM_ONLY,
    ) as running:
        running.start()
        running.wait_state("streaming")
        for row in range(ROWS // 2, ROWS):
            execute(_insert(row))
        execute(
            f"INSERT INTO other SELECT n, n, {LARGE}, 'x' FROM generate_series(1, 5) n",
            "UPDATE other SET word = 'y' WHERE id < 4",
            "DELETE FROM other WHERE id = 1",
            'UPDATE "All" SET small = 7, id = id + 1000 WHERE id < 3',
            'DELETE FROM "All" WHERE id = 4',
            'ALTER TABLE "All" ALTER small TYPE bigint, ADD "new 1" numeric(12, 3), DROP at',
            'UPDATE "All" SET "new 1" = id, small = 5000000000 WHERE id > 6',
            "TRUNCATE other",
        )
        await_confirmed(postgres, running)
        yield running


def _named(kind: str) -> str:
    return kind.strip('"')


def _insert(row: int) -> str:
    """Return the statement for a row with a literal of each type, and an array of it."""
    values = []
    for kind, found in TYPES.items():
        literal = "'" + found[row % len(found)].replace("'", "''") + "'"
        values += [literal, "'{}'" if row % 3 == 0 else f"array[{literal}, null]::{kind}[]"]
    place = ["null", "row('a', null, '2024-01-01', '{1,null}')", "row('', 1, 'infinity', '{}')"][row % 3]
    return (
        f"INSERT INTO \"All\" VALUES ({row}, {row}, '12:34:56.789', {place}, array[{place}, null]::place[], "
        f"'a=>1, b=>NULL', 'l', {', '.join(values)})"
    )


def test_records_of_every_type_and_every_choice(
    spark: SparkSession, kafka: KafkaBroker, registry: SchemaRegistry, daemon: Daemon
) -> None:
    raw = _raw(spark, kafka.bootstrap, daemon.name).cache()
    every, other = f"{daemon.name}.public.All", f"{daemon.name}.public.other"
    compared = partial(_compared, raw, registry_url=registry.url)
    rows = compared(topic=every, before=True, source=["ts_us", "txId", "table", "special", "snapshot"])
    assert {row["op"] for row in rows} == {"r", "c", "u", "d", None}
    assert any(row["special"] for row in rows)
    assert any(row["after"] and row["after"]["new 1"] for row in rows)
    for special in ("string", "null"):
        found = compared(topic=every, before=True, special=special)
        assert any(row.get("special_after") for row in found) == (special == "string")
    few = compared(topic=every, columns=["small", "date ü", "places", "int4[]"], special="string")
    assert few[0]["after"].keys() == {"small", "places", "int4[]", "date ü"}
    assert "after" not in compared(topic=every, columns=[], special="string")[0]
    both = compared(topic=[every, other], columns=["small", "large"], before=True)
    assert any(row["unchanged"] == ["large"] for row in both)
    assert "t" in {row["op"] for row in both}
    raw.unpersist()


def test_a_value_outside_its_type_is_the_same_error(spark: SparkSession, topics: TopicsWriter) -> None:
    table = topics.table("orders", [ID, column("Stra_u00dfe", BORN["type"][1], **{"pg.name": "Straße"})])
    special = {"after.Stra_u00dfe": "infinity"}
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1}, special=special))
    raw = _raw(spark, topics.bootstrap, topics.prefix)
    texts = []
    for engine in ENGINES:
        df = decode(raw, topic=table.topic, registry_url=topics.registry_url, special="error", engine=engine)
        with pytest.raises(Exception, match="CDCD-SPARK-READ") as raised:
            df.collect()
        (line,) = [one for one in str(raised.value).splitlines() if "CDCD-SPARK-READ" in one]
        texts.append(line[line.index("CDCD-SPARK-READ") :].partition(" SQLSTATE")[0])
    assert texts[1] == texts[0]
    assert "column=after.Straße" in texts[0]
    assert "infinity" not in texts[1]
    for policy in ("map", "string", "null"):
        _compared(raw, topic=table.topic, registry_url=topics.registry_url, special=policy)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"{}", "it is not framed"),
        (b"\1\0\0\0\1x", "it is not framed"),
        (
            b"\0" + (2**31 - 1).to_bytes(4, "big") + b"x",
            f"did not exist when the query started.*schema_id={2**31 - 1}",
        ),
        (None, "its bytes are not a record of its schema"),
    ],
)
def test_a_broken_record_is_an_error_with_its_place(
    spark: SparkSession, topics: TopicsWriter, value: bytes | None, said: str
) -> None:
    """Also if the query wants none of its columns."""
    table = topics.table("orders", [ID, BORN])
    (good,) = topics.change(table, "c", 10, 1, after={"id": 1})
    broken = good[3][:7] if value is None and good[3] else value
    topics.commit(10, [good, (table.topic, 1, None, broken)])
    raw = _raw(spark, topics.bootstrap, topics.prefix)
    df = decode(raw, topic=table.topic, registry_url=topics.registry_url, engine="spark-avro")
    place = rf"topic={table.topic} partition=1 offset=\d+"
    for wanted in (df, df.groupBy().count(), df.where("op = 'c'").select("key"), df.where("key.id > 0")):
        with pytest.raises(SparkRuntimeException, match=rf"(?s)CDCD-SPARK-READ.*{place}") as raised:
            wanted.collect()
        raised.match(f"(?s){said}")


def test_schemas_that_cannot_be_converted_are_errors_of_their_records(
    spark: SparkSession, topics: TopicsWriter
) -> None:
    """Avro itself would read the texts as bytes."""
    table = topics.table("orders", [ID, column("n", "string")])
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1, "n": "x"}))
    table.alter([ID, column("n", "bytes")])
    topics.commit(20, topics.change(table, "c", 20, 1, after={"id": 2, "n": b"y"}))
    raw = _raw(spark, topics.bootstrap, topics.prefix)
    decoding = partial(decode, topic=table.topic, registry_url=topics.registry_url)
    for engine in ENGINES:
        with pytest.raises(Exception, match=r"(?s)CDCD-SPARK-READ.*cannot be converted.*column after\.n"):
            decoding(raw, engine=engine).collect()
        rest = decoding(raw, engine=engine, columns=["id"]).orderBy("commit_lsn")
        assert [row["id"] for row in rest.select("after.id").collect()] == [1, 2]


def test_a_stream_stops_at_a_schema_that_is_new_and_continues_after_a_restart(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    table = topics.table("orders", [ID, BORN])
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1}))
    register(spark)
    read = spark.readStream.format("cdcd").options(brokers=topics.bootstrap, prefix=topics.prefix)
    decoding = partial(decode, topic=table.topic, registry_url=topics.registry_url, engine="spark-avro")
    before = decoding(read.load())

    def run_stream(df: DataFrame) -> Exception | None:
        found = df.select("after.*").writeStream.format("parquet").trigger(availableNow=True)
        located = found.option("path", str(tmp_path / "rows")).option(
            "checkpointLocation", str(tmp_path / "at")
        )
        return run_to_end(located.start)

    assert run_stream(before) is None
    table.alter([ID, BORN, column("more", "string")])
    topics.commit(20, topics.change(table, "c", 20, 1, after={"id": 2, "more": "x"}))
    failure = run_stream(before)
    assert "did not exist when the query started" in str(failure)
    assert run_stream(decoding(read.load())) is None
    rows = spark.read.schema("id long, more string").parquet(str(tmp_path / "rows"))
    assert [tuple(row) for row in rows.orderBy("id").collect()] == [(1, None), (2, "x")]


def test_auto_uses_the_jvm_only_without_the_c_extension(
    spark: SparkSession, topics: TopicsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = topics.table("orders", [ID])
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1}))
    raw = _raw(spark, topics.bootstrap, topics.prefix)
    decoding = partial(decode, raw, topic=table.topic, registry_url=topics.registry_url)
    monkeypatch.setenv("CDCD_EXTENSIONS", "auto")
    assert "MapInArrow" in _plan(decoding())
    monkeypatch.setenv("CDCD_EXTENSIONS", "python")
    assert "from_avro" in _plan(decoding())
    assert "MapInArrow" in _plan(decoding(on_error="quarantine"))
    with pytest.raises(ConfigError, match='choose engine="native"'):
        decoding(engine="spark-avro", on_error="quarantine")


def test_a_filter_decodes_each_record_once(spark: SparkSession, topics: TopicsWriter) -> None:
    table = topics.table("orders", [ID, BORN])
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1}))
    raw = _raw(spark, topics.bootstrap, topics.prefix)
    df = decode(raw, topic=table.topic, registry_url=topics.registry_url, engine="spark-avro")
    plan = _plan(df.where("op = 'c' AND after.id > 0").select("after.born", "key.id"))
    assert plan.count("from_avro") == 2  # of the value and of the key
