"""The tables of a mirror in a catalog of Spark, so that SQL finds them by name.

In: a Spark session, a mirror as of one version, a namespace of a catalog such as `spark_catalog.shop`.
Out: for each table its name there, and the error if it could not be registered.
Invariant: a name of the catalog that is not this mirror's remains as it is, and is an error. What is registered names
no file and no version, so that it has the newest rows, and changes only with the columns of a table. A name in which
the session would replace a variable (`${env:NAME}`) is an error: all users of the catalog would see its value.
Must not: read rows; look into the JVM.

A Parquet table is a view over a table of the data source `mirrored_table`. Spark passes the options of CREATE TABLE
to no source that is written in Python, but those of `SELECT ... WITH (...)`, which the view has. The table below the
view has the columns, and their digest in its name: with other columns the view moves to another table in one step.
A Delta table is an external table at its folder.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.errors import CatalogRefused, CdcdError, ConfigError
from cdcd.escaped_names import unescape
from cdcd.spark.reading.catalog_state import Registered
from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.reading.mirrored_table import OF_STORAGE, TARGET
from cdcd.spark.reading.sql_dialects import DIALECTS, quoted_for_spark
from cdcd.spark.reading.substitution import OWN_NAMES, SUBSTITUTED, substitutes
from cdcd.spark.reading.table_frame import columns_of
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import TableEntry

__all__ = ["Catalog", "namespace_of"]

_OWNER, _COLUMNS = "cdcd.target", "cdcd.columns"
_BELOW = "_cdcd_{0}_{1}"
_NAME = re.compile(r"[^.`\s][^.`]*")
_DIGITS = 8
_SQL = DIALECTS["spark"]


def namespace_of(text: str) -> tuple[str, ...]:
    """Return the parts of a namespace. Raises ConfigError."""
    parts = tuple(text.split("."))
    if not all(map(_NAME.fullmatch, parts)):
        raise ConfigError(
            "the catalog is not a namespace of Spark",
            hint="write CATALOG.DATABASE, such as spark_catalog.shop",
        )
    return parts


@dataclass(frozen=True, slots=True)
class Catalog:
    """A namespace of a session. `options`: those of the target's storage, without secrets."""

    spark: SparkSession
    namespace: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """The namespace as it is given."""
        return ".".join(self.namespace)

    def register(self, opened: Mirror, known: Mapping[str, Registered]) -> dict[str, Registered]:
        """Register all tables, and remove those that the mirror had in `known` and has not any more."""
        found: dict[str, Registered] = {}
        names = {topic: _table_of(opened, topic).replace(".", "_", 1) for topic in opened.topics}
        owners = Counter(name.lower() for name in names.values())
        for topic, name in names.items():
            entry = opened.version.tables[topic]
            is_delta = opened.version.table_format == "delta"
            if not entry.fields or (is_delta and entry.table_version is None):
                continue  # its columns are not known yet
            shared = owners[name.lower()] > 1
            found[topic] = Registered(name, self._failure(opened, entry, name, is_shared=shared))
        gone = {
            topic: one
            for topic, one in known.items()
            if topic not in names and one.name.lower() not in owners  # else it is another table's name now
        }
        return found | {topic: one for topic, one in self._removed(opened.target, gone).items() if one.error}

    def _failure(self, opened: Mirror, entry: TableEntry, name: str, *, is_shared: bool) -> str:
        """Register a table; return the error's text, "" without one."""
        try:
            if is_shared:
                return str(_shared(name))
            if self._is_replaced(name):
                return str(_replaced("the name of the table", name))
            if opened.version.table_format == "delta":
                self._register_delta(opened, entry, name)
            else:
                self._register_view(opened, entry, name)
        except CdcdError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the client of a catalog raises errors of its own
            return str(_translated(error, f"{self.name}.{name}"))
        return ""

    def _removed(self, target: Storage, gone: Mapping[str, Registered]) -> dict[str, Registered]:
        """Remove tables that the mirror does not have any more; return the result of each."""
        results = {}
        for topic, one in gone.items():
            try:
                self._remove(target, one.name)
                results[topic] = Registered(one.name)
            except Exception as error:  # noqa: BLE001 - as above
                results[topic] = Registered(one.name, str(_translated(error, f"{self.name}.{one.name}")))
        return results

    def _remove(self, target: Storage, name: str) -> None:
        """Remove a table if it is the mirror's; a Delta table's files remain."""
        if self._is_replaced(name) or not self._exists(name):
            return
        if self._properties(name).get(_OWNER) == _uri(target):
            self._run(f"DROP VIEW IF EXISTS {self._quoted(name)}")
            self._drop_below(name, "")
        elif _is_in(target, self._described(name).get("Location")):
            self._run(f"DROP TABLE IF EXISTS {self._quoted(name)}")

    # --- Parquet: a view over a table of the data source

    def _register_view(self, opened: Mirror, entry: TableEntry, name: str) -> None:
        columns = _SQL.types(columns_of(entry)[0])
        typed = ", ".join(f"{_SQL.identifier(column)} {type_}" for column, type_ in columns.items())
        if self._is_replaced(typed):
            self._remove(opened.target, name)  # an earlier version of cdcd registered it with replaced names
            raise _replaced("a column of the table", name)
        below = _BELOW.format(name, _digest(columns))
        view = self._view(opened, entry, below)
        wanted = {_OWNER: _uri(opened.target), _COLUMNS: _digest([below, view])}
        exists = self._exists(name)
        if exists:
            found = self._properties(name)
            if found.get(_OWNER) != wanted[_OWNER]:
                raise self._anothers(name)
            if found.get(_COLUMNS) == wanted[_COLUMNS]:
                return
        self._run(f"CREATE TABLE IF NOT EXISTS {self._quoted(below)} ({typed}) USING cdcd")
        properties = ", ".join(_pairs(wanted))
        create = "CREATE OR REPLACE VIEW" if exists else "CREATE VIEW"
        self._run(f"{create} {self._quoted(name)} TBLPROPERTIES ({properties}) AS {view}")
        self._drop_below(name, below)

    def _view(self, opened: Mirror, entry: TableEntry, below: str) -> str:
        table = entry.topic.removeprefix(f"{opened.version.prefix}.")
        options = {TARGET: _uri(opened.target), "table": table}
        for option, value in self.options.items():
            if _has_credentials(value):
                raise CatalogRefused(
                    "an option of the target has credentials in a URL, which everyone could read in the catalog",
                    hint="register the tables without this option, and set it in the environment",
                    option=option,
                )
            options[f"{OF_STORAGE}{option}"] = value
        return f"SELECT * FROM {self._quoted(below)} WITH ({', '.join(_pairs(options))})"  # noqa: S608 - quoted

    def _drop_below(self, name: str, current: str) -> None:
        """Drop the tables below a view that had other columns, also what a crash has left."""
        pattern = re.compile(re.escape(_BELOW.format(name, "")) + f"[0-9a-f]{{{_DIGITS}}}", re.IGNORECASE)
        for row in self.spark.sql(f"SHOW TABLES IN {self._namespace()}").collect():
            found = str(row["tableName"])
            if not pattern.fullmatch(found) or found.lower() == current.lower():
                continue
            if self._is_below(found):
                self._run(f"DROP TABLE IF EXISTS {self._quoted(found)}")

    def _is_below(self, name: str) -> bool:
        """Return whether a table is of a source in Python: Spark shows no provider and no properties of these."""
        described = self._described(name)
        return described.get("Type") == "MANAGED" and "Provider" not in described

    # --- Delta: an external table

    def _register_delta(self, opened: Mirror, entry: TableEntry, name: str) -> None:
        location = f"{_uri(opened.target)}/{opened.version.folder_of(entry.topic)}"
        if self._exists(name):
            if not _is_same(self._described(name).get("Location"), location):
                raise self._anothers(name)
            return
        place = quoted_for_spark(re.sub(r"^s3://", "s3a://", location))
        self._run(f"CREATE TABLE {self._quoted(name)} USING delta LOCATION {place}")

    # --- the catalog

    def _is_replaced(self, text: str) -> bool:
        """Return whether the session would change a text of a statement, quoted or not, before it parses it."""
        return SUBSTITUTED in text and substitutes(self.spark)

    def _exists(self, name: str) -> bool:
        return bool(self.spark.catalog.tableExists(self._quoted(name)))

    def _properties(self, name: str) -> dict[str, str]:
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self._quoted(name)}").collect()
        return {str(row[0]): str(row[1]) for row in rows}

    def _described(self, name: str) -> dict[str, str]:
        rows = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self._quoted(name)}").collect()
        return {str(row[0]): str(row[1]) for row in rows}

    def _run(self, statement: str) -> None:
        if self._is_replaced(statement):
            raise CatalogRefused(
                f"the target's address or an option of its storage has {SUBSTITUTED}, which Spark replaces in SQL",
                hint=OWN_NAMES,
            )
        self.spark.sql(statement)

    def _namespace(self) -> str:
        return ".".join(map(_SQL.identifier, self.namespace))

    def _quoted(self, name: str) -> str:
        return f"{self._namespace()}.{_SQL.identifier(name)}"

    def _anothers(self, name: str) -> CatalogRefused:
        return CatalogRefused("the catalog has another table of this name", table=f"{self.name}.{name}")


