"""The house rules that imports can show: downwards only, libraries only in their rooms, pure rooms pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cdcd"

# From the ground up. A room imports rooms of the tiers below its own, and never a neighbour of its own tier.
TIERS = (
    {"clock", "lsn", "version", "failpoints", "threads", "kernels", "lru_cache", "redaction", "bounded"},
    {"errors", "waits"},
    {"model", "findings"},
    {"schema", "pgoutput"},
    {"txn", "avro", "ack", "recovery"},
    {"ops"},
    {"source", "sink", "registry", "snapshot", "spill"},
    {"config"},
    {"monitoring", "pipeline"},
    {"session"},
    {"process"},
    {"demo"},
    {"cli"},
    {"__main__"},
)
STANDS_ALONE = "spark"  # of the daemon it shares the error tree; demo and command line may use it

LIBRARY_ROOMS = {
    "psycopg2": {"source", "snapshot", "demo"},
    "confluent_kafka": {"sink", "registry", "demo", "spark"},
    "prometheus_client": {"ops"},
    "pyspark": {"spark", "demo"},
}
PURE_ROOMS = {"pgoutput", "txn", "schema", "avro", "ack", "recovery", "model", "lsn", "errors"}
NOT_IN_PURE_ROOMS = {
    "asyncio", "http", "io", "logging", "os", "pathlib", "random", "selectors", "socket", "ssl", "structlog",
    "subprocess", "tempfile", "threading", "time", "urllib",
}  # fmt: skip


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, absolute; what only type checkers see counts too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            if node.module == "cdcd":
                yield from (f"cdcd.{alias.name}" for alias in node.names)
            else:
                yield node.module


def tier_of(room: str) -> int:
    for number, rooms in enumerate(TIERS):
        if room in rooms:
            return number
    raise AssertionError(f"cdcd.{room} has no place in TIERS")


def allowed(importer: str, room: str) -> bool:
    if room == importer or room == "version":
        return True
    if importer == STANDS_ALONE:
        return room in {"errors", "lsn"}
    if room == STANDS_ALONE:
        return importer in {"demo", "cli", "__main__"}
    return tier_of(room) < tier_of(importer)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_file_keeps_the_import_rules(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return
    room = room_of(path)
    broken = []
    for module in imported(path):
        top, _, rest = module.partition(".")
        if top == "cdcd":
            if rest and not allowed(room, rest.split(".")[0]):
                broken.append(f"{room} may not import {module}")
        elif room not in LIBRARY_ROOMS.get(top, {room}):
            broken.append(f"{top} belongs to {sorted(LIBRARY_ROOMS[top])}")
        elif room in PURE_ROOMS and top in NOT_IN_PURE_ROOMS:
            broken.append(f"{room} is pure and may not import {top}")
    assert not broken, broken


PURE_FILES = [path for path in FILES if room_of(path) in PURE_ROOMS]
CLOCK_CALLS = {"now", "today", "utcnow"}


@pytest.mark.parametrize("path", PURE_FILES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_pure_room_has_no_clock_no_files_and_nothing_to_await(path: Path) -> None:
    broken = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            broken.append(f"line {node.lineno}: pure rooms are called, never awaited")
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in CLOCK_CALLS:
                broken.append(f"line {node.lineno}: reads the clock by {called.attr}()")
            elif isinstance(called, ast.Name) and called.id in {"open", "print", "input"}:
                broken.append(f"line {node.lineno}: {called.id}()")
    assert not broken, broken


@pytest.mark.parametrize(
    ("importer", "room", "expected"),
    [
        ("process", "source", True),
        ("cli", "source", True),
        ("snapshot", "source", False),
        ("source", "sink", False),
        ("sink", "registry", False),
        ("source", "config", False),
        ("spill", "txn", True),
        ("spill", "source", False),
        ("txn", "spill", False),
        ("config", "sink", True),
        ("config", "process", False),
        ("ops", "source", False),
        ("source", "ops", True),
        ("txn", "avro", False),
        ("avro", "schema", True),
        ("schema", "avro", False),
        ("pgoutput", "schema", False),
        ("model", "pgoutput", False),
        ("errors", "lsn", True),
        ("lsn", "errors", False),
        ("spark", "model", False),
        ("spark", "sink", False),
        ("process", "spark", False),
        ("recovery", "model", True),
        ("recovery", "source", False),
        ("recovery", "config", False),
        ("monitoring", "recovery", True),
        ("monitoring", "session", False),
        ("monitoring", "pipeline", False),
        ("pipeline", "monitoring", False),
        ("pipeline", "session", False),
        ("session", "pipeline", True),
        ("session", "monitoring", True),
        ("session", "process", False),
        ("process", "recovery", True),
        ("cli", "recovery", True),
        ("demo", "spark", True),
        ("demo", "process", True),
        ("process", "demo", False),
    ],
)
def test_the_rules_say_what_the_house_says(importer: str, room: str, expected: bool) -> None:
    assert allowed(importer, room) is expected


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set().union(*TIERS) | {STANDS_ALONE}
