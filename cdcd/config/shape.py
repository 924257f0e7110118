"""The tree of options as the models declare it: which options exist, are mappings, are optional.

Comes in: the models.  Goes out: `Option`s, one for each leaf, and look-ups by path.
Invariant: all code about options (environment, problems, sample) uses this module, so that a new field of a model
needs no other change.
Must not: contain another list of options.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cdcd.config.document import KeyPath
from cdcd.config.model import Config


@dataclass(frozen=True, slots=True)
class Option:
    """One leaf of the tree.

    `is_mapping`: the value has free keys; `is_list`: the value is a list of names; `is_optional`: it may be null.
    """

    path: tuple[str, ...]
    field: FieldInfo
    is_mapping: bool
    is_list: bool
    is_optional: bool


def options() -> Iterator[Option]:
    """Yield every option, in the order of the models."""
    yield from _leaves(Config, ())


def _leaves(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Option]:
    for name, field in model.model_fields.items():
        nested = nested_model(field)
        if nested is not None:
            yield from _leaves(nested, (*path, name))
            continue
        annotation = field.annotation
        origin = typing.get_origin(annotation)
        is_optional = origin in (Union, types.UnionType) and type(None) in typing.get_args(annotation)
        yield Option((*path, name), field, origin is dict, origin is tuple, is_optional)


def nested_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a mapping of options, None for a leaf."""
    annotation: Any = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def model_at(path: KeyPath) -> type[BaseModel] | None:
    """Return the model whose fields are the keys at `path`, None if there are none."""
    model: type[BaseModel] = Config
    for key in path:
        field = model.model_fields.get(key) if isinstance(key, str) else None
        nested = nested_model(field) if field is not None else None
        if nested is None:
            return None
        model = nested
    return model


def field_at(path: KeyPath) -> FieldInfo | None:
    """Return the field at `path`, None if there is none."""
    model = model_at(path[:-1]) if path else None
    key = path[-1] if path else None
    return model.model_fields.get(key) if model is not None and isinstance(key, str) else None
