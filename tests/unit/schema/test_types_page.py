"""docs/types.md, which is generated from the code, gives the expected answers of `tests.support.type_answers`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cdcd.config.format import Columns
from cdcd.schema.binary_format.table import TEXT_INSTEAD
from tests.support.type_answers import BUILT_IN, MAY_BE_SPECIAL, OF_EXTENSIONS, OF_OTHERS

PAGE = (Path(__file__).parents[3] / "docs" / "types.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
TYPES = ROWS[1 : ROWS.index(["option", "choice", "effect"])]
SAID = {name: row[1] for row in reversed(TYPES) for name in re.findall(r"`(\w+)`", row[0])}
ANSWERS = {
    name: avro
    for types in (BUILT_IN, *OF_EXTENSIONS.values(), *OF_OTHERS.values())
    for name, avro in types.items()
}


def in_words(avro: Any) -> str:
    """Return the beginning of the page's text for this Avro type."""
    if isinstance(avro, str):
        return avro
    if avro.get("logicalType") == "decimal":
        return f"bytes, decimal({avro['precision']}, "
    if "connect.name" in avro:
        return f"{avro['type']} with connect.name `{avro['connect.name']}`"
    if "logicalType" in avro:
        return f"{avro['type']}, {avro['logicalType']}"
    inside = avro.get("items") or avro["values"]
    shown = f'["null", {inside[1]}]' if isinstance(inside, list) else inside
    return f"{avro['type']} of {shown}"


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_the_page_says_what_a_type_becomes(name: str) -> None:
    if name in ("numeric", "bit"):  # these have two rows: with and without a modifier
        found = {row[1].split(":")[0] for row in TYPES if f"`{name}`" in row[0]}
        assert found == {"numeric": {"bytes, decimal(p, s)", "string"}, "bit": {"boolean", "string"}}[name]
    else:
        assert SAID[name].startswith(in_words(ANSWERS[name]))


def test_the_page_has_no_other_type_and_names_those_with_special_values() -> None:
    assert SAID.keys() == ANSWERS.keys()
    special = {name for row in TYPES if row[2] for name in re.findall(r"`(\w+)`", row[0])}
    assert special == MAY_BE_SPECIAL


def test_the_page_names_every_choice() -> None:
    text = " ".join(" ".join(row) for row in ROWS)
    for option, field in Columns.model_fields.items():
        assert f"`{option}`" in text
        for choice in getattr(field.annotation, "__args__", ()):
            assert f"`{choice}`" in text, (option, choice)


def test_the_page_lists_what_comes_as_text_instead_and_why() -> None:
    section = PAGE.split("\n## In binary\n")[1].split("\n## ")[0]
    items = [
        " ".join(item.split()).replace("`", "") for item in re.findall(r"^- (.+(?:\n  .+)*)", section, re.M)
    ]
    assert items == [f"{types}: {why}" for types, why in TEXT_INSTEAD.items()]
