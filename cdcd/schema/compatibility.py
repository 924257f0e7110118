"""Compatibility of two Avro schemas: where the reader's schema cannot read the writer's data.

In: two schemas; or a new one, its predecessors and one of Confluent's levels.  Out: the `Difference`s, if any.
Invariant: the rules are those of Avro's schema resolution as registries apply them (fields by name, the reader's
defaults, promotions, unions, enum symbols), and two more, which registries omit. Logical types that give the same
bytes another value (a decimal of another scale, a time of another unit) do not match. Strings and bytes do not match,
because not all bytes are UTF-8, and the bytes of a bytea differ from its text.
Must not: know subjects or rows, or decide how cdcd treats a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcd.errors import SchemaError

__all__ = ["Difference", "differences", "level_differences"]

_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
}
"""Pairs of types: data written as the first can be read as the second."""


_MEANINGFUL = frozenset(
    {
        "decimal",
        "date",
        "time-millis",
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "duration",
    }
)
"""Logical types that change the meaning of the bytes; a uuid remains the same string."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The path of a difference, with dots from the root (`after.price`), and its description."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path or 'the schema'}: {self.what}"


def differences(reader: Any, writer: Any) -> list[Difference]:
    """Return why `reader` cannot read data of `writer`. Raises SchemaError for an argument that is not a schema."""
    found: list[Difference] = []
    pair = _Pair(_Names(reader), _Names(writer), found)
    pair.compare(reader, writer, "", "", "")
    return found


def level_differences(level: str, new: Any, earlier: Sequence[Any]) -> list[Difference]:
    """Return the differences that `level` (BACKWARD, FORWARD_TRANSITIVE, FULL, NONE, ...) forbids in `new`.

    `earlier` are the previous versions, the oldest first; without TRANSITIVE only the last one counts. Raises
    SchemaError where one of them is not an Avro schema: another program has registered it.
    """
    try:
        return _level_differences(level, new, earlier)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SchemaError(
            "an earlier version under the subject is not an Avro schema",
            hint="another program has registered this schema: choose another `name`, or another strategy "
            "for subjects (registry.subjects)",
        ) from error


def _level_differences(level: str, new: Any, earlier: Sequence[Any]) -> list[Difference]:
    against = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    found: list[Difference] = []
    for old in reversed(against):
        if level.startswith(("BACKWARD", "FULL")):
            found += differences(new, old)
        if level.startswith(("FORWARD", "FULL")):
            found += (
                Difference(one.path, f"{one.what} (read by an earlier schema)")
                for one in differences(old, new)
            )
    return list(dict.fromkeys(found))


