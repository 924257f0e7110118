"""Generate the page of all options from the models of the configuration.

In: the models.  Out: Markdown.
Must not: add text that the model of an option does not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import yaml

from cdcd.config.model import Config
from cdcd.config.sample import json_schema, sample_yaml
from cdcd.config.shape import Option, options

INTRODUCTION = """\
# Options

<!-- Made by `python -m tests.docs`. -->

Every option of a configuration file, with its default. [Configure](configure.md) explains the file.
`cdcd config sample` prints the same as a file, `cdcd config schema` as a JSON Schema. Each option is also an
environment variable, which overrides the file: `source.slot.name` is `CDCD_SOURCE__SLOT__NAME`.

A size is a number of bytes, or a number with a unit: `B`, `kB`, `MB`, `GB`, `TB` (powers of 1000), `KiB`, `MiB`,
`GiB`, `TiB` (powers of 1024). A name that ends in `_ms` is a time in milliseconds.
"""
_HEAD = "| option | value | default | what it does |\n|---|---|---|---|\n"
_OVERRIDES = """\
### Overrides

An element of `format.overrides` has `table`, perhaps `column`, and any of the options below: for the tables that
match, or for those of their columns that match. A later element takes precedence over an earlier one.

"""


def options_page() -> str:
    """Return the page of all options."""
    schema = json.loads(json_schema())
    sample = yaml.safe_load(sample_yaml())
    single = [option for option in options() if len(option.path) == 1]
    nested = [option for option in options() if len(option.path) > 1]
    parts = [INTRODUCTION, "## Top level\n\n" + _table(single, schema, sample)]
    for name, group in groupby(nested, key=lambda option: option.path[0]):
        what = Config.model_fields[name].description or ""
        parts.append(f"## {name}\n\n{what[0].upper()}{what[1:]}.\n\n{_table(group, schema, sample)}")
        if name == "format":
            parts.append(_OVERRIDES + _override_table(schema))
    return "\n".join(parts)


def _table(
    some: Iterator[Option] | list[Option], schema: Mapping[str, Any], sample: Mapping[str, Any]
) -> str:
    return _HEAD + "".join(
        _row(option, _part(schema, option.path), _at(sample, option.path)) for option in some
    )


def _row(option: Option, part: Mapping[str, Any], shown: Any) -> str:
    return (
        f"| `{'.'.join(option.path)}` | {_value(part)} | {_default(option, part, shown)} "
        f"| {_cell(option.field.description or '')} |\n"
    )


def _override_table(schema: Mapping[str, Any]) -> str:
    rows = schema["$defs"]["Override"]["properties"].items()
    return "| option | value | what it does |\n|---|---|---|\n" + "".join(
        f"| `{name}` | {_value(part)} | {_cell(part['description'])} |\n" for name, part in rows
    )


def _default(option: Option, part: Mapping[str, Any], shown: Any) -> str:
    if option.field.is_required():
        return "required"
    return "" if part.get("default") in (None, "", []) else f"`{_written(shown)}`"


def _value(part: Mapping[str, Any]) -> str:
    kinds = [kind for kind in part.get("anyOf", [part]) if kind.get("type") != "null"]
    if len(kinds) > 1:
        return "size"
    (kind,) = kinds
    if "enum" in kind:
        return ", ".join(f"`{word}`" for word in kind["enum"] if not isinstance(word, bool))
    if kind["type"] == "boolean":
        return "`true`, `false`"
    if kind["type"] == "integer":
        limits = [
            f"{word} {kind[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in kind
        ]
        return " ".join(["integer", *limits])
    if kind.get("format") == "path":
        return "path"
    return {"array": "list", "object": "mapping"}.get(kind["type"], kind["type"])


def _part(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the schema of an option."""
    part = schema
    for key in path:
        part = _resolved(schema, part)["properties"][key]
    return part


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part.get("$ref") or next(
        (one["$ref"] for one in part.get("anyOf", ()) if "$ref" in one), None
    )
    return schema["$defs"][reference.rpartition("/")[2]] if reference else part


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
