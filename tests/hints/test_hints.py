"""Every error is brought about for real, and its hint followed: is it gone then?"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.hints import of_commands, of_kafka, of_rows, of_source
from tests.hints.elsewhere import ELSEWHERE
from tests.hints.situation import SITUATIONS, Situation, World, played
from tests.integration.conftest import NewDaemon
from tests.support.stack import PostgresServers

ROOT = Path(__file__).parents[2]
CODES = set(re.findall(r"^\| `(CDCD-[A-Z-]+)`", (ROOT / "docs" / "errors.md").read_text(), re.M))
TABLES = (of_commands, of_kafka, of_rows, of_source)


@pytest.fixture
def world(
    pg_server: PostgresServers,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
    new_daemon: NewDaemon,
) -> Iterator[World]:
    postgres.execute("CREATE TABLE public.t (id int PRIMARY KEY, body text)", dbname=database)
    daemon = new_daemon(postgres, database)
    world = World(pg_server, postgres, database, kafka, registry, tmp_path, new_daemon, daemon)
    with contextlib.ExitStack() as closing:
        world.closing = closing
        closing.callback(daemon.__exit__)
        yield world


@pytest.mark.parametrize("one", SITUATIONS, ids=str)
def test_the_hint_mends_it(one: Situation, world: World) -> None:
    played(one, world)


def test_every_code_has_a_situation_or_a_test_elsewhere() -> None:
    here = {one.code for one in SITUATIONS}
    assert CODES - here - ELSEWHERE.keys() == set()
    assert (here | ELSEWHERE.keys()) - CODES == set()
    assert here & ELSEWHERE.keys() == set(), "a code of both"


def test_what_is_said_to_be_elsewhere_is_there() -> None:
    for code, where in ELSEWHERE.items():
        if where.startswith("tests/"):
            path, _, name = where.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), (code, where)