class _Names:
    """The named types of one schema, by full name."""

    def __init__(self, schema: Any) -> None:
        self._types: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._collect(schema, "")

    def _collect(self, schema: Any, space: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        elif isinstance(schema, Mapping):
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                name = full_name(schema, space)
                space = name.rpartition(".")[0]
                self._types[name] = (schema, space)
            for inner in _inner(schema):
                self._collect(inner, space)

    def resolved(self, schema: Any, space: str) -> tuple[Any, str]:
        """Return a schema with a name replaced by its type, and the namespace inside it."""
        if isinstance(schema, Mapping) and isinstance(schema.get("type"), Mapping | list):
            return self.resolved(schema["type"], space)
        if isinstance(schema, Mapping) and schema.get("type") in ("record", "error", "enum", "fixed"):
            return schema, full_name(schema, space).rpartition(".")[0]
        if isinstance(schema, str):
            for name in (schema if "." in schema else f"{space}.{schema}".lstrip("."), schema):
                if name in self._types:
                    return self._types[name]
        return schema, space


def full_name(schema: Mapping[str, Any], space: str) -> str:
    """Return a named type's full name where `space` is the namespace around it."""
    name = str(schema["name"])
    own = str(schema.get("namespace", space))
    return name if "." in name or not own else f"{own}.{name}"


def _inner(schema: Mapping[str, Any]) -> Iterable[Any]:
    for part in ("items", "values"):
        if part in schema:
            yield schema[part]
    for field in schema.get("fields", ()):
        yield field["type"]
    if isinstance(schema.get("type"), Mapping | list):
        yield schema["type"]


def _kind(schema: Any) -> str:
    kind = (
        schema.get("type") if isinstance(schema, Mapping) else "union" if isinstance(schema, list) else schema
    )
    if not isinstance(kind, str):
        raise SchemaError("a type is not an Avro schema")
    return "record" if kind == "error" else kind


class _Pair:
    """One comparison. It does not compare a pair of named types again inside the pair itself."""

    def __init__(self, reader: _Names, writer: _Names, found: list[Difference]) -> None:
        self._reader, self._writer, self._found = reader, writer, found
        self._open: set[tuple[str, str]] = set()

    def compare(self, reader: Any, writer: Any, path: str, space: str, writer_space: str) -> None:
        """Add the differences at `path` and below."""
        reader, space = self._reader.resolved(reader, space)
        writer, writer_space = self._writer.resolved(writer, writer_space)
        if isinstance(writer, list):
            for branch in writer:
                self.compare(reader, branch, path, space, writer_space)
        elif isinstance(reader, list):
            self._branch(reader, writer, path, space, writer_space)
        elif (kind := _kind(reader)) != (written := _kind(writer)):
            if (written, kind) not in _PROMOTIONS:
                self._say(path, f"{_shown(writer)} cannot be read as {_shown(reader)}")
        elif kind in ("record", "enum", "fixed"):
            self._named(kind, reader, writer, path, space, writer_space)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            self.compare(reader[part], writer[part], path, space, writer_space)
        if not isinstance(reader, list) and not isinstance(writer, list):
            self._logical(reader, writer, path)

    def _branch(self, reader: list[Any], writer: Any, path: str, space: str, writer_space: str) -> None:
        """Add differences where no branch of the union can read `writer`: those of a branch of the same kind."""
        attempts = []
        for branch in reader:
            attempt: list[Difference] = []
            one = _Pair(self._reader, self._writer, attempt)
            one._open = self._open
            one.compare(branch, writer, path, space, writer_space)
            if not attempt:
                return
            attempts.append((_kind(self._reader.resolved(branch, space)[0]), attempt))
        alike = [attempt for kind, attempt in attempts if kind == _kind(writer)]
        if len(alike) == 1:
            self._found += alike[0]
        else:
            shown = ", ".join(_shown(self._reader.resolved(branch, space)[0]) for branch in reader)
            self._say(path, f"{_shown(writer)} cannot be read as any of {shown}")

    def _named(self, kind: str, reader: Any, writer: Any, path: str, space: str, writer_space: str) -> None:
        names = full_name(reader, space), full_name(writer, writer_space)
        if names[0].rpartition(".")[2] != names[1].rpartition(".")[2] and names[1] not in reader.get(
            "aliases", ()
        ):
            self._say(path, f"{kind} {names[1]} is now {names[0]}")
        elif kind == "enum":
            lacking = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if lacking and "default" not in reader:
                self._say(path, f"enum {names[0]} lacks {', '.join(lacking)}")
        elif kind == "fixed":
            if reader["size"] != writer["size"]:
                self._say(path, f"fixed {names[0]} had {writer['size']} bytes and has {reader['size']}")
        elif names not in self._open:
            self._open.add(names)
            self._fields(reader, writer, path, space, writer_space)
            self._open.discard(names)

    def _fields(self, reader: Any, writer: Any, path: str, space: str, writer_space: str) -> None:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            name = field["name"]
            inside = f"{path}.{name}".lstrip(".")
            old = next((written[n] for n in (name, *field.get("aliases", ())) if n in written), None)
            if old is not None:
                self.compare(field["type"], old["type"], inside, space, writer_space)
            elif "default" not in field:
                self._say(inside, "is new and has no default")

    def _logical(self, reader: Any, writer: Any, path: str) -> None:
        """Add differences of logical types, where the same bytes are another value; registries accept them (F55)."""
        now, was = _logical_type(reader), _logical_type(writer)
        if now != was and {now, was} & _MEANINGFUL:
            self._say(path, f"{_shown(writer)} would be read as {_shown(reader)}")
        elif now == was == "decimal":
            scale, before = reader.get("scale", 0), writer.get("scale", 0)
            if scale != before:
                self._say(path, f"a decimal of scale {before} cannot be read with scale {scale}")
            elif writer["precision"] > reader["precision"]:
                self._say(
                    path,
                    f"a decimal of {writer['precision']} digits cannot be read with {reader['precision']}",
                )

    def _say(self, path: str, what: str) -> None:
        self._found.append(Difference(path, what))


def _logical_type(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, Mapping) else None


def _shown(schema: Any) -> str:
    kind = _kind(schema)
    if isinstance(schema, Mapping) and kind in ("record", "enum", "fixed"):
        return f"{kind} {schema['name']}"
    logical = schema.get("logicalType") if isinstance(schema, Mapping) else None
    return f"{kind} ({logical})" if logical else kind
