"""Every file, name and package in docs/architecture.md exists, and every package is on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cdcd"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAMED = re.compile(r"`([\w/]+\.(?:py|pxi|pyx))::([\w.]+)`")
FOLDERS = re.compile(r"`([\w/]+)/`")
NAMES = sorted(set(NAMED.findall(TEXT)))
IN_C = re.compile(r"^(?:cp?def|def|cdef class) .*?(\w+)\(", re.M)


def defined(path: Path) -> set[str]:
    """Return the classes, functions, methods and values of a module; methods with the name of their class."""
    text = path.read_text()
    if path.suffix != ".py":
        return set(IN_C.findall(text))
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found.add(prefix + node.name)
                walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            elif isinstance(node, ast.Assign):
                found.update(prefix + one.id for one in node.targets if isinstance(one, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    walk(syntax_tree(text).body, "")
    return found


@pytest.mark.parametrize(("path", "name"), NAMES, ids=[f"{path}::{name}" for path, name in NAMES])
def test_a_name_on_the_page_is_in_its_file(path: str, name: str) -> None:
    assert (PACKAGE / path).is_file()
    assert name in defined(PACKAGE / path)


def test_the_page_follows_a_row_from_the_socket_to_the_confirmation() -> None:
    """The walk names the code that reads, that commits and that acknowledges."""
    assert {
        ("source/stream.py", "ReplicationStream.read"),
        ("sink/kafka_sink.py", "KafkaSink.commit"),
        ("source/stream.py", "ReplicationStream.queue_flush_lsn"),
    } <= set(NAMES)


def test_each_package_has_its_row_in_the_table_and_no_other_has() -> None:
    table = TEXT[TEXT.index("| package |") : TEXT.index("Pure packages have")]
    rows = {row.group(1) for row in re.finditer(r"^\| `(\w+)/`", table, re.M)}
    assert rows == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", sorted(set(FOLDERS.findall(TEXT))))
def test_a_folder_on_the_page_is_there(folder: str) -> None:
    assert (PACKAGE / folder).is_dir() or (ROOT / folder).is_dir()
