"""Records of a table's topic that cdcd did not write: they are no changes of the table, which is parked.

In: what decoding raised; the records of a batch.
Out: whether the error is one of a record; the records that are readable; the first one that is not, with its place.
Invariant: an outage, an error of a disk and a schema that its source does not have are no errors of a record: they
end the mirror, or are tried again, because every table would be parked for them. Of a table that is left out already
a schema that its source does not have is one of a record, else there is no way out. No text has a value of a record.
Must not: do I/O except fetching schemas by id; use Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from fastavro.schema import SchemaParseException

from cdcd.errors import CdcdError, MirrorInconsistent, RegistryRefused, SparkReadError
from cdcd.spark.decoding.events import read_events
from cdcd.spark.decoding.registry_schemas import SCHEMA_NOT_FOUND
from cdcd.spark.decoding.schemas import Schema, expand, parsed_physical, schema_id, value_record
from cdcd.spark.tables.plan import Look, SchemaSource

__all__ = [
    "DECODING_ERRORS",
    "first_unreadable",
    "id_or_none",
    "is_of_a_record",
    "not_planned",
    "readable",
    "schema_of_changes",
]

DECODING_ERRORS = (
    SparkReadError, SchemaParseException,
    ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What is raised for bytes that are no change, and for a schema that is not one of changes: see `is_of_a_record`."""
_HINT = (
    "find out who writes to the topic, and revoke its right (only cdcd writes there); then copy the table again: "
    "`cdcd snapshot start --table SCHEMA.TABLE --recopy`. A topic that is not of a table: `drop-table`"
)
_OTHER_SOURCE_HINT = (
    "read from the registry that cdcd writes to (registry.url in its configuration): this one does not belong to the "
    "topics, or has given its ids anew after a loss. If its schemas cannot be restored: `drop-table`, then copy the "
    "table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`"
)
log = logging.getLogger("cdcd.spark.mirror")


def is_of_a_record(error: Exception) -> bool:
    """Return whether a record or its schema is the cause: not a disk or a server, whose errors are ValueErrors, too.

    The errors of cdcd that have a code of their own say what they are.
    """
    if isinstance(error, OSError | pa.ArrowException):
        return False
    return not isinstance(error, CdcdError) or type(error) is SparkReadError


def id_or_none(value: bytes) -> int | None:
    """Return the schema id of a record, None if it is not framed."""
    try:
        return schema_id(value)
    except SparkReadError:
        return None


def schema_of_changes(
    topic: str, number: int, schema_by_id: SchemaSource, *, is_left: bool = False
) -> Schema | None:
    """Return a schema, None if it is not one of changes. Raises what its source raises if it cannot be fetched.

    `is_left`: the table is parked or dropped: None, too, if the source answers that it does not have the schema.
    """
    try:
        schema = _fetched(topic, number, schema_by_id)
    except (RegistryRefused, SparkReadError) as refused:  # `kind`: it has the schema, which is not Avro
        if "kind" not in refused.context and not (is_left and _is_absent(refused, number)):
            raise
        return None
    except (ValueError, RecursionError) as error:  # `NotASchema`
        if not is_of_a_record(error):
            raise
        return None
    try:
        value_record(expand(schema))
        parsed_physical(schema)
    except DECODING_ERRORS:
        return None
    return schema


def _is_absent(error: CdcdError, number: int) -> bool:
    """Return whether a source has answered that it has no schema with this id."""
    if isinstance(error, RegistryRefused):
        return error.context.get("error_code") == SCHEMA_NOT_FOUND
    return error.context.get("schema_id") == number  # of a registry's answers only RegistryRefused has it


def _fetched(topic: str, number: int, schema_by_id: SchemaSource) -> Schema:
    """Return a schema. If its source refuses it, the log says of which topic it is, which the error does not."""
    try:
        return schema_by_id(number)
    except CdcdError:
        log.warning("%s: a record has the schema id %d, whose schema cannot be fetched", topic, number)
        raise


def readable(
    look: Look, schema_by_id: SchemaSource, *, own: int | None = None, is_left: bool = False
) -> Look:
    """Return the summary of a topic without the records that are no changes: the fold says where they are.

    `own`: the id of the table's columns, None if not known; `is_left`: see `schema_of_changes`. Raises what the
    source of the schemas raises, and SparkReadError if it has another schema under `own`.
    """
    schemas: dict[int, Schema] = {}
    for number in sorted({one for one in map(id_or_none, look.last_values) if one is not None}):
        schema = schema_of_changes(look.topic, number, schema_by_id, is_left=is_left)
        if schema is not None:
            schemas[number] = schema
        elif own is not None:
            _check_source(look.topic, own, schema_by_id)
    return replace(
        look,
        last_values=_changes(look.last_values, schemas),
        keyless_values=_changes(look.keyless_values, schemas),
    )


def _check_source(topic: str, own: int, schema_by_id: SchemaSource) -> None:
    """Raise SparkReadError if a source has another schema under the id of a table's columns.

    It is another system's registry, or one that gave its ids anew: the records are cdcd's, and every table would be
    parked for them.
    """
    if schema_of_changes(topic, own, schema_by_id) is None:
        raise SparkReadError(
            "the source of the schemas has another schema under the id of the table's columns",
            hint=_OTHER_SOURCE_HINT,
            topic=topic,
            schema_id=own,
        )


def _changes(values: Iterable[bytes], schemas: Mapping[int, Schema]) -> tuple[bytes, ...]:
    return tuple(one for one in values if _problem(None, one, schemas) is None)


def first_unreadable(group: pa.Table, schemas: Mapping[int, Schema], topic: str) -> MirrorInconsistent | None:
    """Return the error of the first record that is no change of these schemas, None if all are."""
    names = ("partition", "offset", "key", "value")
    for partition, offset, key, value in zip(*(group[name].to_pylist() for name in names), strict=True):
        problem = _problem(key, value, schemas)
        if problem is not None:
            return MirrorInconsistent(
                f"a record is no change that cdcd wrote: {problem}",
                hint=_HINT,
                topic=topic,
                partition=partition,
                offset=offset,
            )
    return None


def not_planned(topic: str, error: Exception) -> MirrorInconsistent:
    """Return the error of a table whose schemas have no columns, although each record is a change."""
    problem = error.message if isinstance(error, CdcdError) else type(error).__name__
    return MirrorInconsistent(
        f"the schemas of the records cannot be those of the table: {problem}", hint=_HINT, topic=topic
    )


def _problem(key: bytes | None, value: bytes | None, schemas: Mapping[int, Schema]) -> str | None:
    """Return what is wrong with a record, None if it is a change. The text of an error may have its values."""
    if value is None:
        return None
    number = id_or_none(value)
    if number is None:
        return f"its {len(value)} bytes do not begin with 0x00 and a schema id"
    if number not in schemas:
        return f"its schema {number} is not one of changes"
    try:
        list(read_events([(key, value)], schemas))
    except DECODING_ERRORS as error:
        if not is_of_a_record(error):
            raise
        return f"it cannot be decoded under its schema {number} ({type(error).__name__})"
    return None
