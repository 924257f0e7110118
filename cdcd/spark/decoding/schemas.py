"""Schemas by id and by subject, from a registry or from the schema topic; and the Avro that a reader needs of them.

In: a `SchemaAccess`, ids, topics.  Out: Avro schemas as JSON values, as registered; all versions of a topic's.
Invariant: an id means one schema for ever, so schemas and clients are cached for the life of the process, on the
driver and in each executor. The keys of the caches have references to secrets, never a secret.
Must not: register anything; only the daemon registers.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro.schema
from fastavro.schema import SchemaParseException

from cdcd.errors import ConfigError, SparkReadError
from cdcd.registry.subjects import subject_of
from cdcd.spark.clients.connection import Connection, GivenAccess, RegistryAccess, SchemaAccess
from cdcd.spark.decoding.registry_schemas import RegistrySchemas
from cdcd.spark.decoding.schema_source import GivenSchemas, SchemaSource, Version
from cdcd.spark.decoding.topic_schemas import TopicSchemas

Schema = Any
HEADER_BYTES = 5
MOST_SCHEMAS = 10_000
MOST_TYPES = 250_000
"""The types of a schema whose references are expanded: of a table with 1,600 columns some 10,000. Readers visit each
one, and 2 kB of records that have each other twice would be 800,000."""
_NOT_AVRO = (SchemaParseException, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_FOREIGN_HINT = (
    "another program has registered it: cdcd writes only Avro; find out which, and revoke its right"
)


class NotASchema(ValueError):
    """A text is no Avro schema, or one with too many types. The text of the error has nothing of it."""


def schema_id(framed: bytes) -> int:
    """Return the schema id of a framed key or value: 0x00, int32 big-endian id, Avro binary."""
    if len(framed) < HEADER_BYTES or framed[0] != 0:
        raise SparkReadError("a record is not framed as 0x00, schema id, Avro", bytes=len(framed))
    number: int = struct.unpack_from(">I", framed, 1)[0]
    return number


# --- from their source ---------------------------------------------------------------------------------------


def access_of(connection: Connection) -> SchemaAccess:
    """Return where the connection's schemas are. Raises ConfigError if it does not say."""
    if connection.schemas is None:
        raise ConfigError(
            "the connection has no source of schemas",
            hint="set the option schema.registry.url (none: cdcd has no registry), or config to cdcd's configuration",
        )
    return connection.schemas


@functools.lru_cache(maxsize=64)
def source_of(access: SchemaAccess) -> SchemaSource:
    """Return this process's source; its client connects at the first request."""
    if isinstance(access, RegistryAccess):
        return RegistrySchemas(access)
    return GivenSchemas(access) if isinstance(access, GivenAccess) else TopicSchemas(access)


@functools.lru_cache(maxsize=MOST_SCHEMAS)
def schema_by_id(access: SchemaAccess, number: int) -> Schema:
    """Return the schema with this id. Raises NotASchema, and what its source raises."""
    return load(source_of(access).by_id(number))


def newest_schema(access: SchemaAccess, subject: str) -> Schema | None:
    """Return the newest schema of a subject, None if there is no such subject."""
    newest = source_of(access).newest(subject)
    return None if newest is None else json.loads(newest.text)


def value_subject(topic: str) -> str:
    """Return the subject of a topic's values, by the daemon's default (`registry.subjects: topic_name`)."""
    return subject_of("topic_name", topic, "value", "")


def key_subject(topic: str) -> str:
    """Return the subject of a topic's keys."""
    return subject_of("topic_name", topic, "key", "")


@dataclass(frozen=True, slots=True)
class TopicVersions:
    """All versions of the schemas of a topic's values and keys, each the oldest first."""

    topic: str
    values: tuple[Version, ...]
    keys: tuple[Version, ...]


def topic_versions(access: SchemaAccess, topic: str) -> TopicVersions:
    """Return the versions with their ids; none of the keys of a table without a key."""
    source = source_of(access)
    values, keys = source.versions(value_subject(topic)), source.versions(key_subject(topic))
    return TopicVersions(topic, tuple(values), tuple(keys))


@dataclass(frozen=True, slots=True)
class SchemaSet:
    """Schemas by id, fetched on the driver and sent to executors, which fetch an id that is not in it themselves."""

    access: SchemaAccess
    texts: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, access: SchemaAccess, topics: Iterable[str]) -> SchemaSet:
        """Return the set of all schemas of these topics."""
        found = [topic_versions(access, topic) for topic in topics]
        return cls(access, {one.schema_id: one.text for each in found for one in (*each.values, *each.keys)})

    def __getitem__(self, number: int) -> Schema:
        """Return the schema with this id."""
        text = self.texts.get(number)
        return schema_by_id(self.access, number) if text is None else _loaded(text)


@functools.lru_cache(maxsize=MOST_SCHEMAS)
def _loaded(text: str) -> Schema:
    return load(text)


# --- their form ----------------------------------------------------------------------------------------------


def load(text: str) -> Schema:
    """Return the schema of a text. Raises NotASchema."""
    try:
        schema = json.loads(text)
        size = _size(expand(schema), {})
    except _NOT_AVRO as error:
        raise NotASchema(f"a schema is not Avro ({type(error).__name__})") from error
    if size > MOST_TYPES:
        raise NotASchema(f"a schema has {size} types, and may have {MOST_TYPES}")
    return schema


def expanded(text: str, **context: object) -> Schema:
    """Return the schema of a text, expanded. Raises SparkReadError."""
    try:
        return expand(load(text))
    except NotASchema as error:
        raise foreign_schema(error, **context) from error


def foreign_schema(error: NotASchema, **context: object) -> SparkReadError:
    """Return the error of a registered schema that cdcd cannot have registered."""
    return SparkReadError(str(error), hint=_FOREIGN_HINT, **context)


def _size(avro: Schema, known: dict[int, int]) -> int:
    """Return the number of types of an expanded schema. `known`: of parts, which are shared, by their identity."""
    if isinstance(avro, str):
        return 1
    if id(avro) not in known:
        if isinstance(avro, list):
            parts = avro
        elif "fields" in avro:
            parts = [one["type"] for one in avro["fields"]]
        else:
            parts = [avro[name] for name in ("type", "items", "values") if name in avro]
        known[id(avro)] = 1 + sum(_size(one, known) for one in parts)
    return known[id(avro)]


def expand(schema: Schema) -> Schema:
    """Return the schema with references to named types replaced by the types."""
    return fastavro.schema.expand_schema(schema)


def physical(schema: Schema) -> Schema:
    """Return the schema without logical types, so that values are the numbers and bytes of the wire.

    Python's dates and times end at the year 9999 and cost most of the decoding time.
    """
    if isinstance(schema, list):
        return [physical(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: physical(part) for name, part in schema.items() if name != "logicalType"}
    return schema


@functools.lru_cache(maxsize=1000)
def _parsed(text: str) -> Schema:
    return fastavro.schema.parse_schema(physical(json.loads(text)))


def parsed_physical(schema: Schema) -> Schema:
    """Return the parsed schema for fastavro, once per schema; references to named types must not be expanded."""
    return _parsed(json.dumps(schema, sort_keys=True))


def value_record(envelope: Schema) -> Schema:
    """Return the record of a row, from an expanded envelope's `after`."""
    is_record = isinstance(envelope, dict) and "fields" in envelope
    for one in envelope["fields"] if is_record else ():
        if one["name"] == "after":
            for branch in one["type"]:
                if isinstance(branch, dict) and branch.get("type") == "record":
                    return branch
    raise SparkReadError(
        "a value schema is not an envelope", schema=envelope.get("name") if is_record else None
    )
