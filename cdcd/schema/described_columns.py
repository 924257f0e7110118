"""The schemas of a table whose columns are given, for records that no server has sent.

In: names, type oids and modifiers of columns, the columns of the key.  Out: `RelationSchemas`, as those of a server's
Relation message with the same columns.
Must not: know where the records go.
"""

from __future__ import annotations

from collections.abc import Iterable

from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.relation_schema import RelationSchemas, relation_schemas

__all__ = ["schemas_of_columns"]


def schemas_of_columns(
    table: str, columns: Iterable[tuple[str, int, int]], key: tuple[str, ...], prefix: str
) -> RelationSchemas:
    """Return the schemas of a table `schema.name`. `columns`: name, oid of the type, modifier or -1.

    Raises SchemaError on names that collide.
    """
    schema, _, name = table.partition(".")
    described = tuple(Column(column, oid, typmod, column in key) for column, oid, typmod in columns)
    return relation_schemas(Relation(1, schema, name, ReplicaIdentity.DEFAULT, described), {}, key, prefix)
