"""The name of the subject under which a topic's schema is registered, by Confluent's three strategies.

In: a strategy, a topic, whether the schema is for keys or values, the full name of the Avro record.
Out: the subject.
Invariant: the subject of a topic and a record is always the same, so a schema has its earlier versions there.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Strategy", "SubjectPart", "full_record_name", "subject_of"]

Strategy = Literal["topic_name", "record_name", "topic_record_name"]
SubjectPart = Literal["key", "value"]


def subject_of(strategy: Strategy, topic: str, part: SubjectPart, record: str) -> str:
    """Return the subject: `<topic>-<part>`, `<record>` or `<topic>-<record>`."""
    if strategy == "record_name":
        return record
    if strategy == "topic_record_name":
        return f"{topic}-{record}"
    return f"{topic}-{part}"


def full_record_name(schema: Mapping[str, Any]) -> str:
    """Return the name of a record's schema with its namespace, as Avro's libraries do."""
    name, namespace = str(schema["name"]), schema.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"
