"""The types of options' values: whole numbers, sizes, lists, secrets, librdkafka properties.

Comes in: a value from YAML or a variable (text, number, list, mapping).  Goes out: plain Python values.
Invariant: an error names the expected value and never repeats a value that could be a secret; each type here that
can be a secret shows `***` in repr, str, format and every dump.
Must not: read any file except the given secret file; know about any single option.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from cdcd.property_names import has_user, is_secret_property
from cdcd.redaction import add_secret, add_user_of
from cdcd.secret_files import read_secret_file

HIDDEN = "***"
_SIZE = re.compile(r"(\d+)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB|TB|TiB)?")
_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}


class Room(BaseModel):
    """The base of each section's model: unknown keys are errors, values are fixed, errors hide inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def refuse(message: str, advice: str = "") -> NoReturn:
    """Reject the value under validation: `message` is the problem, `advice` the correction."""
    # PydanticCustomError formats its template, so texts with braces are passed as its context
    raise PydanticCustomError("cdcd", "{message}", {"message": message, "advice": advice})


def derived(schema: dict[str, Any]) -> None:
    """Remove the default from an option's JSON Schema, because the default depends on another option."""
    schema.pop("default", None)


# --- numbers, lists -----------------------------------------------------------------------------------------


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):
        refuse("expected a whole number, found true or false")
    return value


Whole = Annotated[int, BeforeValidator(_not_boolean)]
"""A whole number, also as text of digits (environment variables); true and false are refused."""


def _parse_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            refuse("expected a size such as 16MiB, 64kB or a number of bytes")
        size = int(match[1]) * _UNITS[match[2] or "B"]
    if size < 1:
        refuse("must be at least 1 byte")
    return size


def format_size(size_bytes: int) -> str:
    """Return a size as in a file: `16MiB`, or the number of bytes if it is not a multiple of 1 KiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _UNITS[unit] and size_bytes % _UNITS[unit] == 0:
            return f"{size_bytes // _UNITS[unit]}{unit}"
    return str(size_bytes)


Size = Annotated[
    int,
    BeforeValidator(_parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+\s*([kK]B|[MGT]B|[KMGT]iB|B)?$"},
            ]
        }
    ),
]
"""A number of bytes, written with or without a unit."""


def _parse_size_or_none(value: object) -> object:
    return 0 if value == 0 and not isinstance(value, bool) else _parse_size(value)


SizeOrNone = Annotated[
    int,
    BeforeValidator(_parse_size_or_none),
    PlainSerializer(lambda size: format_size(size) if size else 0, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\d+\s*([kK]B|[MGT]B|[KMGT]iB|B)?$"},
            ]
        }
    ),
]
"""A number of bytes, 0 for none."""


def _one_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    if "," in value:
        refuse("a text with commas is ambiguous: one name or several", "write a list")
    return [value]


Names = Annotated[tuple[str, ...], BeforeValidator(_one_name)]
"""A list of names; in a variable, names between commas or a JSON list. A name may have any character."""


# --- secrets ------------------------------------------------------------------------------------------------


class Secret:
    """A text that shows itself only to the caller of `reveal()`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        add_secret(text)

    def reveal(self) -> str:
        """Return the text. Call it only to pass the secret to a client library."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialised")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _resolve: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(min_length=1),
            serialization=core_schema.plain_serializer_function_ser_schema(repr),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _resolve: Any) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "writeOnly": True}


def secret_reader(value: Secret | None, path: Path | None) -> Callable[[], str | None]:
    """Return a function that reads the secret at each use, so that the next connection uses a rotated file."""
    if path is not None:
        return functools.partial(read_secret_file, path)
    if value is not None:
        return value.reveal
    return _no_secret


def _no_secret() -> None:
    return None


def _usable_secret_file(path: Path, info: ValidationInfo) -> Path:
    if info.context is NO_FILES:
        return path
    if not path.exists():
        refuse(f"file {path} does not exist")
    if not path.is_file():
        refuse(f"{path} is not a file")
    if not os.access(path, os.R_OK):
        refuse(f"file {path} cannot be read by this user")
    if path.stat().st_size == 0:
        refuse(f"file {path} is empty")
    return path


NO_FILES = {"files": "not looked for"}
"""The context of a validation that does not look for files: they are on another host, or needed later."""

SecretFile = Annotated[Path, AfterValidator(_usable_secret_file)]
"""A file with one secret; the configuration is refused if the file cannot be read, except under NO_FILES."""


# --- properties of client libraries -------------------------------------------------------------------------


class Properties(dict[str, str]):
    """Properties of a client library under its own names; the repr hides secrets."""

    def __init__(self, properties: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(properties)
        for name, value in self.items():
            if is_secret_property(name):
                add_secret(value, renews=name)
            elif has_user(name, value):
                add_user_of(value)

    def __repr__(self) -> str:
        return repr(redact(self))

    __str__ = __repr__


def redact(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with every secret hidden."""
    return {
        name: HIDDEN if is_secret_property(name) or has_user(name, value) else value
        for name, value in properties.items()
    }


def _property_texts(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: _property_text(item) for name, item in value.items()}


def _property_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


PropertyName = TypeVar("PropertyName", bound=str)
PropertyMap = Annotated[
    dict[PropertyName, str],
    BeforeValidator(_property_texts),
    AfterValidator(Properties),
    PlainSerializer(redact),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
]
"""Properties of a client library: numbers and booleans become the text that the library expects."""
