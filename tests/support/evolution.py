"""Kinds of DDL and their effect on readers of the topics, for the test and the page about schema evolution.

In: nothing.  Out: `CASES`: a table, a row before, the DDL, a row after; the verdict and the effect on a reader.
Invariant: a verdict is about BACKWARD_TRANSITIVE, the compatibility level that cdcd sets for its subjects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

SAME, COMPATIBLE, INCOMPATIBLE = "the same schema", "a new version", "incompatible"


@dataclass(frozen=True)
class Case:
    """One kind of DDL. `{t}` is the table. `before`, `after`: the columns of the rows as cdcd writes them.

    `upgraded`: the row before, read with the schema after, where the result differs.
    """

    name: str
    columns: str
    first: str
    ddl: tuple[str, ...]
    second: str
    verdict: str
    before: dict[str, Any]
    after: dict[str, Any]
    sees: str
    upgraded: dict[str, Any] | None = None
    setup: tuple[str, ...] = field(default=())


CASES = (
    Case(
        "add a column",
        "id int PRIMARY KEY, v text",
        "1, 'a'",
        ("ALTER TABLE {t} ADD w int",),
        "2, 'b', 3",
        COMPATIBLE,
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b", "w": 3},
        "a new field; null in earlier records",
        {"id": 1, "v": "a", "w": None},
    ),
    Case(
        "add a column with a default",
        "id int PRIMARY KEY, v text",
        "1, 'a'",
        ("ALTER TABLE {t} ADD w int NOT NULL DEFAULT 7",),
        "2, 'b'",
        COMPATIBLE,
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b", "w": 7},
        "a new field; null in earlier records, because PostgreSQL does not send the rows that get the default; "
        "cdcd [copies the table](snapshots.md#tables-that-are-rewritten)",
        {"id": 1, "v": "a", "w": None},
    ),
    Case(
        "drop a column",
        "id int PRIMARY KEY, v text, w int",
        "1, 'a', 5",
        ("ALTER TABLE {t} DROP w",),
        "2, 'b'",
        COMPATIBLE,
        {"id": 1, "v": "a", "w": 5},
        {"id": 2, "v": "b"},
        "the field is missing",
        {"id": 1, "v": "a"},
    ),
    Case(
        "rename a column",
        "id int PRIMARY KEY, v text",
        "1, 'a'",
        ("ALTER TABLE {t} RENAME v TO w",),
        "2, 'b'",
        COMPATIBLE,
        {"id": 1, "v": "a"},
        {"id": 2, "w": "b"},
        "one field is missing and another is new, with the same `pg.attnum`; PostgreSQL sends no row again",
        {"id": 1, "w": None},
    ),
    Case(
        "reorder by drop and add",
        "id int PRIMARY KEY, v text, w int",
        "1, 'a', 5",
        ("ALTER TABLE {t} DROP v", "ALTER TABLE {t} ADD v text"),
        "2, 6, 'b'",
        COMPATIBLE,
        {"id": 1, "v": "a", "w": 5},
        {"id": 2, "w": 6, "v": "b"},
        "the fields in another order, which does not matter to readers; earlier records have their values",
        {"id": 1, "w": 5, "v": "a"},
    ),
    Case(
        "widen an integer",
        "id int PRIMARY KEY, v int",
        "1, 2147483647",
        ("ALTER TABLE {t} ALTER v TYPE bigint",),
        "2, 2147483648",
        COMPATIBLE,
        {"id": 1, "v": 2147483647},
        {"id": 2, "v": 2147483648},
        "a wider field",
    ),
    Case(
        "widen a real",
        "id int PRIMARY KEY, v real",
        "1, 0.5",
        ("ALTER TABLE {t} ALTER v TYPE double precision",),
        "2, 1e300",
        COMPATIBLE,
        {"id": 1, "v": 0.5},
        {"id": 2, "v": 1e300},
        "a wider field",
    ),
    Case(
        "widen a text",
        "id int PRIMARY KEY, v varchar(3)",
        "1, 'abc'",
        ("ALTER TABLE {t} ALTER v TYPE text",),
        "2, 'abcd'",
        COMPATIBLE,
        {"id": 1, "v": "abc"},
        {"id": 2, "v": "abcd"},
        "the same field with other properties",
    ),
    Case(
        "more digits",
        "id int PRIMARY KEY, v numeric(5,2)",
        "1, 999.99",
        ("ALTER TABLE {t} ALTER v TYPE numeric(10,2)",),
        "2, 99999999.99",
        COMPATIBLE,
        {"id": 1, "v": Decimal("999.99")},
        {"id": 2, "v": Decimal("99999999.99")},
        "a decimal with more digits",
    ),
    Case(
        "text to jsonb",
        "id int PRIMARY KEY, v text",
        "1, '[1]'",
        ("ALTER TABLE {t} ALTER v TYPE jsonb USING v::jsonb",),
        "2, '{\"a\": 1}'",
        COMPATIBLE,
        {"id": 1, "v": "[1]"},
        {"id": 2, "v": '{"a": 1}'},
        "the same field, now named JSON",
    ),
    Case(
        "enum label added",
        "id int PRIMARY KEY, v {t}_mood",
        "1, 'sad'",
        ("ALTER TYPE {t}_mood ADD VALUE 'glad'",),
        "2, 'sad'",
        SAME,
        {"id": 1, "v": "sad"},
        {"id": 2, "v": "sad"},
        "nothing: an enum is a string",
        setup=("CREATE TYPE {t}_mood AS ENUM ('sad')",),
    ),
    Case(
        "enum label renamed",
        "id int PRIMARY KEY, v {t}_mood",
        "1, 'sad'",
        ("ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'low'",),
        "2, 'low'",
        SAME,
        {"id": 1, "v": "sad"},
        {"id": 2, "v": "low"},
        "the new label from then on; PostgreSQL sends no row again",
        setup=("CREATE TYPE {t}_mood AS ENUM ('sad')",),
    ),
    Case(
        "nullable to NOT NULL",
        "id int PRIMARY KEY, v text",
        "1, 'a'",
        ("ALTER TABLE {t} ALTER v SET NOT NULL",),
        "2, 'b'",
        SAME,
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b"},
        "nothing: every column except the key's may be null in its schema",
    ),
    Case(
        "narrow an integer",
        "id int PRIMARY KEY, v bigint",
        "1, 5",
        ("ALTER TABLE {t} ALTER v TYPE int",),
        "2, 6",
        INCOMPATIBLE,
        {"id": 1, "v": 5},
        {"id": 2, "v": 6},
        "a long that cannot be read as an int",
    ),
    Case(
        "change of scale",
        "id int PRIMARY KEY, v numeric(8,2)",
        "1, 1.25",
        ("ALTER TABLE {t} ALTER v TYPE numeric(8,4)",),
        "2, 1.2345",
        INCOMPATIBLE,
        {"id": 1, "v": Decimal("1.25")},
        {"id": 2, "v": Decimal("1.2345")},
        "the same bytes would be another number; registries do not detect it, cdcd does",
    ),
    Case(
        "fewer digits",
        "id int PRIMARY KEY, v numeric(10,2)",
        "1, 1.25",
        ("ALTER TABLE {t} ALTER v TYPE numeric(5,2)",),
        "2, 999.99",
        INCOMPATIBLE,
        {"id": 1, "v": Decimal("1.25")},
        {"id": 2, "v": Decimal("999.99")},
        "numbers that a decimal with fewer digits cannot represent; registries do not detect it, cdcd does",
    ),
    Case(
        "integer to numeric",
        "id int PRIMARY KEY, v int",
        "1, 5",
        ("ALTER TABLE {t} ALTER v TYPE numeric(8,2)",),
        "2, 6.5",
        INCOMPATIBLE,
        {"id": 1, "v": 5},
        {"id": 2, "v": Decimal("6.50")},
        "an int that cannot be read as a decimal",
    ),
    Case(
        "timestamp to timestamptz",
        "id int PRIMARY KEY, v timestamp",
        "1, '2024-01-01 00:00:00'",
        ("ALTER TABLE {t} ALTER v TYPE timestamptz",),
        "2, '2024-01-01 00:00:00+00'",
        INCOMPATIBLE,
        {"id": 1},
        {"id": 2},
        "the same long would be another kind of time; registries do not detect it, cdcd does",
    ),
    Case(
        "integer to text",
        "id int PRIMARY KEY, v int",
        "1, 5",
        ("ALTER TABLE {t} ALTER v TYPE text",),
        "2, 'x'",
        INCOMPATIBLE,
        {"id": 1, "v": 5},
        {"id": 2, "v": "x"},
        "an int that cannot be read as a string",
    ),
)


def documented() -> str:
    """Return the table of docs/evolution.md."""
    head = "| change | schema | effect for readers |\n|---|---|---|\n"
    return head + "".join(f"| {case.name} | {case.verdict} | {case.sees} |\n" for case in CASES)
