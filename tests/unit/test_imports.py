"""The import rules: only from lower tiers, libraries only in their packages, pure packages without I/O."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

PACKAGE = Path(__file__).parents[2] / "cdcd"

# From the lowest tier up. A package imports packages of lower tiers only, never one of its own tier.
TIERS = (
    {
        "big_endian", "bounded", "clock", "escaped_names", "failpoints", "frame_layout", "function_address",
        "extensions", "hash_bytes", "host_names", "lru_cache", "lsn", "metrics", "property_names", "redaction",
        "threads", "version",
    },
    {"errors", "waits"},
    {"model", "findings", "secret_files", "columnar"},
    {"schema", "pgoutput"},
    {"txn", "avro", "ack", "recovery"},
    {"ops"},
    {"source", "sink", "registry", "spill"},
    {"snapshot"},
    {"config"},
    {"monitoring", "pipeline", "verify"},
    {"session"},
    {"process"},
    {"demo"},
    {"cli"},
    {"__main__"},
)  # fmt: skip
STANDS_ALONE = "spark"  # demo and command line may use it
# It connects with the daemon's own configuration and registry client, and reads the schema topic.
SHARED_WITH_SPARK = {
    "bounded", "columnar", "errors", "escaped_names", "extensions", "host_names", "lsn", "metrics", "property_names",
    "redaction", "secret_files", "schema", "registry", "config",
}  # fmt: skip

# The rooms of `cdcd.spark`, from the lowest one up: a room imports only rooms before it.
ROOMS_OF_SPARK = (
    "session", "clients", "storage", "decoding", "source", "target", "tables", "formats", "reading", "data_source",
    "mirroring", "applying", "testing", "commands", "__main__",
)  # fmt: skip

LIBRARY_ROOMS = {
    "psycopg2": {"source", "snapshot", "demo"},
    "confluent_kafka": {"sink", "registry", "demo", "spark"},
    "prometheus_client": {"ops", "metrics", "spark"},
    "obstore": {"spark"},
    "hdfs_native": {"spark"},
    "deltalake": {"spark"},
    "pyiceberg": {"spark"},
    "pyspark": {"spark", "demo"},
    "pyarrow": {"spark", "columnar", "demo"},
}
PURE_ROOMS = {"pgoutput", "txn", "schema", "avro", "ack", "recovery", "model", "lsn", "errors", "columnar"}
NOT_IN_PURE_ROOMS = {
    "asyncio", "http", "io", "logging", "os", "pathlib", "random", "selectors", "socket", "ssl", "structlog",
    "subprocess", "tempfile", "threading", "time", "urllib",
}  # fmt: skip


CYTHON_IMPORT = re.compile(r"^(?:from (?P<source>[\w.]+) )?c?import (?P<names>[\w., ]+)", re.M)
CYTHON_INCLUDE = re.compile(r'^include "(?P<path>[^"]+)"', re.M)


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.partition(".")[0]


def imported(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, as an absolute name, including imports for type checkers and C
    extensions that are loaded by name."""
    yield from (imported_by_python if path.suffix == ".py" else imported_by_cython)(path)


def imported_by_cython(path: Path) -> Iterator[str]:
    """Yield what a .pyx, .pxd or .pxi file imports, cimports and includes; `ast` cannot parse Cython."""
    text = path.read_text()
    for found in CYTHON_IMPORT.finditer(text):
        names = [name.split()[0] for name in found["names"].split(",") if name.strip()]
        if found["source"] is None:
            yield from names
        elif found["source"] == "cdcd":
            yield from (f"cdcd.{name}" for name in names)
        else:
            yield found["source"]
    for found in CYTHON_INCLUDE.finditer(text):
        included = (path.parent / found["path"]).resolve().relative_to(PACKAGE.parent)
        yield ".".join(included.with_suffix("").parts)


def imported_by_python(path: Path) -> Iterator[str]:
    modules = list(statements(path))
    yield from modules
    if "cdcd.extensions" in modules:
        yield from extensions(path)


