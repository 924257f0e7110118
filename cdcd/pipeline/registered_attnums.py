"""A relation's schema with the attnums under which it was registered.

In: the registry, a subject, the schemas of a relation.  Out: the schemas as they are registered, or will be.
Invariant: a description that is read again when the catalog has other columns gets the schema that it had; so no
version is registered twice, with and without attnums, and the rows of a table do not alternate between the two. If
it may have others since (`KnownAttnums.allow`), its schema has none: a wrong one would show another column.
All functions block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from cdcd.schema.attnums import KnownAttnums, attnums_in, numbered_as
from cdcd.schema.codec import AvroSchema
from cdcd.schema.relation_schema import RelationSchemas

_MOST_VERSIONS = 100
"""How many of the newest versions a description that is read again may have: each one may cost a request."""


class Registered(Protocol):
    """The schemas of a registry. `registers`: a new one is registered; `registered`: the newest first."""

    @property
    def registers(self) -> bool: ...  # noqa: D102
    def knows(self, subject: str, schema: Any) -> bool: ...  # noqa: D102
    def registered(self, subject: str) -> Iterable[Any]: ...  # noqa: D102


def with_registered(
    registry: Registered, subject: str, schemas: RelationSchemas, known: KnownAttnums
) -> RelationSchemas:
    """Return the schemas; a value's schema without attnums as it was registered when they were known.

    If cdcd registers nothing, it uses what others have registered, also without attnums or the relation's oid.
    """
    if schemas.has_attnums and registry.registers:
        return schemas
    is_fixed = not registry.registers
    if is_fixed and registry.knows(subject, schemas.value):
        return schemas
    allow = any_attnums if is_fixed else known.allow
    found = numbered_before(registry, subject, schemas.value, is_lenient=is_fixed, allow=allow)
    return schemas if found is None else replace(schemas, value=found)


def any_attnums(_attnums: Sequence[int]) -> bool:
    """Allow all attnums."""
    return True


def numbered_before(
    registry: Registered,
    subject: str,
    schema: AvroSchema,
    *,
    is_lenient: bool = False,
    allow: Callable[[Sequence[int]], bool] = any_attnums,
) -> AvroSchema | None:
    """Return the newest registered schema of a subject that differs from this one only by attnums.

    `is_lenient`: it may lack some of them, and the relation's oid. `allow`: whether it may have these. If a later
    schema has other columns, rows from before it are read again: another version of theirs could not be registered,
    because it may be incompatible with the later one.
    """
    schemas = registry.registered(subject)
    is_newest = True
    for registered in schemas if is_lenient else islice(schemas, _MOST_VERSIONS):
        found = numbered_as(schema, registered, is_lenient=is_lenient)
        if found is None:
            is_newest = False
            continue
        attnums = attnums_in(found)
        if is_newest and attnums is not None and not allow(attnums):
            continue
        if registry.knows(subject, found):
            return found
    return None
