"""The flat format and configured keys, through the daemon; the judge is a SELECT of the table."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.reader import BEGINNING, Event, Reader, of_transactions
from tests.support.stack import run

FLAT = {"format": {"overrides": [{"table": r"public\.flat", "value": "flat"}]}}


def place(event: Event) -> tuple[int, int, int]:
    """Return the position of a flat change in the order."""
    return event.value["__timeline"], event.value["__commit_lsn"], event.value["__tx_seq"]


def folded(events: list[Event]) -> dict[Any, dict[str, Any]]:
    """Return the rows that flat changes leave, by their keys.

    Columns that an update of the key did not send are in the row that it deleted just before.
    """
    rows: dict[Any, dict[str, Any]] = {}
    deleted: dict[str, Any] = {}
    for event in sorted((event for event in events if event.value is not None), key=place):
        key = tuple((event.key or {}).items())
        row = {name: value for name, value in event.value.items() if not name.startswith("__")}
        if event.value["__op"] == "t":
            rows.clear()
        elif event.value["__deleted"]:
            deleted = rows.pop(key)
        else:
            old = deleted if event.value["__op"] == "c" else rows.get(key, {})
            row.update({name: old[name] for name in event.value["__unchanged"]})
            row.update({name: Decimal(text) for name, text in (event.value["__special"] or {}).items()})
            rows[key] = row
    return rows


@pytest.mark.nightly
def test_a_flat_table_and_an_enveloped_one(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(
        postgres,
        database,
        "CREATE TABLE flat (id int PRIMARY KEY, price numeric(10,2), big text)",
        "ALTER TABLE flat ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE enveloped (id int PRIMARY KEY)",
        "INSERT INTO flat SELECT g, g, repeat('x', 5000) FROM generate_series(1, 20) g",
    )
    with new_daemon(postgres, database, **FLAT) as daemon:
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "INSERT INTO enveloped VALUES (1)",
            "UPDATE flat SET price = 'NaN' WHERE id < 5",
            "UPDATE flat SET id = id + 100 WHERE id = 7",
            "UPDATE flat SET big = NULL WHERE id = 8",
            "DELETE FROM flat WHERE id BETWEEN 10 AND 12",
        )
        await_confirmed(postgres, daemon)
        topic = f"{daemon.name}.public.flat"
        events = reader.read(topic)
        expected = postgres.execute("SELECT id, price, big FROM flat", dbname=database)
        assert {row["id"]: str(row["price"]) for row in folded(events).values()} == {
            number: str(price) for number, price, _ in expected
        }
        assert {row["id"]: row["big"] for row in folded(events).values()} == {
            number: big for number, _, big in expected
        }
        places = [place(event) for event in events if event.value is not None]
        assert len(set(places)) == len(places)
        assert sum(event.value is None for event in events) == 4
        assert {event.value["__op"] for event in events if event.value is not None} == {"r", "c", "u", "d"}
        (enveloped,) = reader.read(f"{daemon.name}.public.enveloped")
        assert enveloped.value["after"] == {"id": 1}
        run(postgres, database, "TRUNCATE flat", "INSERT INTO flat VALUES (1)")
        await_confirmed(postgres, daemon)
        assert [row["id"] for row in folded(reader.read(topic)).values()] == [1]
        assert daemon.stop() == 0


def test_keys_of_tables_without_one(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """REPLICA IDENTITY FULL without a primary key: the configured columns, the complete row, or null."""
    over = {
        "format": {
            "overrides": [
                {"table": r"public\.chosen", "key_columns": ["b", "a"]},
                {"table": r"public\.whole", "keyless": "row"},
            ]
        }
    }
    for name in ("chosen", "whole", "plain"):
        run(
            postgres,
            database,
            f"CREATE TABLE {name} (a int, b text, c int)",
            f"ALTER TABLE {name} REPLICA IDENTITY FULL",
            f"INSERT INTO {name} VALUES (1, NULL, 1), (2, 'x', 2), (3, 'y', 3)",
        )
    with new_daemon(postgres, database, **over) as daemon:
        daemon.start().wait_state("streaming")
        for name in ("chosen", "whole", "plain"):
            run(
                postgres,
                database,
                f"UPDATE {name} SET c = 10 WHERE a = 1",
                f"DELETE FROM {name} WHERE a = 2",
                f"UPDATE {name} SET b = 'z' WHERE a = 3",
            )
        await_confirmed(postgres, daemon)

        def reported(name: str) -> list[tuple[str | None, Any]]:
            events = reader.read(f"{daemon.name}.public.{name}")
            order = {"r": 0}
            changes = [event for event in events if event.value is not None]
            changes.sort(key=lambda event: (order.get(event.op or "", 1), event.sequence or BEGINNING))
            return [(event.op, event.key and tuple(event.key.values())) for event in changes]

        assert reported("chosen")[3:] == [
            ("u", (None, 1)),
            ("d", ("x", 2)),
            ("d", ("y", 3)),
            ("c", ("z", 3)),
        ]
        assert reported("whole")[3:] == [
            ("d", (1, None, 1)),
            ("c", (1, None, 10)),
            ("d", (2, "x", 2)),
            ("d", (3, "y", 3)),
            ("c", (3, "z", 3)),
        ]
        assert reported("plain") == [("r", None)] * 3 + [("u", None), ("d", None), ("u", None)]
        assert daemon.events("relation_without_key")[0]["table"] == "public.plain"
        assert daemon.stop() == 0


def test_flat_rows_and_enveloped_ones_are_counted_in_one_transaction(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """BEGIN and END count both; the added fields have their configured names."""
    over = {
        "format": {
            "transactions": True,
            "flat": {"op": "operation", "timeline": "tli", "commit_lsn": "lsn", "tx_seq": "nr"},
            "overrides": [{"table": r"public\.flat", "value": "flat"}],
        },
    }
    run(
        postgres,
        database,
        'CREATE TABLE flat (id int PRIMARY KEY, "__op" text)',
        "CREATE TABLE enveloped (id int PRIMARY KEY)",
    )
    with new_daemon(postgres, database, **over) as daemon:
        daemon.start().wait_state("streaming")
        with closing(psycopg2.connect(postgres.dsn(database))) as connection, connection.cursor() as cursor:
            for statement in (
                "INSERT INTO flat VALUES (1, 'a'), (2, 'b')",
                "INSERT INTO enveloped VALUES (1)",
                "UPDATE flat SET id = 3 WHERE id = 2",
                "DELETE FROM flat WHERE id = 1",
            ):
                cursor.execute(statement)
            connection.commit()
        await_confirmed(postgres, daemon)
        rows = [event.value for event in reader.read(f"{daemon.name}.public.flat") if event.value is not None]
        rows.sort(key=lambda row: row["nr"])
        assert [(row["operation"], row["id"], row["__op"]) for row in rows] == [
            ("c", 1, "a"),
            ("c", 2, "b"),
            ("d", 2, None),
            ("c", 3, "b"),
            ("d", 1, None),
        ]
        (enveloped,) = reader.read(f"{daemon.name}.public.enveloped")
        begin, end = (event.value for event in of_transactions(reader.read(f"{daemon.name}.transaction")))
        assert (begin["status"], end["status"], end["event_count"]) == ("BEGIN", "END", 6)
        assert {one["data_collection"]: one["event_count"] for one in end["data_collections"]} == {
            "public.flat": 5,
            "public.enveloped": 1,
        }
        places = [(row["tli"], row["lsn"], row["nr"]) for row in rows]
        assert len(set(places)) == 5
        assert {place[:2] for place in places} == {(1, enveloped.source["commit_lsn"])}
        assert end["id"] == enveloped.value["transaction"]["id"]
        assert daemon.stop() == 0
