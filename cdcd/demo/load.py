"""Create the shop and fill it, before cdcd starts, so that the initial snapshot has rows to copy.

In: a DSN of the table owner and the number of rows to load.  Out: the tables of shop.sql, all with rows.
Invariant: the same seed and size load the same rows.
Must not: depend on cdcd; the shop is an ordinary database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from random import Random

import psycopg2
from psycopg2 import sql

from cdcd.demo import rows
from cdcd.demo.copy_text import CopyFile
from cdcd.demo.plan import LoadedRows, actor_copies, coupon_key, zoo_key

PUBLICATION = "cdcd_shop"
ROLE = "cdcd"


def create_shop(dsn: str, password: str | None = None) -> None:
    """Run shop.sql; with `password`, let the role cdcd log in with it."""
    script = resources.files("cdcd.demo").joinpath("shop.sql").read_text(encoding="utf-8")
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(script)
        if password is not None:
            cursor.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(ROLE), sql.Literal(password))
            )


def load(dsn: str, total: int, seed: int) -> LoadedRows:
    """Fill the shop with about `total` rows and return the number of each kind."""
    loaded = LoadedRows.of(total)
    with closing(psycopg2.connect(dsn)) as connection:
        for table in rows.TABLES:
            with connection, connection.cursor() as cursor:
                into = sql.SQL("COPY {} ({}) FROM STDIN").format(
                    sql.Identifier(table),
                    sql.SQL(", ").join(map(sql.Identifier, rows.COLUMNS[table])),
                )
                content = CopyFile(table_rows(table, loaded, seed))
                cursor.copy_expert(into.as_string(connection), content)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    return loaded


def table_rows(table: str, loaded: LoadedRows, seed: int) -> Iterator[rows.Row]:
    """Yield the rows to load into a table."""
    random = Random(f"cdcd demo {seed} load {table}")  # noqa: S311

    def numbers(count: int) -> range:
        return range(1, count + 1)

    match table:
        case "customers":
            return (rows.customer(random, i) for i in numbers(loaded.customers))
        case "products":
            return (rows.product(random, i) for i in numbers(loaded.products))
        case "orders":
            return (rows.order(random, i, loaded.customers) for i in numbers(loaded.orders))
        case "order_lines":
            return (rows.order_line(random, i, line) for i in numbers(loaded.orders) for line in (1, 2))
        case "events":
            return (rows.event(random, i) for i in numbers(loaded.events))
        case "prices":
            return (rows.price(random, i) for i in numbers(loaded.prices))
        case "audit_log":
            return _audit_rows(random, loaded.actors)
        case "type_zoo":
            return (rows.zoo(random, zoo_key(i)) for i in numbers(loaded.zoo))
        case "coupons":
            return (rows.coupon(random, coupon_key(i)) for i in numbers(loaded.coupons))
    raise ValueError(f"the shop has no table {table}")


def _audit_rows(random: Random, actors: int) -> Iterator[rows.Row]:
    for number in range(1, actors + 1):
        row = rows.audit(random, f"load-{number}")
        for _ in range(actor_copies(number)):
            yield row
