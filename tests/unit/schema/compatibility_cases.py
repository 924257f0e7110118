"""Pairs of schemas, writer and reader, with the differences that prevent the reader from reading.

`tests/integration/test_schema_compatibility.py` checks the same pairs with a real registry and with fastavro.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def record(*fields: dict[str, Any], name: str = "shop.public.t.Value") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def optional(name: str, kind: Any) -> dict[str, Any]:
    return field(name, ["null", kind], default=None)


def envelope(value: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope as cdcd writes it: `before` defines the row, `after` refers to it by name."""
    return record(
        optional("before", value),
        optional("after", value["name"]),
        field("op", "string"),
        name="shop.public.t.Envelope",
    )


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "mood", "symbols": list(symbols), **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@dataclass(frozen=True)
class Case:
    name: str
    writer: Any
    reader: Any
    differs: tuple[str, ...] = ()
    is_stricter: bool = False
    """True if registries and fastavro accept the pair, but cdcd does not."""


ID = field("id", "int")
TREE = record(field("id", "int"), optional("left", "shop.public.t.Value"))

CASES = (
    Case("the same", record(ID), record(ID)),
    Case("column added", record(ID), record(ID, optional("v", "string"))),
    Case("column dropped", record(ID, optional("v", "string")), record(ID)),
    Case("column renamed", record(ID, optional("v", "string")), record(ID, optional("w", "string"))),
    Case("key column added", record(ID), record(ID, field("k", "int")), ("k: is new and has no default",)),
    Case("columns in another order", record(ID, optional("v", "int")), record(optional("v", "int"), ID)),
    Case("alias", record(field("a", "int")), record(field("b", "int", aliases=["a"]))),
    *(
        Case(f"{old} to {new}", record(optional("v", old)), record(optional("v", new)))
        for old, new in (
            ("int", "long"),
            ("int", "float"),
            ("int", "double"),
            ("long", "float"),
            ("long", "double"),
            ("float", "double"),
        )
    ),
    *(
        Case(
            f"{old} to {new}",
            record(optional("v", old)),
            record(optional("v", new)),
            (f"v: {old} cannot be read as any of null, {new}",),
            is_stricter=True,
        )
        for old, new in (("string", "bytes"), ("bytes", "string"))
    ),
    Case(
        "bytes to string in a key",
        record(field("k", "bytes")),
        record(field("k", "string")),
        ("k: bytes cannot be read as string",),
        is_stricter=True,
    ),
    *(
        Case(
            f"{old} to {new}",
            record(optional("v", old)),
            record(optional("v", new)),
            (f"v: {old} cannot be read as any of null, {new}",),
        )
        for old, new in (
            ("long", "int"),
            ("double", "float"),
            ("string", "int"),
            ("int", "string"),
            ("boolean", "int"),
            ("bytes", "long"),
        )
    ),
    Case("required to optional", record(field("v", "int")), record(optional("v", "int"))),
    Case(
        "optional to required",
        record(optional("v", "int")),
        record(field("v", "int")),
        ("v: null cannot be read as int",),
    ),
    Case("enum label added", record(field("m", enum("a"))), record(field("m", enum("a", "b")))),
    Case(
        "enum label dropped",
        record(field("m", enum("a", "b"))),
        record(field("m", enum("a"))),
        ("m: enum shop.public.t.mood lacks b",),
    ),
    Case(
        "enum label dropped with a default",
        record(field("m", enum("a", "b"))),
        record(field("m", enum("a", default="a"))),
    ),
    Case(
        "array of wider",
        record(optional("v", {"type": "array", "items": ["null", "int"]})),
        record(optional("v", {"type": "array", "items": ["null", "long"]})),
    ),
    Case(
        "array of narrower",
        record(optional("v", {"type": "array", "items": ["null", "long"]})),
        record(optional("v", {"type": "array", "items": ["null", "int"]})),
        ("v: long cannot be read as any of null, int",),
    ),
    Case(
        "map of another",
        record(field("v", {"type": "map", "values": "string"})),
        record(field("v", {"type": "map", "values": "int"})),
        ("v: string cannot be read as int",),
    ),
    Case(
        "array to map",
        record(field("v", {"type": "array", "items": "string"})),
        record(field("v", {"type": "map", "values": "string"})),
        ("v: array cannot be read as map",),
    ),
    Case(
        "fixed of another size",
        record(field("v", {"type": "fixed", "name": "f", "size": 4})),
        record(field("v", {"type": "fixed", "name": "f", "size": 8})),
        ("v: fixed shop.public.t.f had 4 bytes and has 8",),
    ),
    Case(
        "record of another name",
        record(field("v", record(ID, name="a"))),
        record(field("v", record(ID, name="b"))),
        ("v: record shop.public.t.a is now shop.public.t.b",),
    ),
    Case("a type that holds itself", TREE, TREE),
    Case("precision", record(optional("v", decimal(10, 2))), record(optional("v", decimal(12, 2)))),
    Case(
        "scale",
        record(optional("v", decimal(10, 2))),
        record(optional("v", decimal(10, 4))),
        ("v: a decimal of scale 2 cannot be read with scale 4",),
        is_stricter=True,
    ),
    Case(
        "fewer digits",
        record(optional("v", decimal(12, 2))),
        record(optional("v", decimal(10, 2))),
        ("v: a decimal of 12 digits cannot be read with 10",),
        is_stricter=True,
    ),
    Case(
        "decimal to bytes",
        record(optional("v", decimal(10, 2))),
        record(optional("v", "bytes")),
        ("v: bytes (decimal) would be read as bytes",),
        is_stricter=True,
    ),
    Case(
        "date to a long",
        record(optional("v", {"type": "int", "logicalType": "date"})),
        record(optional("v", "long")),
        ("v: int (date) cannot be read as any of null, long",),
        is_stricter=True,
    ),
    Case(
        "uuid to text",
        record(optional("v", {"type": "string", "logicalType": "uuid"})),
        record(optional("v", "string")),
    ),
    Case(
        "time to time",
        record(optional("v", {"type": "long", "logicalType": "timestamp-micros"})),
        record(optional("v", {"type": "long", "logicalType": "local-timestamp-micros"})),
        ("v: long (timestamp-micros) would be read as long (local-timestamp-micros)",),
        is_stricter=True,
    ),
    Case(
        "in the envelope, once by definition and once by name",
        envelope(record(ID, optional("v", "string"))),
        envelope(record(ID, optional("v", "int"))),
        (
            "before.v: string cannot be read as any of null, int",
            "after.v: string cannot be read as any of null, int",
        ),
    ),
    Case("in the envelope, added", envelope(record(ID)), envelope(record(ID, optional("v", "int")))),
)
