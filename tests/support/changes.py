"""Read the changes in one daemon's topics with fastavro and the registry's schemas, without any code of cdcd.

In: a broker, a client of a registry (or of the daemon's schema endpoints), the daemon's name.  Out: ordered changes.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.support.topics import committed_records


@dataclass(frozen=True)
class Change:
    """One record: its bytes, its schema id, its key and its envelope."""

    raw: bytes
    schema_id: int
    key: Any
    envelope: dict[str, Any]

    def place(self) -> tuple[int, int, int]:
        """The sort key of the change."""
        source = self.envelope["source"]
        return source["timeline"], source["commit_lsn"], source["tx_seq"] or 0

    @property
    def row(self) -> dict[str, Any]:
        """The row after the change."""
        return dict(self.envelope["after"])


@dataclass(frozen=True)
class Topics:
    """Reads one daemon's topics independently of cdcd."""

    bootstrap: str
    client: SchemaRegistryClient
    prefix: str

    def changes(self, table: str, schema: str = "public") -> list[Change]:
        """Return the committed changes of a table's topic, in order."""
        records = committed_records(self.bootstrap, f"{self.prefix}.{schema}.{table}")
        found = [self._change(record.key(), raw) for record in records if (raw := record.value())]
        return sorted(found, key=Change.place)

    def reported(self, table: str, schema: str = "public") -> list[tuple[str, Any, Any]]:
        """Return op, row before and row after of each change."""
        return [
            (change.envelope["op"], change.envelope["before"], change.envelope["after"])
            for change in self.changes(table, schema)
        ]

    def keys(self, table: str) -> list[tuple[str, Any]]:
        """Return op and key of each change."""
        return [(change.envelope["op"], change.key) for change in self.changes(table)]

    def read(self, raw: bytes, reader_id: int | None = None) -> dict[str, Any]:
        """Read a record with its own schema, or resolve it to a later one."""
        number = int.from_bytes(raw[1:5], "big")
        reader = self._schema(number if reader_id is None else reader_id)
        return dict(fastavro.schemaless_reader(io.BytesIO(raw[5:]), self._schema(number), reader))

    def _change(self, key: bytes | None, raw: bytes) -> Change:
        number = int.from_bytes(raw[1:5], "big")
        return Change(raw, number, None if key is None else self.read(key), self.read(raw))

    def _schema(self, number: int) -> Any:
        return fastavro.parse_schema(json.loads(self.client.get_schema(number).schema_str or ""))
