"""Raw records as typed columns, without a jar: the change, and its position in the order of changes.

In: a DataFrame with topic, partition, offset, key and value (`format("cdcd")`, or the JVM's `format("kafka")`), the
topics, a connection or a registry's URL.
Out: the columns of `changes.change_schema`, in a batch or a stream.
Invariant: every record is decoded under its own schema, then converted to the registry's newest schema of the
topics, by name and by Avro's promotions; an older column that does not fit is an error. Columns that the query does
not select are skipped in the records.
Must not: drop a record: tombstones have a null op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from cdcd.errors import ConfigError, RegistryRefused, SparkReadError
from cdcd.spark.clients.connection import Connection, RegistryAccess, SchemaAccess
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.decoding import frame, jvm_decoding
from cdcd.spark.decoding.change_columns import (
    ChangeReader,
    Choices,
    ErrorPolicy,
    SpecialPolicy,
    change_schema,
)
from cdcd.spark.decoding.engine import Engine, is_on_jvm
from cdcd.spark.decoding.lost_columns import LostColumns
from cdcd.spark.decoding.name_lists import check_lists
from cdcd.spark.decoding.registry_schemas import SCHEMA_NOT_FOUND
from cdcd.spark.decoding.schemas import (
    NotASchema,
    SchemaSet,
    TopicVersions,
    access_of,
    expand,
    expanded,
    source_of,
    topic_versions,
    value_record,
    value_subject,
)


def decode(
    df: DataFrame,
    *,
    topic: str | Sequence[str],
    connection: Connection | None = None,
    registry_url: str | None = None,
    before: bool = False,
    columns: Sequence[str] | None = None,
    source: Sequence[str] = (),
    special: SpecialPolicy = "map",
    on_error: ErrorPolicy = "fail",
    engine: Engine = "auto",
) -> DataFrame:
    """Return the decoded changes of a topic, or of several: their columns are united by name.

    `before`: also return the old rows. `columns`: the columns of the rows, by PostgreSQL's names; default: all.
    `source`: more fields of the records' `source`. `special`: what accompanies the null of a value outside its
    column's type: a text in the map `special`; or in the struct `special_after` or `special_before` ("string");
    nothing ("null"); or it is an error. `on_error`: a broken record ends the query ("fail"); or it is a row with
    `error`, `raw_key` and `raw_value`, and nulls in the columns of a change ("quarantine"). `engine`: where records
    are decoded: in Python's workers ("native"), or by the JVM with spark-avro ("spark-avro"); "auto" chooses.
    `registry_url` is enough for a registry without authentication. `key` is null for a table without a key. Times of
    day are microseconds.
    Raises SparkReadError if there is no schema for a topic, a name is unknown, names differ only in case, or tables
    have a column of incompatible types; ConfigError for an unknown policy, or for "spark-avro" without the package.
    """
    _check("engine", engine, Engine)
    check_lists(columns=columns, source=source)
    topics = (topic,) if isinstance(topic, str) else tuple(dict.fromkeys(topic))
    if not topics:
        raise ConfigError("decode needs a topic", hint='name it: topic="shop.public.orders"')
    decoding = decoding_of(
        _access(connection, registry_url),
        topics,
        before=before,
        columns=columns,
        source=source,
        special=special,
        on_error=on_error,
    )
    if df.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        decoding.check_cases()
    wanted = df.where(F.col("topic").isin(*topics)).select("topic", "partition", "offset", "key", "value")
    if is_on_jvm(df.sparkSession, engine, on_error):
        return jvm_decoding.decode(wanted, decoding.choices, decoding.written, decoding.schema)
    return wanted.mapInArrow(for_tasks(decoding.decode), decoding.schema)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decoding of the records of some topics, as a task needs it. It has references to secrets only."""

    choices: Choices
    schemas: SchemaSet
    versions: tuple[TopicVersions, ...]

    @property
    def written(self) -> dict[str, dict[int, str]]:
        """The schemas of all versions by id: of the records' `value`, and of their `key`."""
        return {
            "value": {one.schema_id: one.text for each in self.versions for one in each.values},
            "key": {one.schema_id: one.text for each in self.versions for one in each.keys},
        }

    @property
    def schema(self) -> StructType:
        """The columns, with the properties of PostgreSQL's columns as metadata."""
        return _struct_type(change_schema(self.choices))

    def check_cases(self) -> None:
        """Raise SparkReadError if names of columns differ only in case."""
        frame.check_cases(self.choices.row, "after")
        frame.check_cases(self.choices.key or (), "key")

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode batches of raw records. Raises SparkReadError for a broken record, unless it goes to quarantine."""

        def schema_of(number: int) -> Any:
            return expand(_schema_of(self.schemas, number))

        row = {one.name for one in self.choices.row}
        lost = LostColumns(self.versions, row, schema_of, self._is_deleted)
        reader = ChangeReader(self.choices, schema_of, lost.of_batch)
        for batch in batches:
            yield reader.read(batch)

    def _is_deleted(self, topic: str, number: int) -> bool:
        """Whether a schema that is unknown is an older version that was deleted from the registry.

        The registry lists a version that was registered since the start. Its id says nothing: an older version that
        was deleted may have the highest one, and cdcd's admin port answers as a registry with ids without an order.
        """
        access = self.schemas.access
        if not isinstance(access, RegistryAccess):
            return False
        return all(one.schema_id != number for one in source_of(access).versions(value_subject(topic)))


def decoding_of(
    access: SchemaAccess,
    topics: Sequence[str],
    *,
    before: bool = False,
    columns: Sequence[str] | None = None,
    source: Sequence[str] = (),
    special: SpecialPolicy = "map",
    on_error: ErrorPolicy = "fail",
    leaves_out: Callable[[str], bool] = lambda topic: False,
) -> Decoding:
    """Return how records of these topics are decoded. Reads their schemas. Parameters and errors as `decode`.

    `leaves_out`: whether a topic without a schema is left out; one of the topics has to have one.
    """
    _check("special", special, SpecialPolicy)
    _check("on_error", on_error, ErrorPolicy)
    versions = _all_versions(access, topics, leaves_out)
    texts = {one.schema_id: one.text for each in versions for one in (*each.values, *each.keys)}
    choices = _choices(
        versions, columns=columns, source=source, before=before, special=special, on_error=on_error
    )
    return Decoding(choices, SchemaSet(access, texts), tuple(versions))


def _check(parameter: str, value: str, policy: Any) -> None:
    known = get_args(policy)
    if value not in known:
        raise ConfigError(f"{parameter} has an unknown value", hint=f"choose {', '.join(known)}", value=value)


def _schema_of(schemas: SchemaSet, number: int) -> Any:
    """Return a schema. Raises SparkReadError, an error of the record, if the registry has no Avro under the id."""
    try:
        return schemas[number]
    except NotASchema as error:
        raise SparkReadError(str(error), schema_id=number) from error
    except RegistryRefused as refused:
        if refused.context.get("error_code") != SCHEMA_NOT_FOUND and "kind" not in refused.context:
            raise
        raise SparkReadError(refused.message, schema_id=number) from refused


def _access(connection: Connection | None, registry_url: str | None) -> SchemaAccess:
    if registry_url is not None and connection is None:
        return RegistryAccess(registry_url)
    if connection is None or registry_url is not None:
        raise ConfigError("decode needs a connection or a registry_url", hint="pass one of them")
    return access_of(connection)


def _all_versions(
    access: SchemaAccess, topics: Sequence[str], leaves_out: Callable[[str], bool]
) -> list[TopicVersions]:
    found = [topic_versions(access, one) for one in topics]
    with_rows = [one for one in found if one.values or not leaves_out(one.topic)]
    for one in with_rows or found:
        if not one.values:
            raise SparkReadError(
                "there is no value schema of the topic",
                hint="cdcd registers the schemas of a table with its first row: if it has had none yet, start the "
                "query again when it has; otherwise correct the topic's name, or read from the registry that cdcd "
                "writes to, whose registry.subjects has to be topic_name",
                subject=value_subject(one.topic),
            )
    return with_rows


def _choices(
    versions: Sequence[TopicVersions], *, columns: Sequence[str] | None, source: Sequence[str], **rest: Any
) -> Choices:
    topics = [_fields(one, source) for one in versions]
    wanted = topics if columns is None else frame.choose_columns(topics, columns)
    keys = [(one.topic, one.key) for one in topics if one.key is not None]
    records = [
        value_record(expanded(one.text, schema_id=one.schema_id)) for each in versions for one in each.values
    ]
    return Choices(
        row=frame.unite_fields([(one.topic, one.row) for one in wanted], "after"),
        key=frame.unite_fields(keys, "key") if keys else None,
        source=frame.unite_fields([(one.topic, one.source) for one in topics], "source"),
        names=frame.renamed_columns(records),
        **rest,
    )


def _fields(versions: TopicVersions, source: Sequence[str]) -> frame.TopicFields:
    envelope = expanded(versions.values[-1].text, topic=versions.topic)
    return frame.TopicFields(
        topic=versions.topic,
        row=frame.fields_of(value_record(envelope)),
        key=frame.fields_of(expanded(versions.keys[-1].text, topic=versions.topic))
        if versions.keys
        else None,
        source=frame.source_fields(envelope, source),
    )


def _struct_type(fields: Sequence[pa.Field]) -> StructType:
    """Return Spark's type of these fields, with the properties of the columns as metadata."""
    return StructType(
        [StructField(one.name, spark_type(one.type), metadata=frame.properties_of(one)) for one in fields]
    )


def spark_type(arrow: pa.DataType) -> DataType:
    """Return Spark's type of an Arrow type."""
    if pa.types.is_struct(arrow):
        return _struct_type(list(arrow))
    if pa.types.is_list(arrow):
        return ArrayType(spark_type(arrow.value_type))
    if pa.types.is_map(arrow):
        return MapType(spark_type(arrow.key_type), spark_type(arrow.item_type))
    return from_arrow_type(arrow, prefer_timestamp_ntz=True)
