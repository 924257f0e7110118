"""Domains -> what their base type becomes; the schema's field carries `pg.domain`.

In: a domain's `PgType`, the column's modifier.  Out: the base type's oid and modifier.
Invariant: a domain adds nothing to the bytes. Its modifier is in the domain itself: a column of a domain has none.
"""

from __future__ import annotations

from cdcd.model import PgType

KIND = "d"


def base_of(pg_type: PgType, typmod: int) -> tuple[int, int]:
    """Return the base type's oid and the modifier that holds for it."""
    return pg_type.base_oid, typmod if typmod >= 0 else pg_type.base_typmod
