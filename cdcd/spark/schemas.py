"""Schemas from a registry with the Confluent API, by id or by subject.

In: the registry's URL.  Out: Avro schemas as JSON values, as registered.
Invariant: an id means one schema for ever, so ids are cached for the life of the process. The server may be
unavailable briefly (without a registry it is cdcd, which may be restarted), so requests are retried for a while.
Must not: register anything; only the daemon registers.
"""

from __future__ import annotations

import functools
import json
import struct
import time
import urllib.error
import urllib.request
from typing import Any

import fastavro.schema

from cdcd.errors import RegistryRefused, RegistryUnavailable, SparkReadError

Schema = Any
HEADER_BYTES = 5
REQUEST_TIMEOUT_S = 30
PATIENCE_S = 120.0
PAUSE_S = 1.0


def schema_id(framed: bytes) -> int:
    """Return the schema id of a framed key or value: 0x00, int32 big-endian id, Avro binary."""
    if len(framed) < HEADER_BYTES or framed[0] != 0:
        raise SparkReadError("a record is not framed as 0x00, schema id, Avro", bytes=len(framed))
    number: int = struct.unpack_from(">I", framed, 1)[0]
    return number


@functools.lru_cache(maxsize=10_000)
def schema_by_id(registry_url: str, number: int) -> Schema:
    """Return the schema with this id."""
    return json.loads(_get(registry_url, f"/schemas/ids/{number}")["schema"])


def newest_schema(registry_url: str, subject: str) -> Schema | None:
    """Return the newest schema of a subject, None if the registry does not have the subject."""
    try:
        answer = _get(registry_url, f"/subjects/{subject}/versions/latest")
    except RegistryRefused as error:
        if error.context.get("status") == 404:
            return None
        raise
    return json.loads(answer["schema"])


def _get(registry_url: str, path: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _get_once(registry_url, path)
        except RegistryUnavailable:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(PAUSE_S)


def _get_once(registry_url: str, path: str) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - the operator's own URL
        registry_url.rstrip("/") + path, headers={"Accept": "application/vnd.schemaregistry.v1+json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            parsed: dict[str, Any] = json.load(answer)
            return parsed
    except urllib.error.HTTPError as error:
        refused = 400 <= error.code < 500
        raise (RegistryRefused if refused else RegistryUnavailable)(
            "the registry does not return a schema", path=path, status=error.code
        ) from error
    except OSError as error:
        raise RegistryUnavailable(
            "the registry cannot be reached", path=path, reason=type(error).__name__
        ) from error


def expanded(schema: Schema) -> Schema:
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
    for field in envelope["fields"]:
        if field["name"] == "after":
            for branch in field["type"]:
                if isinstance(branch, dict) and branch.get("type") == "record":
                    return branch
    raise SparkReadError("a value schema is not an envelope", schema=envelope.get("name"))
