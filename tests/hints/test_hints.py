"""Each error is caused on real servers; following its hint resolves it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import CdcdError
from cdcd.session.option_downgrade import unsafe_options
from cdcd.source.settings import StreamOptions
from tests.hints import of_commands, of_kafka, of_others, of_rows, of_source, of_wire
from tests.hints.asserted import asserts
from tests.hints.elsewhere import ELSEWHERE, REPORTED_AS
from tests.hints.situation import CLASSES, SITUATIONS, Situation, World, played
from tests.integration.conftest import NewDaemon
from tests.support.nightly import nightly_except
from tests.support.stack import PostgresServers

ROOT = Path(__file__).parents[2]
CODES = set(re.findall(r"^\| `(CDCD-[A-Z-]+)`", (ROOT / "docs" / "errors.md").read_text(), re.M))
TABLES = (of_commands, of_kafka, of_others, of_rows, of_source, of_wire)


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


AT_EACH_CHANGE = (
    # The other codes have a test with their halt among the faults, or in tests/integration.
    "CDCD-RESUME-REFUSED: a gap is accepted while a daemon streams",
    "CDCD-SINK: a topic refuses old records",
    "CDCD-TOPIC-MISSING: the topic was deleted",
    "CDCD-TRANSACTION-TOO-LARGE: too many bytes, written in parts",
    "CDCD-PROGRESS-UNREADABLE: another program writes a record with the slot's key",
    "CDCD-SINK-FENCED: another producer uses the transactional id",
    "CDCD-REGISTRY-ID-TAKEN: two daemons with one name register a subject's next version at once",
    "CDCD-SCHEMA-TOPIC: a newer version of cdcd wrote to it",
    "CDCD-VALUE: a date has no Avro value",
    "CDCD-PUBLICATION-MISSING: there is no publication at the start",
    "CDCD-PARTIAL-TRANSACTION-MISSING: its changes are numbered differently, and the option is changed back",
)


@pytest.mark.parametrize("one", nightly_except(SITUATIONS, *AT_EACH_CHANGE, of=str), ids=str)
def test_following_the_hint_resolves_the_error(one: Situation, world: World) -> None:
    played(one, world)


def test_every_code_has_a_situation_or_a_test_elsewhere() -> None:
    here, there = {one.code for one in SITUATIONS}, ELSEWHERE.keys() | REPORTED_AS.keys()
    assert CODES - here - there == set()
    assert (here | there) - CODES == set()
    assert here & there == set(), "a code is in both tables"


@pytest.mark.parametrize(
    ("code", "where"), [(code, where) for code, where in ELSEWHERE.items() if "tests/" in where]
)
def test_what_is_said_to_be_elsewhere_is_asserted_there(code: str, where: str) -> None:
    why, _, rest = where.rpartition("tests/")
    path, _, name = f"tests/{rest}".partition("::")
    found = re.findall(r"CDCD-[A-Z-]+", why) or [code]
    assert len(found) == 1, "the code is reported as exactly one other code"
    assert asserts(ROOT / path, name, found[0], CLASSES[found[0]].__name__), (code, where)


@pytest.mark.parametrize(("code", "as_code"), REPORTED_AS.items())
def test_a_code_that_is_reported_as_another_is_so_wherever_it_is_raised(code: str, as_code: str) -> None:
    options = StreamOptions(2, streaming="on", binary=True)
    with pytest.raises(CdcdError) as raised, unsafe_options(options, slot="s"):
        raise CLASSES[code]("of the stream")
    assert raised.value.code == as_code
    assert as_code in {one.code for one in SITUATIONS} | ELSEWHERE.keys()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert 'CDCD-SPILL: full' in page", True),
        ("assert SpillError.code == page", True),
        ("with pytest.raises(SpillError): pass", True),
        ("with pytest.raises(OSError, match='CDCD-SPILL'): pass", True),
        ("eventually(lambda: 'CDCD-SPILL' in page, 'shown')", True),
        ("helper()", True),
        ("assert 'CDCD-SPILL-FULL' in page", False),
        ("page = 'CDCD-SPILL'", False),
        ("assert page, other()", False),
    ],
)
def test_what_counts_as_asserted(body: str, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    helpers = "def helper():\n    assert 'CDCD-SPILL' in page\ndef other():\n    return 'CDCD-SPILL'\n"
    path.write_text(f"{helpers}def test_it():\n    {body}\n")
    assert asserts(path, "test_it", "CDCD-SPILL", "SpillError") is expected
    assert not asserts(path, "test_another", "CDCD-SPILL", "SpillError")
