"""The dialects of SQL in which the files of a mirror are named and their columns are converted. Pure.

In: names, paths, Arrow types.  Out: SQL.
Invariant: no name and no path ends its quotes, whatever characters it has, and none is replaced by the value of a
variable.
Must not: do I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from cdcd.spark.decoding.exact_json import EXACT_JSON
from cdcd.spark.target.shape import KEY
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat

__all__ = ["DIALECTS", "SUBSTITUTED", "Dialect", "NoSuchView", "quoted_for_spark"]

SUBSTITUTED = "${"
"""The begin of a variable, which Spark replaces in SQL before it parses it: see `substitution`."""


class NoSuchView(Exception):
    """The dialect has no query for a table; the text says why."""


class Dialect(Protocol):
    """SQL of one engine. `create`: the words before a view's name; `formats`: those of the tables that it reads.

    `many_files`: with more files, a view is slow; None: it is not.
    """

    create: str
    formats: tuple[TableFormat, ...]
    many_files: int | None

    def view(self, name: str, query: str) -> str:
        """Return the statement that makes a view. Raises NoSuchView if the engine would change a name in it."""

    def identifier(self, name: str) -> str:
        """Return a name in quotes."""

    def type(self, arrow: pa.DataType) -> str:
        """Return the name of a type."""

    def types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the types of columns by their names, without the key of the rows."""

    def files(self, paths: Sequence[str]) -> list[str]:
        """Return relations that have the rows of Parquet files of the same columns; several for several files.

        Raises NoSuchView if the engine cannot read a path.
        """

    def open_table(self, table_format: TableFormat, path: str, version: int) -> str:
        """Return the relation of a Delta or Iceberg table as of a version of its own."""

    def cast(self, expression: str, held: pa.DataType, wanted: pa.DataType) -> str:
        """Return a value as of another type. Raises NoSuchView if SQL cannot convert it."""

    def renamed(self, expression: str, names: Mapping[str, str | None]) -> str:
        """Return a map of texts with other keys, without the entries of the names that have no new one."""

    # --- for histories

    def struct(self, fields: Mapping[str, str]) -> str:
        """Return a struct; two are compared by their fields in order."""

    def sorted_list(self, expression: str) -> str:
        """Return the aggregate of all values in order."""

    def filtered(self, values: str, condition: str) -> str:
        """Return the values of a list, called `e`, that meet a condition."""

    def length(self, values: str) -> str:
        """Return the number of values of a list; null or less than 1 for no list."""

    def first(self, values: str) -> str:
        """Return the first value of a list, null without one."""

    def contains(self, values: str, value: str) -> str:
        """Return whether a list has a value; null for no list."""

    def entry(self, texts: str, name: str) -> str:
        """Return the text of a name in a map, null without one."""

    def texts(self, texts: Mapping[str, str]) -> str:
        """Return a map of names to the texts that are not null, null if it were empty."""

    def last_known(self, expression: str, window: str) -> str:
        """Return the last value in a window that is not null."""

    def time_of(self, us: str) -> str:
        """Return the instant of a number of microseconds since 1970."""

    def comparable(self, expression: str, arrow: pa.DataType) -> str:
        """Return what is equal where values of a type are: 0.0 and -0.0 are not."""


class _Dialect:
    create: str
    _TYPES: ClassVar[Mapping[pa.DataType, str]]

    def view(self, name: str, query: str) -> str:
        return f"{self.create} {self.identifier(name)} AS\n{query}"

    def identifier(self, name: str) -> str:
        raise NotImplementedError

    def type(self, arrow: pa.DataType) -> str:
        if pa.types.is_decimal(arrow):
            return f"DECIMAL({arrow.precision}, {arrow.scale})"
        if pa.types.is_list(arrow):
            return self._list(self.type(arrow.value_type))
        if pa.types.is_map(arrow):
            return self._map(self.type(arrow.key_type), self.type(arrow.item_type))
        if pa.types.is_struct(arrow):
            return self._struct((one.name, self.type(one.type)) for one in arrow)
        return self._TYPES[arrow]

    def types(self, schema: pa.Schema) -> dict[str, str]:
        return {one.name: self.type(one.type) for one in schema if one.name != KEY}

    def _list(self, item: str) -> str:
        raise NotImplementedError

    def _map(self, key: str, item: str) -> str:
        raise NotImplementedError

    def _struct(self, fields: Iterable[tuple[str, str]]) -> str:
        raise NotImplementedError


def _cases(names: Mapping[str, str | None], key: str, text: Callable[[str], str]) -> tuple[str, str]:
    """Return the condition under which an entry remains, and its new key."""
    new = {old: name for old, name in names.items() if name is not None}
    if not new:
        return "false", key
    cases = " ".join(f"WHEN {text(old)} THEN {text(name)}" for old, name in new.items())
    return f"{key} IN ({', '.join(map(text, new))})", f"CASE {key} {cases} END"


