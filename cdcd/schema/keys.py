"""The columns of the key of a relation's records, and their order.

In: the relation at the time of the change, the catalog's current key, the columns of the topic's registered key.
Out: column names, () for records without a key.
Invariant: the replica identity decides (F45): DEFAULT and INDEX use the flagged columns, FULL the catalog's primary
key, NOTHING none. A key that is only partly published is none. Without a key the configured one is used. The
catalog's key may be later than the change (F44), so the topic's own key schema takes precedence: a row never silently
gets a second key in one topic. In the value's schema of a topic whose first records had no key, the columns of the
key may be null for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cdcd.errors import KeyChanged, SchemaError
from cdcd.model import Relation, ReplicaIdentity
from cdcd.schema.policy import DEFAULT_POLICY, Policy

KEY_PROPERTY = "pg.key"
"""The property of a flat value's column that is never null, because it is in the key since the first row."""

_SHARED_HINT = (
    "the index of the topic's key is DEFERRABLE or not valid, itself or in a partition. Two rows may then share a "
    "key temporarily, and the last record of a key may be the tombstone of a row that exists. `cdcd check` names "
    "the index: recreate its constraint NOT DEFERRABLE, then `cdcd resume`; or, if no statement ever gives a row "
    "the key of another row, set format.key_columns of this table to these columns, and restart cdcd"
)


def key_of(
    relation: Relation,
    catalog_key: tuple[str, ...] | None,
    registered: tuple[str, ...] | None,
    policy: Policy = DEFAULT_POLICY,
    nullable: Collection[str] = (),
    shared: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the key's columns. Raises KeyChanged, and SchemaError where a configured key column is not published.

    `catalog_key` is in key order, () without a key, None when the relation was dropped; `registered` is None for a
    topic without a key schema; `nullable` are the columns that may be null in the topic's value; `shared` are the
    columns of an index of which two rows may share a key for a moment, so that the index gives no key (F82).
    """
    wanted = _wanted(relation, catalog_key, registered)
    if set(wanted) <= set(shared):
        wanted = ()
    if not wanted:
        wanted = _configured(relation, policy)
    if registered is None:
        return wanted
    if set(registered) != set(wanted):
        if not wanted and catalog_key and set(catalog_key) == set(registered) <= set(nullable):
            return ()  # a row from before the table's first key, read again (F44)
        raise KeyChanged(
            f"the topic's key is ({', '.join(registered)}), the table's key is now ({', '.join(wanted)})",
            hint=_SHARED_HINT if set(registered) == set(shared) else None,
            table=f"{relation.schema}.{relation.name}",
        )
    return registered


def is_required(
    relation: Relation,
    catalog_key: tuple[str, ...] | None,
    key_schema: Mapping[str, Any] | None,
    shared: Collection[str] = (),
    nullable: Collection[str] = (),
) -> bool:
    """Whether no column of the key can be null, so that the Key record has no unions; `shared` as in `key_of`.

    A topic's existing form remains, because another form would give the same key other bytes. `nullable`: the key's
    columns that may be null in the topic's values: with FULL, rows from before the first key are encoded by it (F44).
    """
    if key_schema is not None and key_schema.get("fields"):
        return not _may_hold_nulls(key_schema)
    if relation.identity is ReplicaIdentity.FULL or shared:
        return bool(catalog_key) and not (nullable and relation.identity is ReplicaIdentity.FULL)
    return bool(catalog_key) or any(column.is_key for column in relation.columns)


def registered_columns(key_schema: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the names of the columns in a topic's key schema, as `relation_schemas` makes it; None without one."""
    if key_schema is None:
        return None
    return tuple(str(field.get("pg.name", field["name"])) for field in key_schema.get("fields", ()))


def is_whole_row(
    key_schema: Mapping[str, Any] | None,
    value_schema: Mapping[str, Any] | None,
    relation: Relation,
    policy: Policy,
) -> bool:
    """Whether a topic's key is the configured whole row, which no catalog confirms.

    A first primary key may hold nulls too, but has not all columns of the topic's values or of the relation.
    """
    if key_schema is None or policy.keyless != "row" or policy.key_columns:
        return False
    columns = set(registered_columns(key_schema) or ())
    values = {field["pg.name"] for field in _columns(value_schema)}
    is_whole = columns in (values, {column.name for column in relation.columns})
    return is_whole and _may_hold_nulls(key_schema)


def nullable_columns(value_schema: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the names of the columns that may be null in a value schema of `relation_schemas`."""
    return frozenset(field["pg.name"] for field in _columns(value_schema) if not _is_required(field))


def required_columns(value_schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the columns that are never null in a value schema of `relation_schemas`."""
    return frozenset(field["pg.name"] for field in _columns(value_schema) if _is_required(field))


def _is_required(field: Mapping[str, Any]) -> bool:
    return not isinstance(field["type"], list) or KEY_PROPERTY in field


def _columns(value_schema: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the fields of a value that are columns; none where another program made the schema."""
    fields = (value_schema or {}).get("fields", ())
    for field in fields:
        if field["name"] == "before" and "pg.name" not in field:
            # An envelope has ["null", Value] here; a flat value is the row itself.
            row = field["type"][-1] if isinstance(field["type"], list) else None
            fields = row.get("fields", ()) if isinstance(row, Mapping) else ()
            break
    return [field for field in fields if "pg.name" in field]


def _may_hold_nulls(key_schema: Mapping[str, Any]) -> bool:
    return any(isinstance(field["type"], list) for field in key_schema.get("fields", ()))


def _wanted(
    relation: Relation, catalog_key: tuple[str, ...] | None, registered: tuple[str, ...] | None
) -> tuple[str, ...]:
    if relation.identity is ReplicaIdentity.NOTHING:
        return ()
    if relation.identity is ReplicaIdentity.FULL:
        # FULL flags every column. A key with unpublished columns is none.
        key = registered if catalog_key is None else catalog_key
        return key if key and {column.name for column in relation.columns}.issuperset(key) else ()
    flagged = tuple(column.name for column in relation.columns if column.is_key)
    if not catalog_key or set(catalog_key) == set(flagged):
        return catalog_key or flagged
    return () if _is_partly_published(relation, catalog_key, flagged, registered) else flagged


def _configured(relation: Relation, policy: Policy) -> tuple[str, ...]:
    """Return the configured key of a relation without a key in the database."""
    sent = tuple(column.name for column in relation.columns)
    missing = [name for name in policy.key_columns if name not in sent]
    if missing:
        raise SchemaError(
            f"the configured key has columns that the table does not publish: {', '.join(missing)}",
            hint="correct format.key_columns, or its override for this table, and restart cdcd",
            table=f"{relation.schema}.{relation.name}",
        )
    is_whole = policy.keyless == "row" and relation.identity is ReplicaIdentity.FULL
    return policy.key_columns or (sent if is_whole else ())


def _is_partly_published(
    relation: Relation,
    catalog_key: tuple[str, ...],
    flagged: tuple[str, ...],
    registered: tuple[str, ...] | None,
) -> bool:
    """Whether the flagged columns are part of a key whose rest is not sent, so that rows would share a key.

    Where the topic has them as its key, they were the whole key then: the catalog's key has more columns since (F44).
    """
    if registered is not None and set(registered) == set(flagged):
        return False
    sent = {column.name for column in relation.columns}
    return set(flagged) < set(catalog_key) and not sent.issuperset(catalog_key)
