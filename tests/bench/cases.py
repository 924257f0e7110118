"""The cases of the benchmark, as a table of data. Pure.

Out: `CASES` by name: the tables, the rows, the rows of a transaction, the options requested from the server.
Invariant: a case defines everything that its backlog depends on, so that each runner drains the same WAL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Operation = Literal["insert", "update", "delete"]
Columns = tuple[tuple[str, str, str], ...]
"""Name, type with its modifiers, and an expression of `g`, the row's number."""

WIDE_COLUMNS = 100
KILOBYTE = 1000
SPREAD_WARM_SHARE = 0.2
MANY_TOPICS = 1_000


@dataclass(frozen=True, slots=True)
class Case:
    """One backlog, and the way to drain it.

    `of_one_table`: all rows go into the first of the `tables`; otherwise they are spread over all of them.
    `prefix_rows` rows are in the table before, for updates and deletes. `is_long`: runs only when it is named.
    """

    name: str
    about: str
    columns: Columns
    rows: int
    rows_per_transaction: int
    operation: Operation = "insert"
    change: str = ""
    identity: Literal["DEFAULT", "FULL"] = "DEFAULT"
    streaming: Literal["off", "on", "parallel"] = "off"
    binary: bool = False
    tables: int = 1
    of_one_table: bool = True
    partitions: int = 4
    warm_share: float = 0.0
    """The share of the rows that must be durable before the rate starts: by then each table's topic exists."""
    is_long: bool = False

    @property
    def records_per_row(self) -> int:
        """The number of records that one row produces: a delete is followed by a tombstone."""
        return 2 if self.operation == "delete" else 1

    @property
    def is_one_transaction(self) -> bool:
        """Whether all rows are in one transaction, so that no row can be durable before all are."""
        return self.rows_per_transaction >= self.rows

    def scaled(self, share: float) -> Case:
        """Return the case with a share of the rows, at least two transactions unless the case is about one."""
        rows = max(round(self.rows * share), 1)
        if self.is_one_transaction:
            return replace(self, rows=rows, rows_per_transaction=rows)
        per = min(self.rows_per_transaction, max(rows // 2, 1))
        return replace(self, rows=max(rows // per, 2) * per, rows_per_transaction=per)


TEN: Columns = (
    ("id", "bigint", "g"),
    ("customer", "integer", "(g * 7919 % 100000)::integer"),
    ("status", "smallint", "(g % 5)::smallint"),
    ("amount", "numeric(12,2)", "(g % 1000000)::numeric / 100"),
    ("created_at", "timestamptz", "timestamptz '2024-01-01 00:00:00+00' + g * interval '1 second'"),
    ("is_paid", "boolean", "g % 2 = 0"),
    ("name", "text", "'customer number ' || g"),
    ("mail", "text", "'somebody.' || g || '@example.com'"),
    ("note", "text", "repeat('the quick brown fox ', 3)"),
    ("ratio", "double precision", "g / 7.0::double precision"),
)
"""The ordinary row: 10 columns of 8 types, about 200 bytes of text."""

_ID = ("id", "bigint", "g")
WIDE: Columns = (
    _ID,
    *(
        (f"c{n}", ("integer", "text", "bigint")[n % 3], ("(g % 100000)::integer", "'v' || g", "g")[n % 3])
        for n in range(1, WIDE_COLUMNS)
    ),
)
KILOBYTE_TEXT: Columns = (_ID, ("body", "text", f"rpad('row ' || g || ' ', {KILOBYTE}, 'lorem ipsum ')"))
TOASTED: Columns = (
    _ID,
    ("counter", "integer", "0"),
    # Not compressed: a compressed value would be so small that it stays in the row and is sent.
    ("body", "text STORAGE EXTERNAL", "rpad('row ' || g || ' ', 4000, md5(g::text))"),
)
NUMERICS: Columns = (
    _ID,
    *((f"n{n}", "numeric(18,6)", f"(g * {n})::numeric / 1000003") for n in range(1, 6)),
    *((f"m{n}", "numeric", f"(g * {n})::numeric / 1000003") for n in range(1, 5)),
)
_AT = "timestamp '2024-01-01 00:00:00.123456'"
TIMESTAMPS: Columns = (
    _ID,
    *((f"tz{n}", "timestamptz", f"({_AT} + g * interval '{n} s') AT TIME ZONE 'UTC'") for n in (1, 2, 3)),
    *((f"ts{n}", "timestamp", f"{_AT} + g * interval '{n} s'") for n in (1, 2, 3)),
    ("d1", "date", "date '2024-01-01' + (g % 3650)::integer"),
    ("d2", "date", "date '1950-01-01' + (g % 3650)::integer"),
    ("t1", "time", "time '00:00:00' + (g % 86400) * interval '1 s'"),
)
ARRAYS: Columns = (
    _ID,
    ("ints", "integer[]", "ARRAY[g, g + 1, g + 2, g + 3, g + 4]::integer[]"),
    ("texts", "text[]", "ARRAY['one ' || g, 'two', 'three', NULL]"),
    ("bigs", "bigint[]", "ARRAY[g, g * 2, g * 3]"),
    ("times", "timestamptz[]", "ARRAY[timestamptz '2024-01-01 00:00:00+00' + g * interval '1 s']"),
)
JSONS: Columns = (
    _ID,
    (
        "one",
        "jsonb",
        "jsonb_build_object('id', g, 'name', 'customer ' || g, 'tags', jsonb_build_array('a', 'b', g), "
        "'address', jsonb_build_object('city', 'Vienna', 'zip', (g % 9999)::text))",
    ),
    ("two", "jsonb", "jsonb_build_object('k', g, 'v', repeat('x', 40), 'flag', g % 2 = 0)"),
)

_TEN_THOUSANDS = 10_000
_MANY = 2_000_000
_SOME = 1_000_000


def _inserts() -> Iterable[Case]:
    for per, rows in ((1, 300_000), (10, _SOME), (100, _MANY), (1_000, _MANY), (_TEN_THOUSANDS, _MANY)):
        unit = "row" if per == 1 else "rows"
        yield Case(f"insert-{per}", f"inserts, 10 columns, {per:,} {unit} a transaction", TEN, rows, per)
    one = Case("insert-1m", "inserts, one transaction", TEN, 1_000_000, 1_000_000)
    yield one
    yield replace(one, name="insert-1m-streamed", about=f"{one.about}, streamed", streaming="on")
    huge = replace(one, rows=10_000_000, rows_per_transaction=10_000_000, streaming="on", is_long=True)
    yield replace(huge, name="huge-10m", about=f"{one.about}, streamed")


def _changes() -> Iterable[Case]:
    update = Case(
        "update-default",
        "updates, REPLICA IDENTITY DEFAULT, 1,000 rows a transaction",
        TEN,
        _SOME,
        1_000,
        operation="update",
        change="status = status + 1, amount = amount + 1",
    )
    yield update
    full = update.about.replace("DEFAULT", "FULL")
    yield replace(update, name="update-full", about=full, identity="FULL")
    yield replace(
        update, name="delete", about="deletes, 1,000 rows a transaction", operation="delete", change=""
    )
    yield Case(
        "toast",
        "updates with an unchanged TOASTed text of 4 kB, 1,000 rows a transaction",
        TOASTED,
        500_000,
        1_000,
        operation="update",
        change="counter = counter + 1",
    )


def _shapes() -> Iterable[Case]:
    for name, about, columns, rows in (
        ("wide", f"{WIDE_COLUMNS} columns", WIDE, 300_000),
        ("text-1k", "texts of 1 kB", KILOBYTE_TEXT, _SOME),
        ("numeric", "9 numerics", NUMERICS, _SOME),
        ("timestamp", "9 dates and times", TIMESTAMPS, _SOME),
        ("array", "4 arrays", ARRAYS, 500_000),
        ("jsonb", "2 jsonb", JSONS, _SOME),
    ):
        yield Case(name, f"inserts, {about}, 1,000 rows a transaction", columns, rows, 1_000)
    yield Case(
        "insert-1000-binary",
        "inserts, 10 columns, 1,000 rows a transaction, binary format",
        TEN,
        _MANY,
        1_000,
        binary=True,
    )


def _scaling() -> Iterable[Case]:
    for tables in (1, 100, 1_000, 5_000):
        yield Case(
            f"tables-{tables}",
            f"inserts into one of {tables:,} published tables, 1,000 rows a transaction",
            TEN,
            _SOME,
            1_000,
            tables=tables,
            partitions=1,
        )
    for tables in (1_000, 5_000):
        yield Case(
            f"tables-{tables}-spread",
            f"inserts spread over {tables:,} tables, 1,000 rows a transaction",
            TEN,
            _SOME,
            1_000,
            tables=tables,
            of_one_table=False,
            partitions=1,
            warm_share=SPREAD_WARM_SHARE,
            is_long=tables > MANY_TOPICS,  # creating so many topics takes longer than draining
        )
    for topics in (1, 10, 100, 500):
        yield Case(
            f"topics-{topics}",
            f"inserts spread over {topics:,} topic{'s' if topics > 1 else ''} in each transaction of 1,000 rows",
            TEN,
            _SOME,
            1_000,
            tables=topics,
            of_one_table=False,
            partitions=1,
            warm_share=SPREAD_WARM_SHARE,
        )


CASES = {case.name: case for case in (*_inserts(), *_changes(), *_shapes(), *_scaling())}
"""All cases, in the order of execution."""
