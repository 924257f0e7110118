"""The files that are made from the models: the commented sample, the JSON Schema, what `config show` prints.

Comes in: the models, or a loaded configuration.  Goes out: text.
Invariant: every option appears with its default and its description; the sample is itself valid; a secret
appears as `***`.
Must not: write files.
"""

from __future__ import annotations

import json
import typing
from typing import Any

import yaml
from pydantic import BaseModel

from cdcd.config.document import KeyPath
from cdcd.config.load import Loaded
from cdcd.config.model import Config
from cdcd.config.shape import nested_model

_INDENT = "  "
_HEADER = """\
# Every option of cdcd with its default; what is commented out has none and shows an example.
# Required, and shown with examples: name, source.dsn, sink.bootstrap_servers, registry.url.
# Each option is an environment variable too, which wins: source.slot.name is CDCD_SOURCE__SLOT__NAME.
# One file is one replication slot. Made by `cdcd config sample`.
"""


def sample_yaml() -> str:
    """Return the commented sample."""
    values = Config(**_examples(Config)).model_dump(mode="json")
    return _HEADER + "\n" + "\n".join(_sample_lines(Config, values, "")) + "\n"


def json_schema() -> str:
    """Return the JSON Schema of a configuration file."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"


def effective_yaml(loaded: Loaded) -> str:
    """Return the configuration in effect, each value with where it came from, secrets hidden."""
    return "\n".join(_effective_lines(loaded, loaded.config.model_dump(mode="json"), ())) + "\n"


def _examples(model: type[BaseModel]) -> dict[str, Any]:
    """Return the least tree that is valid: the example of every required option."""
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        nested = nested_model(field)
        if field.is_required():
            tree[name] = _examples(nested) if nested is not None else (field.examples or [None])[0]
    return tree


def _sample_lines(model: type[BaseModel], values: dict[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for name, field in model.model_fields.items():
        nested = nested_model(field)
        if not indent and lines:
            lines.append("")
        lines.append(f"{indent}# {field.description}{_choice_list(field.annotation)}")
        if nested is not None:
            lines.append(f"{indent}{name}:")
            lines += _sample_lines(nested, values[name], indent + _INDENT)
        elif values[name] in (None, {}, []) and field.examples:
            lines.append(f"{indent}# {name}: {_written(field.examples[0])}")
        else:
            lines.append(f"{indent}{name}: {_written(values[name])}")
    return lines


def _choice_list(annotation: Any) -> str:
    if typing.get_origin(annotation) is not typing.Literal:
        return ""
    return f" [{' | '.join(map(str, typing.get_args(annotation)))}]"


def _effective_lines(loaded: Loaded, values: dict[str, Any], path: KeyPath) -> list[str]:
    lines: list[str] = []
    indent = _INDENT * len(path)
    for name, value in values.items():
        inner = (*path, name)
        if isinstance(value, dict) and value:
            lines.append(f"{indent}{_written(name)}:")
            lines += _effective_lines(loaded, value, inner)
        elif value is not None:
            origin = loaded.origins.exactly(inner) or "default"
            lines.append(f"{indent}{_written(name)}: {_written(value)}  # {origin}")
    return lines


def _written(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000, sort_keys=False)
    return text.removesuffix("...\n").strip()