def _has_credentials(value: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*@", value) is not None


def _shared(name: str) -> CatalogRefused:
    return CatalogRefused(
        "two tables of the mirror have this name in a catalog",
        hint="read them by `consistent_view`, each with a prefix",
        table=name,
    )


def _replaced(what: str, table: str) -> CatalogRefused:
    return CatalogRefused(
        f"{what} has {SUBSTITUTED} in its name, which Spark replaces in SQL by the value of a variable",
        hint=f"read the table by `read_mirror` or `consistent_view`, or {OWN_NAMES}",
        table=table,
    )


def _table_of(opened: Mirror, topic: str) -> str:
    return unescape(topic.removeprefix(f"{opened.version.prefix}."))


def _uri(target: Storage) -> str:
    return target.uri if target.folder is None else str(target.folder.resolve())


def _digest(parts: Mapping[str, str] | Sequence[str]) -> str:
    text = repr(list(parts.items()) if isinstance(parts, Mapping) else list(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _pairs(values: Mapping[str, str]) -> Iterable[str]:
    return (f"{quoted_for_spark(name)} = {quoted_for_spark(value)}" for name, value in values.items())


def _is_same(found: str | None, location: str) -> bool:
    """Return whether two locations are one; Spark writes `file:` before a path, and Hadoop `s3a:` for S3."""
    return found is not None and _plain(found) == _plain(location)


def _is_in(target: Storage, found: str | None) -> bool:
    return found is not None and _plain(found).startswith(f"{_plain(_uri(target))}/")


def _plain(location: str) -> str:
    return re.sub(r"^s3a://", "s3://", re.sub(r"^file:/+", "/", location)).rstrip("/")


def _translated(error: Exception, table: str) -> CatalogRefused:
    """Return the error with its class, not with its text, which has the statement."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return CatalogRefused(
        "Spark could not register the table", table=table, error=condition or type(error).__name__
    )