class DuckDB(_Dialect):
    """DuckDB; a bucket needs its extension httpfs or azure, a table of an open format the extension of its name."""

    create = "CREATE OR REPLACE VIEW"
    formats = TABLE_FORMATS
    many_files: int | None = None
    _TYPES: ClassVar[Mapping[pa.DataType, str]] = {
        pa.bool_(): "BOOLEAN", pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.float32(): "REAL",
        pa.float64(): "DOUBLE", pa.string(): "VARCHAR", pa.binary(): "BLOB", pa.date32(): "DATE",
        pa.time64("us"): "TIME", pa.timestamp("us"): "TIMESTAMP",
        pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
    }  # fmt: skip

    def identifier(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def files(self, paths: Sequence[str]) -> list[str]:
        """A folder such as `id=7` is not a column: the files have all columns."""
        quoted = ", ".join(_quoted(_pattern_of_duckdb(one)) for one in paths)
        return [f"read_parquet([{quoted}], hive_partitioning = false)"]

    def open_table(self, table_format: TableFormat, path: str, version: int) -> str:
        if table_format == "iceberg":
            return f"iceberg_scan({_quoted(f'{_of_duckdb(path)}/metadata/v{version}.metadata.json')})"
        return f"delta_scan({_quoted(_of_duckdb(path))}, version := {version})"

    def cast(self, expression: str, held: pa.DataType, wanted: pa.DataType) -> str:
        """Fields of a composite are converted by their names."""
        return f"CAST({expression} AS {self.type(wanted)})"

    def renamed(self, expression: str, names: Mapping[str, str | None]) -> str:
        remains, key = _cases(names, "e.key", _quoted)
        entries = f"[{{'k': {key}, 'v': e.value}} for e in map_entries({expression}) if {remains}]"
        return f"CASE WHEN len({entries}) > 0 THEN map_from_entries({entries}) END"

    def struct(self, fields: Mapping[str, str]) -> str:
        return f"struct_pack({', '.join(f'{name} := {value}' for name, value in fields.items())})"

    def sorted_list(self, expression: str) -> str:
        return f"list_sort(list({expression}))"

    def filtered(self, values: str, condition: str) -> str:
        return f"[e FOR e IN {values} IF {condition}]"

    def length(self, values: str) -> str:
        return f"len({values})"

    def first(self, values: str) -> str:
        return f"({values})[1]"

    def contains(self, values: str, value: str) -> str:
        return f"list_contains({values}, {value})"

    def entry(self, texts: str, name: str) -> str:
        return f"{texts}[{_quoted(name)}]"

    def texts(self, texts: Mapping[str, str]) -> str:
        all_of = ", ".join(f"{{'k': {_quoted(name)}, 'v': {text}}}" for name, text in texts.items())
        known = f"[e FOR e IN [{all_of}] IF e.v IS NOT NULL]"
        return f"CASE WHEN len({known}) > 0 THEN map_from_entries({known}) END"

    def last_known(self, expression: str, window: str) -> str:
        return f"last_value({expression} IGNORE NULLS) OVER ({window})"

    def time_of(self, us: str) -> str:
        return f"make_timestamptz({us})"

    def comparable(self, expression: str, arrow: pa.DataType) -> str:
        return f"CAST({expression} AS VARCHAR)" if pa.types.is_floating(arrow) else expression

    def _list(self, item: str) -> str:
        return f"{item}[]"

    def _map(self, key: str, item: str) -> str:
        return f"MAP({key}, {item})"

    def _struct(self, fields: Iterable[tuple[str, str]]) -> str:
        return f"STRUCT({', '.join(f'{self.identifier(name)} {type_}' for name, type_ in fields)})"


class SparkSQL(_Dialect):
    """Spark SQL. A relation has one file: a pattern of several would hide that one of them is removed."""

    create = "CREATE OR REPLACE TEMPORARY VIEW"
    formats: tuple[TableFormat, ...] = ("parquet",)
    many_files: int | None = 100
    _TYPES: ClassVar[Mapping[pa.DataType, str]] = {
        pa.bool_(): "BOOLEAN", pa.int32(): "INT", pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
        pa.string(): "STRING", pa.binary(): "BINARY", pa.date32(): "DATE", pa.time64("us"): "TIME(6)",
        pa.timestamp("us", "UTC"): "TIMESTAMP_LTZ", pa.timestamp("us"): "TIMESTAMP_NTZ",
    }  # fmt: skip

    def view(self, name: str, query: str) -> str:
        """No quotes prevent the replacement, which would show the environment in a name; only the session can."""
        statement = super().view(name, query)
        if SUBSTITUTED in statement:
            raise NoSuchView(
                f"a name has {SUBSTITUTED}, which Spark replaces in SQL by the value of a variable"
            )
        return statement

    def identifier(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def files(self, paths: Sequence[str]) -> list[str]:
        return [f"parquet.{self.identifier(_of_spark(one))}" for one in paths]

    def open_table(self, table_format: TableFormat, path: str, version: int) -> str:
        raise NotImplementedError

    def cast(self, expression: str, held: pa.DataType, wanted: pa.DataType) -> str:
        """Spark converts the fields of a composite by their places."""
        if _field_names(held) != _field_names(wanted):
            raise NoSuchView(
                "the fields of a composite column have changed, which Spark's CAST cannot follow"
            )
        return f"CAST({expression} AS {self.type(wanted)})"

    def renamed(self, expression: str, names: Mapping[str, str | None]) -> str:
        remains, key = _cases(names, "k", quoted_for_spark)
        filtered = f"map_filter({expression}, (k, v) -> {remains})"
        return f"CASE WHEN size({filtered}) > 0 THEN transform_keys({filtered}, (k, v) -> {key}) END"

    def struct(self, fields: Mapping[str, str]) -> str:
        pairs = (f"{quoted_for_spark(name)}, {value}" for name, value in fields.items())
        return f"named_struct({', '.join(pairs)})"

    def sorted_list(self, expression: str) -> str:
        return f"sort_array(collect_list({expression}))"

    def filtered(self, values: str, condition: str) -> str:
        return f"filter({values}, e -> {condition})"

    def length(self, values: str) -> str:
        return f"size({values})"

    def first(self, values: str) -> str:
        return f"get({values}, 0)"

    def contains(self, values: str, value: str) -> str:
        return f"array_contains({values}, {value})"

    def entry(self, texts: str, name: str) -> str:
        return f"try_element_at({texts}, {quoted_for_spark(name)})"

    def texts(self, texts: Mapping[str, str]) -> str:
        all_of = ", ".join(
            f"named_struct('k', {quoted_for_spark(name)}, 'v', {text})" for name, text in texts.items()
        )
        known = f"filter(array({all_of}), e -> e.v IS NOT NULL)"
        return f"CASE WHEN size({known}) > 0 THEN map_from_entries({known}) END"

    def last_known(self, expression: str, window: str) -> str:
        return f"last_value({expression}) IGNORE NULLS OVER ({window})"

    def time_of(self, us: str) -> str:
        return f"timestamp_micros({us})"

    def comparable(self, expression: str, arrow: pa.DataType) -> str:
        """Spark compares no maps."""
        if pa.types.is_nested(arrow):
            options = ", ".join(quoted_for_spark(text) for pair in EXACT_JSON.items() for text in pair)
            return f"to_json(named_struct('v', {expression}), map({options}))"
        return f"CAST({expression} AS STRING)" if pa.types.is_floating(arrow) else expression

    def _list(self, item: str) -> str:
        return f"ARRAY<{item}>"

    def _map(self, key: str, item: str) -> str:
        return f"MAP<{key}, {item}>"

    def _struct(self, fields: Iterable[tuple[str, str]]) -> str:
        return f"STRUCT<{', '.join(f'{self.identifier(name)}: {type_}' for name, type_ in fields)}>"


DIALECTS: Mapping[str, Dialect] = {"duckdb": DuckDB(), "spark": SparkSQL()}
_AZURE = re.compile(r"(abfss?)://([^@/]+)@([^/]+)(/.*)?")
_GLOB = re.compile(r"([\\*?\[\]{}])")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quoted_for_spark(text: str) -> str:
    """Return a literal of Spark, which has escapes with a backslash by default."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _of_duckdb(path: str) -> str:
    """Return a path as DuckDB has it, which writes Azure's container after the host. Raises NoSuchView for HDFS."""
    if path.startswith("hdfs:"):
        raise NoSuchView("DuckDB does not read HDFS")
    found = _AZURE.fullmatch(path)
    return path if found is None else f"{found[1]}://{found[3]}/{found[2]}{found[4] or ''}"


def _pattern_of_duckdb(path: str) -> str:
    """Return a path as a pattern; one of a local file is taken as it is, if the file exists.

    Raises NoSuchView for a `%` in a bucket: DuckDB decodes it once more.
    """
    if "://" not in path:
        return path
    if "%" in path:
        raise NoSuchView("the path of the target has a %, with which DuckDB finds no file in a bucket")
    return re.sub(r"[\[*?]", r"[\g<0>]", _of_duckdb(path))


def _of_spark(path: str) -> str:
    """Return a path as Hadoop has it: a pattern, whose special characters are escaped."""
    is_local = path.startswith("/")
    plain = f"file:{path}" if is_local else re.sub(r"^s3://", "s3a://", path)
    return _GLOB.sub(r"\\\1", plain)


def _field_names(arrow: pa.DataType) -> object:
    """Return the names of the fields of composites at each level."""
    if pa.types.is_struct(arrow):
        return [(one.name, _field_names(one.type)) for one in arrow]
    if pa.types.is_list(arrow):
        return _field_names(arrow.value_type)
    return _field_names(arrow.item_type) if pa.types.is_map(arrow) else None