def extensions(path: Path) -> Iterator[str]:
    """Yield the C extensions that a file loads."""
    for node in ast.walk(syntax_tree(path.read_text(), str(path))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "extension":
            (name,) = node.args
            assert isinstance(name, ast.Constant), (
                f"{path}:{node.lineno}: a C extension is named by a literal"
            )
            yield str(name.value)


def statements(path: Path) -> Iterator[str]:
    for node in ast.walk(syntax_tree(path.read_text(), str(path))):
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
    raise AssertionError(f"cdcd.{room} is not in TIERS")


def allowed(importer: str, room: str) -> bool:
    if room == importer or room == "version":
        return True
    if importer == STANDS_ALONE:
        return room in SHARED_WITH_SPARK
    if room == STANDS_ALONE:
        return importer in {"demo", "cli", "__main__"}
    return tier_of(room) < tier_of(importer)


CYTHON_FILES = sorted(path for path in PACKAGE.rglob("*.p*") if path.suffix in (".pyx", ".pxd", ".pxi"))
FILES = sorted([*PACKAGE.rglob("*.py"), *CYTHON_FILES])


def forbidden_imports(path: Path) -> Iterator[str]:
    """Yield each import of a file that the rules forbid."""
    room = room_of(path)
    for module in imported(path):
        top, _, rest = module.partition(".")
        if top == "cdcd":
            if rest and not allowed(room, rest.split(".")[0]):
                yield f"{room} may not import {module}"
        elif room not in LIBRARY_ROOMS.get(top, {room}):
            yield f"{top} belongs to {sorted(LIBRARY_ROOMS[top])}"
        elif room in PURE_ROOMS and top in NOT_IN_PURE_ROOMS:
            yield f"{room} is pure and may not import {top}"


def test_each_file_keeps_the_import_rules() -> None:
    """All files are one case: each worker of the suite collects each case."""
    files = [path for path in FILES if path != PACKAGE / "__init__.py"]
    assert len(files) > 400
    assert [f"{path}: {broken}" for path in files for broken in forbidden_imports(path)] == []


def rooms_above(path: Path) -> Iterator[str]:
    """Yield each import, of a file of `cdcd.spark`, from a room that is not below its own."""
    own = path.relative_to(PACKAGE / "spark").parts[0].removesuffix(".py")
    for module in imported(path):
        if not module.startswith("cdcd.spark."):
            continue
        room = module.split(".")[2]
        if room != own and ROOMS_OF_SPARK.index(room) >= ROOMS_OF_SPARK.index(own):
            yield f"{own} may not import {module}"


def test_a_room_of_the_reading_side_imports_only_rooms_below_it() -> None:
    folder = PACKAGE / "spark"
    files = [
        path
        for path in folder.rglob("*.py")
        if path != folder / "__init__.py" and "discovery" not in path.parts
    ]
    assert len(files) > 100
    assert [f"{path}: {broken}" for path in files for broken in rooms_above(path)] == []


PURE_FILES = [path for path in PACKAGE.rglob("*.py") if room_of(path) in PURE_ROOMS]
CLOCK_CALLS = {"now", "today", "utcnow"}


def impurities(path: Path) -> Iterator[str]:
    """Yield each place of a file that reads the clock, opens a file or awaits."""
    for node in ast.walk(syntax_tree(path.read_text(), str(path))):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"line {node.lineno}: a pure package has no async code"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in CLOCK_CALLS:
                yield f"line {node.lineno}: reads the clock by {called.attr}()"
            elif isinstance(called, ast.Name) and called.id in {"open", "print", "input"}:
                yield f"line {node.lineno}: {called.id}()"


def test_a_pure_room_has_no_clock_no_files_and_nothing_to_await() -> None:
    assert len(PURE_FILES) > 100
    assert [f"{path}: {found}" for path in PURE_FILES for found in impurities(path)] == []


@pytest.mark.parametrize(
    ("importer", "room", "expected"),
    [
        ("process", "source", True),
        ("cli", "source", True),
        ("snapshot", "source", True),
        ("source", "snapshot", False),
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
        ("spark", "session", False),
        ("spark", "registry", True),
        ("spark", "config", True),
        ("config", "spark", False),
        ("process", "spark", False),
        ("recovery", "model", True),
        ("recovery", "source", False),
        ("recovery", "config", False),
        ("monitoring", "recovery", True),
        ("monitoring", "session", False),
        ("verify", "snapshot", True),
        ("verify", "pipeline", False),
        ("cli", "verify", True),
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


def test_what_a_c_extension_imports_and_includes_is_seen() -> None:
    """One example of each kind, so that a pattern that finds nothing fails."""
    reading = set(imported(PACKAGE / "source" / "reading.pyx"))
    assert {"cdcd.function_address", "cdcd.model", "cdcd.source", "libc.stdint", "cdcd.big_endian"} <= reading
    assert "ctypes" in set(imported(PACKAGE / "function_address.pxi"))
    assert "cdcd.frame_layout" in set(imported(PACKAGE / "frame_layout.pxi"))
    assert "cdcd.avro.rows" in set(imported(PACKAGE / "avro" / "plan.py"))


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set().union(*TIERS) | {STANDS_ALONE}
