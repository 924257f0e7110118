"""All tables of a mirror as of one PostgreSQL commit, as temporary views of a Spark session.

In: a mirror, a position in the source.  Out: DataFrames and views of one version.
Invariant: each view has all rows of its table as of the commit. A table that is still copied, or parked, is in a view
only if the caller asks for it. A session does not have views of an earlier call and of a later one together.
Must not: read rows before a query does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import SparkReadError
from cdcd.escaped_names import unescape
from cdcd.spark.decoding.name_lists import check_lists
from cdcd.spark.reading.chosen_table import refuse_loading, refuse_parked
from cdcd.spark.reading.mirror import At, Mirror, read_mirror
from cdcd.spark.reading.substitution import OWN_NAMES, SUBSTITUTED, substitutes
from cdcd.spark.source.table_options import named_topic, topics_of
from cdcd.spark.storage.uri import Target

__all__ = ["ConsistentView", "consistent_view", "view_names"]

_OWNERS = "cdcd.views"
"""The setting of a session: each view's name, and a digest of target and prefix, by the name in lower case."""
_NAMES = threading.Lock()
log = logging.getLogger("cdcd.spark.mirror")


@dataclass(frozen=True, slots=True)
class ConsistentView:
    """Tables as of one commit. `views`: the name of each table's temporary view, by the table's name."""

    mirror: Mirror
    views: Mapping[str, str]
    frames: Mapping[str, DataFrame] = field(repr=False)

    @property
    def end_lsn(self) -> int:
        """The LSN below which all commits are in the view, 0 if it is not known."""
        return self.mirror.end_lsn

    @property
    def commit_time(self) -> datetime | None:
        """The time of the last commit in the view, None if it is not known."""
        return self.mirror.commit_time

    def table(self, name: str) -> DataFrame:
        """Return a table by its name, `schema.table`."""
        if name not in self.frames:
            raise SparkReadError(
                "the view has no such table",
                hint="correct the name, or name the table in `tables` of consistent_view",
                table=name,
                has=", ".join(sorted(self.frames)),
            )
        return self.frames[name]


def consistent_view(
    spark: SparkSession,
    target: Target,
    at: At | None = None,
    *,
    tables: Sequence[str] = ("*",),
    target_options: Mapping[str, str] | None = None,
    loading: bool = False,
    parked: bool = False,
    prefix: str = "",
) -> ConsistentView:
    """Make a temporary view `<prefix><schema>_<table>` of each table that `tables` names, all as of one commit.

    `at`: as `read_mirror`. `loading`: also of tables that cdcd still copies, which lack rows; without it a pattern
    leaves them out, and a name is an error. `parked`: also of tables that are of an earlier commit.
    `prefix`: threads of one session need one each, or they replace each other's views. The views that an earlier call
    with the same target and prefix has made, and this one does not, are dropped, unless another call replaced them.
    Raises TablesParked, SparkReadError, ConfigError.
    """
    check_lists(tables=tables)
    opened = read_mirror(target, target_options, at=at)
    topics = _topics(opened, tables, loading=loading)
    refuse_parked(opened, topics, loading=loading, parked=parked)
    named = {topic: unescape(topic.removeprefix(f"{opened.version.prefix}.")) for topic in topics}
    views = view_names(named.values(), prefix)
    _refuse_replaced(spark, views)
    frames = {name: opened.frame(spark, topic) for topic, name in named.items()}
    _drop_earlier(spark, opened.target.uri, prefix, views.values())
    for name, frame in frames.items():
        frame.createOrReplaceTempView(_quoted(views[name]))
    return ConsistentView(opened, views, frames)


def _refuse_replaced(spark: SparkSession, views: Mapping[str, str]) -> None:
    """Raise SparkReadError for a view whose name the session would replace: it would have another name."""
    replaced = [table for table, view in views.items() if SUBSTITUTED in view]
    if replaced and substitutes(spark):
        raise SparkReadError(
            f"the name of a view has {SUBSTITUTED}, which Spark replaces in SQL by the value of a variable",
            hint=f"name the other tables in `tables`, or {OWN_NAMES}",
            tables=", ".join(replaced),
        )


def _drop_earlier(spark: SparkSession, uri: str, prefix: str, made: Iterable[str]) -> None:
    """Drop the views of an earlier call that are not made again: they are of another version.

    One that a call with another target has replaced since is of that target. The session's configuration has the
    target of each name, so that each client of the session, also one of Spark Connect, and a clone of the session,
    which has its views, knows them.
    """
    owner = hashlib.blake2b(f"{uri}\n{prefix}".encode(), digest_size=8).hexdigest()
    now = {name.lower(): [name, owner] for name in made}  # Spark has one view of a name, whatever its case is
    with _NAMES:
        known: dict[str, list[str]] = json.loads(spark.conf.get(_OWNERS, "{}") or "{}")
        earlier = {key for key, (_, one) in known.items() if one == owner} - now.keys()
        for key in sorted(earlier):
            spark.catalog.dropTempView(known[key][0])
        _note_owners(spark, {key: one for key, one in known.items() if key not in earlier} | now)


def _note_owners(spark: SparkSession, owners: Mapping[str, list[str]]) -> None:
    try:
        spark.conf.set(_OWNERS, json.dumps(owners))
    except PySparkException as error:  # a managed Spark may forbid settings of others
        log.warning(
            "the session does not store the names of the views (%s): a later call leaves those that it does not make",
            type(error).__name__,
        )


def _topics(opened: Mirror, tables: Sequence[str], *, loading: bool) -> list[str]:
    """Return the topics of the tables, without those that are still copied."""
    chosen = topics_of(tables, opened.version.prefix, opened.topics, target=opened.target.uri)
    if loading:
        return list(chosen)
    copied = set(opened.loading)
    if asked := [one for one in tables if named_topic(one, opened.version.prefix, chosen) in copied]:
        refuse_loading(asked)
    return [topic for topic in chosen if topic not in copied]


def view_names(names: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the name of each table's view. Raises SparkReadError if two tables have one name."""
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in names:
        view = prefix + name.replace(".", "_", 1)
        other = owners.setdefault(view.lower(), name)
        if other != name:
            raise SparkReadError(
                "two tables have the same view",
                hint="name one of them in `tables`, and make a second view of the other one with another `prefix`",
                view=view,
                tables=f"{other}, {name}",
            )
        found[name] = view
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
