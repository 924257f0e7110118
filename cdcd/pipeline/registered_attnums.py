"""A relation's schema with the attnums under which it was registered.

In: the registry, a subject, the schemas of a relation.  Out: the schemas as they are registered, or will be.
Invariant: a description that is read again when the catalog has other columns gets the schema that it had; so no
version is registered twice, with and without attnums, and the rows of a table do not alternate between the two.
All functions block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from cdcd.schema.attnums import numbered_as
from cdcd.schema.codec import AvroSchema
from cdcd.schema.relation_schema import RelationSchemas


class Registered(Protocol):
    """The schemas of a registry. `registers`: a new one is registered; `registered`: the newest first."""

    @property
    def registers(self) -> bool: ...  # noqa: D102
    def knows(self, subject: str, schema: Any) -> bool: ...  # noqa: D102
    def registered(self, subject: str) -> Iterable[Any]: ...  # noqa: D102


def with_registered(registry: Registered, subject: str, schemas: RelationSchemas) -> RelationSchemas:
    """Return the schemas; a value's schema without attnums as it was registered when they were known.

    If cdcd registers nothing, it uses what others have registered, also without attnums or the relation's oid.
    """
    if schemas.has_attnums and registry.registers:
        return schemas
    is_fixed = not registry.registers
    if is_fixed and registry.knows(subject, schemas.value):
        return schemas
    found = numbered_before(registry, subject, schemas.value, is_lenient=is_fixed)
    return schemas if found is None else replace(schemas, value=found)


def numbered_before(
    registry: Registered, subject: str, schema: AvroSchema, *, is_lenient: bool = False
) -> AvroSchema | None:
    """Return the newest registered schema of a subject that differs from this one only by attnums.

    `is_lenient`: it may lack some of them, and the relation's oid.
    """
    for registered in registry.registered(subject):
        found = numbered_as(schema, registered, is_lenient=is_lenient)
        if found is not None and registry.knows(subject, found):
            return found
    return None
