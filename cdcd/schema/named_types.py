"""Avro's named types: unique names, and one definition of each in a schema.

In: the codecs' Avro types: a composite's record has the name `<schema>.<type>`, and is complete wherever it occurs.
Out: the same types with names below the table's, and with every repetition replaced by the name; any schema with full
names.
Invariant: the result is a function of the arguments, so the same relation gives the same bytes.
"""

from __future__ import annotations

from typing import Any

from cdcd.errors import SchemaError

COMPOSITE = "pg.type"
"""The property that marks the record of a composite type."""


def name_composites(avro: Any, namespace: str) -> Any:
    """Return the Avro type with the composite types in it named below `namespace`.

    Other named types keep their names: they are the same in every table.
    """

    def rename(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "name": f"{namespace}.{record['name']}"} if COMPOSITE in record else record

    return _mapped(avro, rename)


def defined_once(avro: Any) -> Any:
    """Return the schema with each record complete at its first occurrence, and its name at later ones.

    Raises SchemaError where two different records have one name.
    """
    seen: dict[str, dict[str, Any]] = {}

    def name_again(record: dict[str, Any]) -> dict[str, Any] | str:
        name = record["name"]
        if name not in seen:
            seen[name] = record
            return record
        if seen[name] != record:
            raise SchemaError("two types have one Avro name", name=name)
        return str(name)

    return _mapped(avro, name_again)


_NAMELESS = frozenset(
    {
        "null",
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "bytes",
        "string",
        "array",
        "map",
        "record",
        "error",
    }
    | {"enum", "fixed"}
)
"""What a `type` may be other than the name of a type."""


def with_full_names(schema: Any, space: str = "") -> Any:
    """Return a schema without namespaces, each name complete. `space`: the namespace around it.

    Registries return a name with dots as a name and a namespace, which is the same to Avro.
    """
    if isinstance(schema, str):
        return schema if not space or "." in schema or schema in _NAMELESS else f"{space}.{schema}"
    if isinstance(schema, list):
        return [with_full_names(branch, space) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in schema.items() if name != "namespace"}
    if schema.get("type") in ("record", "error", "enum", "fixed"):
        own = str(schema.get("namespace", space))
        name = str(schema["name"])
        found["name"] = name if "." in name or not own else f"{own}.{name}"
        space = found["name"].rpartition(".")[0]
    for part in ("type", "items", "values", "fields"):
        if part in found:
            found[part] = with_full_names(found[part], space)
    return found


def _mapped(avro: Any, change: Any) -> Any:
    """Return the type with `change` applied to each record in it, the outer ones first.

    An unchanged type is returned itself, so that types which all tables share are in memory once.
    """
    found = _rebuilt(avro, change)
    return avro if found == avro else found


def _rebuilt(avro: Any, change: Any) -> Any:
    if isinstance(avro, list):
        return [_mapped(branch, change) for branch in avro]
    if not isinstance(avro, dict):
        return avro
    if avro["type"] == "record":
        record = change(avro)
        if isinstance(record, str):
            return record
        fields = [_with(field, "type", change) for field in record["fields"]]
        return {**record, "fields": fields}
    return _with(avro, {"array": "items", "map": "values"}.get(str(avro["type"]), "type"), change)


def _with(avro: dict[str, Any], inside: str, change: Any) -> dict[str, Any]:
    found = _mapped(avro[inside], change)
    return avro if found is avro[inside] else {**avro, inside: found}
