"""Readers of a mirror's tables between which money moves: each view of both tables has the same total.

In: a mirror's target.  Out: for each reader its views, and violations as texts.
Invariant: what a reader returns is judged here alone: a view's rows are those of PostgreSQL as of one commit, so the
total over both tables is what it always was. `tear` reads the tables of two versions, which has to be noticed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from cdcd.errors import SparkReadError
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.reading.plain_views import plain_views
from cdcd.spark.reading.views import consistent_view
from tests.faults.transfers import TABLES, TOTAL, State
from tests.spark.foreign_readers import READERS
from tests.spark.unit.test_plain_views import EXTENSIONS, duck

MEAN_PAUSE_S = 0.2
Read = Callable[[Mirror], State]


def topic_of(opened: Mirror, table: str) -> str:
    """Return the topic of a table."""
    return f"{opened.version.prefix}.public.{table}"


def by_cdcd(opened: Mirror) -> State:
    """Read by cdcd's own reader, in Arrow."""
    return {
        (table, row["id"]): row["amount"]
        for table in TABLES
        for row in opened.table(topic_of(opened, table)).select(["id", "amount"]).to_pylist()
    }


def by_spark(spark: SparkSession) -> Read:
    """Return what reads by the temporary views of a session of its own: readers of one would replace their views."""
    own = spark.newSession()

    def read(opened: Mirror) -> State:
        view = consistent_view(own, opened.target, opened.at, prefix="seen_")
        query = " UNION ALL ".join(
            f"SELECT '{table}' t, id, amount FROM {view.views[f'public.{table}']}" for table in TABLES
        )
        return {(row.t, row.id): row.amount for row in own.sql(query).collect()}

    return read


def by_duckdb(opened: Mirror) -> State:
    """Read by DuckDB, with the statements of `python -m cdcd.spark views`."""
    found: State = {}
    with duck(*EXTENSIONS[opened.version.table_format]) as connection:
        for one in plain_views(opened, "duckdb"):
            assert one.statement is not None, one.notes
            connection.execute(one.statement)
            rows = connection.execute(f'SELECT id, amount FROM "{one.name}"').fetchall()
            found |= {(one.table.partition(".")[2], row_id): amount for row_id, amount in rows}
    return found


def by_foreign_reader(opened: Mirror) -> State:
    """Read by delta-rs or PyIceberg, the versions of the tables that the mirror's version names."""
    reader = READERS[opened.version.table_format]
    return {
        (table, row["id"]): row["amount"]
        for table in TABLES
        for row in reader.recorded(opened, topic_of(opened, table)).select(["id", "amount"]).to_pylist()
    }


@dataclass(eq=False)
class Reader(threading.Thread):
    """Opens the newest version at random moments, until `stop`."""

    title: str
    target: str
    read: Read
    seed: str
    views: int = 0
    versions: set[int] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    torn: int = 0
    """The pairs of two versions whose total is another one."""
    pairs: int = 0
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(name=self.title, daemon=True)
        self._over = threading.Event()
        self._dice = random.Random(self.seed)
        self._before: tuple[int, State] | None = None

    def run(self) -> None:
        """Read until `stop`."""
        try:
            while not self._over.wait(self._dice.expovariate(1 / MEAN_PAUSE_S)):
                self.look()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.failure = error

    def look(self) -> State | None:
        """Read the newest version, and judge it; None while the tables are not complete."""
        opened = read_mirror(self.target)
        if opened.loading or len(opened.topics) < len(TABLES):
            return None
        assert not opened.parked, opened.parked
        number = opened.version.number
        state = self.read(opened)
        self.views += 1
        self.versions.add(number)
        if sum(state.values()) != TOTAL:
            again = {"read again": self.read(opened), "read by cdcd": by_cdcd(opened)}
            shown = "; ".join(f"{how}: {sums_of(one)}" for how, one in {"read": state, **again}.items())
            self.violations.append(f"{self.title}: version {number} has another total than {TOTAL}. {shown}")
        if self._before is not None and self._before[0] > number:
            self.violations.append(f"{self.title}: version {number} is read after {self._before[0]}")
        self._tear(number, state)
        return state

    def _tear(self, number: int, state: State) -> None:
        """Judge one table of this version with the other one of the version before."""
        before, self._before = self._before, (number, state)
        if before is None or before[0] == number:
            return
        mixed = [one for (table, _), one in state.items() if table == TABLES[0]]
        mixed += [one for (table, _), one in before[1].items() if table == TABLES[1]]
        self.pairs += 1
        self.torn += sum(mixed) != TOTAL

    def stop(self) -> None:
        """End the thread; raise its error."""
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def sums_of(state: State) -> str:
    """Return the rows and the total of each table, to tell a wrong version from a wrong reading."""
    amounts = {table: [one for (of, _), one in state.items() if of == table] for table in TABLES}
    return ", ".join(f"{table} has {len(found)} rows with {sum(found)}" for table, found in amounts.items())


def readers_of(target: str, table_format: str, spark: SparkSession, seed: str) -> Sequence[Reader]:
    """Return all readers that there are for a mirror's format."""
    ways: dict[str, Read] = {"cdcd": by_cdcd, "Spark": by_spark(spark), "DuckDB": by_duckdb}
    if table_format in READERS:
        ways[type(READERS[table_format]).__name__] = by_foreign_reader
    return [
        Reader(f"{name} on {table_format}", target, read, f"{seed}.{name}.{table_format}")
        for name, read in ways.items()
    ]


def has_tables(target: str) -> bool:
    """Return whether both tables are complete."""
    try:
        opened = read_mirror(target)
    except SparkReadError:
        return False
    return not opened.loading and len(opened.topics) == len(TABLES)
