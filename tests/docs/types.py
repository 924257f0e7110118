"""Generate the page of all types from the codecs that the code really gives.

In: the families of `cdcd.schema.resolve`; the choices of the configuration; types.template, the page's text.
Out: Markdown.
Must not: add text about a type that its codec does not have.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import get_args

from cdcd.config.format import EFFECTS, Columns
from cdcd.model import Attribute, PgType
from cdcd.schema import resolve
from cdcd.schema.binary_format.table import TEXT_INSTEAD
from cdcd.schema.codec import AvroType, Builder, Codec
from cdcd.schema.policy import DEFAULT_POLICY
from cdcd.schema.types import domain
from cdcd.schema.types.array import array_codec
from cdcd.schema.types.composite import composite_codec
from tests.docs.filled import cell, filled

TEMPLATE = Path(__file__).with_suffix(".template")
PRODUCTS = {"vector": "pgvector", "postgis": "PostGIS"}
"""Extensions that are known under another name."""
NOT_OF_COLUMNS = {"unknown"}
_TYPES = "| PostgreSQL | Avro | `special` values |\n|---|---|---|\n"
_CHOICES = "| option | choice | effect |\n|---|---|---|\n"
_ANY = Codec("T", bytes)
_WIDTH = 118

Result = tuple[str, str]
"""The Avro type and the special values, in words."""


def types_page() -> str:
    """Return the page of all types."""
    rows = [*_built_in(), *_made_of_others(), *_of_extensions(), ("any other type", _of_kind("b"))]
    table = "".join(f"| {types} | {avro} | {special} |\n" for types, (avro, special) in rows)
    return filled(TEMPLATE, types=_TYPES + table, choices=_choices(), text_instead=_text_instead())


def _built_in() -> Iterator[tuple[str, Result]]:
    """Yield rows of the types of each family that have the same result."""
    rows: dict[tuple[str, Result], list[str]] = {}
    for oid, builder in resolve.FAMILIES.items():
        family = _family_of(oid)
        name = _names(family)[oid]
        if name not in NOT_OF_COLUMNS:
            modifiers = getattr(family, "MODIFIERS", {}).get(oid, {"": (-1,)})
            for which, some in modifiers.items():
                result = _result([builder(modifier, DEFAULT_POLICY) for modifier in some])
                rows.setdefault((family.__name__, result), []).append(f"`{name}` {cell(which)}".strip())
    for (_, result), types in rows.items():
        yield ", ".join(types), result


def _made_of_others() -> Iterator[tuple[str, Result]]:
    yield "enum", _of_kind("e")
    if _of_kind("r") != _of_kind("m"):
        raise ValueError("a range and a multirange differ")
    yield "range, multirange", _of_kind("r")
    yield "array of T", _result([array_codec(_ANY, ",")])
    yield "domain", (domain.AVRO, domain.SPECIAL)
    made = PgType(1, "public", "made", "c", attributes=(Attribute("a", 2, -1),))
    yield "composite type, row of a table", _result([composite_codec(made, [_ANY], ["T"])])


def _of_extensions() -> Iterator[tuple[str, Result]]:
    rows: dict[tuple[str, Result], dict[str, list[str]]] = {}
    for (extension, name), builder in resolve.EXTENSIONS.items():
        family = _family_of((extension, name))
        result = _result([builder(-1, DEFAULT_POLICY)])
        rows.setdefault((family.__name__, result), {}).setdefault(extension, []).append(f"`{name}`")
    for (_, result), by_extension in rows.items():
        yield (
            "; ".join(f"{PRODUCTS.get(one, one)}: {', '.join(types)}" for one, types in by_extension.items()),
            result,
        )


def _of_kind(kind: str) -> Result:
    """Return the result of a type of this kind that no family knows."""
    return _result([resolve.resolve(1, -1, {1: PgType(1, "public", "made", kind)}).codec])


def _family_of(key: int | tuple[str, str]) -> ModuleType:
    """Return the module that has the builder of a type."""
    (family,) = [
        one for one in vars(resolve).values() if isinstance(one, ModuleType) and key in _builders(one)
    ]
    return family


def _builders(module: ModuleType) -> Mapping[int | tuple[str, str], Builder]:
    return {**getattr(module, "BUILDERS", {}), **getattr(module, "EXTENSION_BUILDERS", {})}


def _names(family: ModuleType) -> Mapping[int, str]:
    """Return the names of a family's types: the family's table, or its constants of oids."""
    constants = {
        oid: name.lower() for name, oid in vars(family).items() if name.isupper() and isinstance(oid, int)
    }
    return {**constants, **getattr(family, "OIDS", {})}


def _result(codecs: Sequence[Codec]) -> Result:
    """Return what codecs of one type with different modifiers have in common."""
    letters = {}
    for number, letter in (("precision", "p"), ("scale", "s")):
        if len({one.avro.get(number) for one in codecs if isinstance(one.avro, dict)}) > 1:
            letters[number] = letter
    found = {
        (
            _words({**one.avro, **letters} if isinstance(one.avro, dict) else one.avro)
            + (f": {cell(one.content)}" if one.content else ""),
            cell(one.special),
        )
        for one in codecs
    }
    (result,) = found
    return result


def _words(avro: AvroType) -> str:
    if isinstance(avro, str):
        return avro
    if avro["type"] == "record":
        ((inside,),) = [[field["type"] for field in avro["fields"]]]
        return f"record with a field {_inside(inside)} for each attribute"
    if avro["type"] in ("array", "map"):
        return f"{avro['type']} of {_inside(avro.get('items') or avro['values'])}"
    if "connect.name" in avro:
        return f"{avro['type']} with connect.name `{avro['connect.name']}`"
    numbers = f"({avro['precision']}, {avro['scale']})" if avro["logicalType"] == "decimal" else ""
    return f"{avro['type']}, {avro['logicalType']}{numbers}"


def _inside(avro: AvroType | list[AvroType]) -> str:
    if isinstance(avro, list):
        _, inner = avro
        return f'["null", {_words(inner)}]'
    return _words(avro)


def _choices() -> str:
    rows = [_CHOICES]
    if list(EFFECTS) != list(Columns.model_fields):
        raise ValueError("EFFECTS has other options than Columns")
    for option, field in Columns.model_fields.items():
        effects, choices = EFFECTS[option], get_args(field.annotation)
        if choices and set(choices) != effects.keys():
            raise ValueError(f"EFFECTS has other choices of {option}")
        named = f"`{option}`"
        for choice, effect in effects.items():
            shown = f"`{choice}`" if choices else choice
            default = " (default)" if choice == field.default else ""
            rows.append(f"| {named} | {shown}{default} | {effect} |\n")
            named = ""
    return "".join(rows)


def _text_instead() -> str:
    items = [f"- {_in_code(types)}: {why}" for types, why in TEXT_INSTEAD.items()]
    return "".join(
        textwrap.fill(item, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        + "\n"
        for item in items
    )


def _in_code(types: str) -> str:
    names = types.split(", ")
    if all(name.isidentifier() for name in names):
        return ", ".join(f"`{name}`" for name in names)
    first, _, rest = types.partition(" ")
    return f"`{first}` {rest}" if first.startswith('"') else types
