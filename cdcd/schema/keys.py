"""Which columns are the key of a relation's records, and in which order.

In: the relation as the change saw it, the catalog's key of now, the columns of the topic's registered key.
Out: column names, () for records without a key.
Invariant: the identity decides (F45): DEFAULT and INDEX the flagged columns, FULL the catalog's primary key,
NOTHING none; a key that is published in part is none. The catalog answers for now, which may be later than the
change (F44), so what the topic's own key schema says goes before it: one row of a topic never gets a second form
of key unawares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcd.errors import KeyChanged
from cdcd.model import Relation, ReplicaIdentity


def key_of(
    relation: Relation, catalog_key: tuple[str, ...] | None, registered: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the key's columns. `catalog_key` is in key order, () without a key, None when the relation is gone;
    `registered` is None for a topic without a key schema. Raises KeyChanged.
    """
    wanted = _wanted(relation, catalog_key, registered)
    if registered is None:
        return wanted
    if set(registered) != set(wanted):
        raise KeyChanged(
            f"the topic's key is ({', '.join(registered)}), the table's is now ({', '.join(wanted)})",
            table=f"{relation.schema}.{relation.name}",
        )
    return registered


def registered_columns(key_schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns in a key schema that `relation_schemas` has made."""
    return tuple(str(field.get("pg.name", field["name"])) for field in key_schema.get("fields", ()))


def _wanted(
    relation: Relation, catalog_key: tuple[str, ...] | None, registered: tuple[str, ...] | None
) -> tuple[str, ...]:
    if relation.identity is ReplicaIdentity.NOTHING:
        return ()
    if relation.identity is ReplicaIdentity.FULL:
        # FULL flags every column. A key that is partly unpublished is none.
        key = registered if catalog_key is None else catalog_key
        return key if key and {column.name for column in relation.columns}.issuperset(key) else ()
    flagged = tuple(column.name for column in relation.columns if column.is_key)
    if not catalog_key or set(catalog_key) == set(flagged):
        return catalog_key or flagged
    return () if _is_partly_published(relation, catalog_key, flagged, registered) else flagged


def _is_partly_published(
    relation: Relation,
    catalog_key: tuple[str, ...],
    flagged: tuple[str, ...],
    registered: tuple[str, ...] | None,
) -> bool:
    """Whether the flagged columns are a part of a key whose rest is not sent, so that rows would share a key.

    They are the key of that time when the topic has it already: the catalog's has grown since (F44).
    """
    if registered is not None and set(registered) == set(flagged):
        return False
    sent = {column.name for column in relation.columns}
    return set(flagged) < set(catalog_key) and not sent.issuperset(catalog_key)
