"""Domains -> the codec of their base type; the schema's field has `pg.domain`.

In: a domain's `PgType`, the column's modifier.  Out: the base type's oid and modifier.
Invariant: a domain does not change the bytes. The domain has the modifier: a column of a domain has none.
"""

from __future__ import annotations

from cdcd.model import PgType

KIND = "d"

AVRO, SPECIAL = "the Avro type of its base type", "as its base type"
"""A domain in docs/types.md."""


def base_of(pg_type: PgType, typmod: int) -> tuple[int, int]:
    """Return the base type's oid and the modifier that applies to it."""
    return pg_type.base_oid, typmod if typmod >= 0 else pg_type.base_typmod
