"""The content of the topics as Spark has it: read by `format("cdcd")`, decoded by `cdcd.spark.decode`.

In: a broker, a registry, topics, a session, an engine of `decode`.  Out: rows as `tests.oracle.topic` returns them.
Invariant: dates, times and decimals are compared as Spark's own type has them, taken over as numbers only after its
type was checked; the Avro types are the registry's, read without cdcd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from cdcd.spark import decode
from cdcd.spark.data_source import register
from cdcd.spark.decoding.columns import plain_type
from cdcd.spark.session import session
from tests.bench.spark.jars import submit_with_avro
from tests.oracle.topic import Row, Topics

SparkEngine = Literal["native", "spark-avro"]
ENGINES: tuple[SparkEngine, ...] = ("native", "spark-avro")
_IS_TYPE: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean, "int": pa.types.is_int32, "long": pa.types.is_int64,
    "float": pa.types.is_float32, "double": pa.types.is_float64, "string": pa.types.is_string,
    "bytes": pa.types.is_binary, "array": pa.types.is_list, "map": pa.types.is_map, "record": pa.types.is_struct,
    "date": pa.types.is_date32, "decimal": pa.types.is_decimal, "uuid": pa.types.is_string,
    "time-micros": pa.types.is_int64, "timestamp-micros": lambda one: pa.types.is_timestamp(one) and bool(one.tz),
    "local-timestamp-micros": lambda one: pa.types.is_timestamp(one) and not one.tz,
}  # fmt: skip
"""The type that Spark's documentation promises for each Avro type."""


def spark_session(engine: SparkEngine) -> SparkSession:
    """Return a session in which the engine can run."""
    if engine == "spark-avro":
        submit_with_avro()
    running = session("cdcd oracle", "2", memory="2g", shuffle_partitions=2)
    register(running)
    return running


class SparkTopics:
    """The content of topics, with a Spark job for each."""

    def __init__(self, bootstrap: str, registry_url: str, spark: SparkSession, engine: SparkEngine) -> None:
        self._bootstrap, self._registry_url = bootstrap, registry_url
        self._spark, self._engine = spark, engine
        self._schemas = Topics(bootstrap, registry_url)

    def read(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topics by themselves: `rows` reads one when it is needed."""
        return {topic: topic for topic in topics}

    def rows(self, topic: str) -> Iterator[Row]:
        """Yield the decoded records: each must be an insert or a snapshot row, without unchanged columns."""
        options = {"brokers": self._bootstrap, "prefix": topic.partition(".")[0], "topics": topic}
        raw = self._spark.read.format("cdcd").options(**options).load()
        found = decode(raw, topic=topic, registry_url=self._registry_url, engine=self._engine)
        wanted = found.select("op", "after", "snapshot", "unchanged", "special", "schema_id").toArrow()
        assert wanted.num_rows, topic
        after = wanted.schema.field("after").type
        (number,) = set(wanted.column("schema_id").to_pylist())
        avro = self._schemas.columns(number)
        assert [field.name for field in after] == list(avro)
        for name, one in avro.items():
            _check_type(one, after.field(name).type)
        yield from _rows(wanted, avro)


def _rows(table: pa.Table, avro: dict[str, Any]) -> Iterator[Row]:
    for batch in table.to_batches(max_chunksize=1000):
        rows = pa.Table.from_batches([batch])
        column = rows.column("after")
        plain = column.cast(plain_type(column.type)).to_pylist()
        for row, values in zip(rows.drop_columns(["after"]).to_pylist(), plain, strict=True):
            assert row["op"] == ("r" if row["snapshot"] else "c")
            assert row["unchanged"] == []
            special = {name.removeprefix("after."): text for name, text in row["special"] or ()}
            yield Row(
                {name: _on_the_wire(avro[name], value) for name, value in values.items()},
                special,
                avro,
                row["snapshot"],
            )


def _check_type(avro: Any, arrow: pa.DataType) -> None:
    """Assert that a column has the type of its Avro type, at each level."""
    if isinstance(avro, list):
        return _check_type(avro[1], arrow)
    described = avro if isinstance(avro, dict) else {"type": avro}
    assert _IS_TYPE[described.get("logicalType", described["type"])](arrow), (avro, arrow)
    match described["type"]:
        case "array":
            _check_type(described["items"], arrow.value_type)
        case "map":
            _check_type(described["values"], arrow.item_type)
        case "record":
            names = [field.get("pg.name", field["name"]) for field in described["fields"]]
            assert [field.name for field in arrow] == names
            for field, one in zip(described["fields"], arrow, strict=True):
                _check_type(field["type"], one.type)
    if described.get("logicalType") == "decimal":
        assert (arrow.precision, arrow.scale) == (described["precision"], described["scale"])


def _on_the_wire(avro: Any, value: Any) -> Any:
    """Return the value as the judge gets it from the topic: by Avro's names, a decimal as its bytes."""
    if isinstance(avro, list):
        return None if value is None else _on_the_wire(avro[1], value)
    if not isinstance(avro, dict):
        return value
    match avro["type"]:
        case "array":
            return [_on_the_wire(avro["items"], item) for item in value]
        case "map":
            return dict(value)
        case "record":
            return {
                field["name"]: _on_the_wire(field["type"], one)
                for field, one in zip(avro["fields"], value.values(), strict=True)
            }
    return _decimal_bytes(value, avro["scale"]) if avro.get("logicalType") == "decimal" else value


def _decimal_bytes(value: Decimal, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert exponent == -scale
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    return number.to_bytes(17, "big", signed=True)
