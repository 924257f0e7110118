"""Types and column options through the complete daemon, snapshot and stream; Confluent's deserializer reads them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader
from tests.support.stack import run

TABLES = (
    "CREATE EXTENSION hstore",
    "CREATE TYPE public.address AS (street text, no int)",
    "CREATE TYPE public.person AS (name text, home public.address, at timestamptz, tags hstore)",
    "CREATE TABLE public.t (id int PRIMARY KEY, p public.person, q public.address, rs public.address[],"
    " h hstore, m money, n numeric, f numeric(10,2), d date, big text)",
    "ALTER TABLE public.t ALTER big SET STORAGE EXTERNAL",
)
FIRST = (
    "INSERT INTO public.t VALUES (1, ROW('Ann \"A\"', ROW('Main', 1), NULL, 'k=>\"v, w\", n=>NULL'), ROW('', NULL),"
    " ARRAY[ROW('a b', 2), NULL]::public.address[], 'x=>1', '-1234.56', 1.50, 2.50, '2024-01-01', repeat('x', 5000))"
)
AS_READ = {
    "id": 1,
    "p": {
        "name": 'Ann "A"',
        "home": {"street": "Main", "no": 1},
        "at": None,
        "tags": {"k": "v, w", "n": None},
    },
    "q": {"street": "", "no": None},
    "rs": [{"street": "a b", "no": 2}, None],
    "h": {"x": "1"},
    "m": Decimal("-1234.56"),
    "n": "1.50",
    "f": 2.5,
    "d": "2024-01-01",
    "big": None,
}
CHOICES = {
    "format": {
        "placeholder": "__unsent",
        "overrides": [
            {"table": r"public\.t", "column": "f", "numeric_as": "double"},
            {"table": r"public\.t", "column": "d", "special": "string"},
            {"table": r"public\.t", "column": "big", "max_value_bytes": 100, "oversized": "omit"},
        ],
    }
}


def in_order(events: list[Event]) -> list[Any]:
    return [event.value for event in sorted(events, key=lambda event: event.sequence or BEGINNING)]


def test_types_and_choices_in_snapshot_and_stream(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(postgres, database, *TABLES, FIRST)
    with new_daemon(postgres, database, **CHOICES) as daemon:
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "UPDATE public.t SET f = 3, d = 'infinity', p.at = 'infinity'",
            "ALTER TYPE public.address ADD ATTRIBUTE zip text",
            "UPDATE public.t SET big = 'short', rs = '{{NULL}}'",
        )
        await_confirmed(postgres, daemon)
        values = in_order(reader.read(f"{daemon.name}.public.t"))
        assert daemon.stop() == 0
    snapshot, changed, altered = values
    assert snapshot["after"] == AS_READ
    assert snapshot["source"]["special"] == {"after.big.omitted_bytes": "5000"}
    assert changed["after"] == {**AS_READ, "f": 3.0, "d": "infinity", "p": None, "big": "__unsent"}
    person = '("Ann ""A""","(Main,1)",infinity,"""k""=>""v, w"", ""n""=>NULL")'
    assert changed["source"]["special"] == {"after.p": person}
    assert changed["source"]["unchanged"] == ["big"]
    assert (altered["after"]["big"], altered["after"]["rs"]) == ("short", None)
    assert altered["source"]["special"]["after.rs"] == "{{NULL}}"
    # The added attribute is not in this session's schema: the complete value is in `source.special`.
    assert altered["source"]["special"]["after.q"] == '("",,)'


def test_a_composite_with_a_replaced_attribute_is_special_until_a_restart(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F44: as many attributes as before, of which one has another type; a restart describes the current type."""
    run(postgres, database, *TABLES, FIRST)
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "ALTER TYPE public.address DROP ATTRIBUTE no, ADD ATTRIBUTE note text",
            "UPDATE public.t SET q = ROW('Main', 'behind the mill')",
        )
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        run(postgres, database, "UPDATE public.t SET q = ROW('Main', 'again')")
        await_confirmed(postgres, daemon)
        _, altered, again = in_order(reader.read(f"{daemon.name}.public.t"))
        assert daemon.stop() == 0
    assert altered["after"]["q"] is None
    assert altered["source"]["special"]["after.q"] == '(Main,"behind the mill")'
    assert again["after"]["q"] == {"street": "Main", "note": "again"}


@pytest.mark.parametrize(
    ("choices", "change", "column"),
    [
        ({"special": "halt"}, "UPDATE public.t SET d = 'infinity'", "d"),
        nightly({"max_value_bytes": 4999}, "UPDATE public.t SET big = repeat('y', 5000)", "big"),
    ],
)
def test_a_halt_names_the_place_and_not_the_value(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    choices: dict[str, Any],
    change: str,
    column: str,
) -> None:
    run(postgres, database, *TABLES, FIRST.replace("5000", "10"))
    with new_daemon(postgres, database, format=choices) as daemon:
        daemon.start().wait_state("streaming")
        run(postgres, database, change)
        page = daemon.wait_state("halted")
        reported = str(page) + daemon.log()
        assert "CDCD-VALUE" in reported
        assert f"table=public.t column={column} type=" in reported
        assert "infinity" not in reported
        assert "yyyy" not in reported
