"""No hint, message or finding proposes to destroy an object that another daemon may own (F80)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).parents[2]
DESTROYS = re.compile(
    r"pg_drop_replication_slot|pg_terminate_backend|\bdrop (?:it|the slot|an unused slot)\b|--delete\b"
    r"|\bdelete (?:it|the (?:subject|topic|version)s?)\b|\bremove it\b|\brm -"
)
MAY = {
    ("source/slot.py", "pg_drop_replication_slot"): "the statement, not a hint",
    ("source/slot.py", "pg_terminate_backend"): "of a session of this daemon that holds its temporary slot",
    ("errors/source.py", "pg_drop_replication_slot"): "of the slot that cdcd reads, after it was copied",
    ("source/error_map.py", "drop it"): "its owner is asked to",
    ("errors/schemas.py", "delete the subject"): "of a topic that this slot owns",
    ("process/hints.py", "delete the subject"): "of a topic that this slot owns",
    ("config/source.py", "drop the slot"): "what the option does, with the slot that cdcd has read",
    ("cli/arguments.py", "drop the slot"): "what the command does",
    ("cli/drop_slot.py", "drop the slot"): "what the command would do, once it has asked whose the slot is",
}


OF_ITSELF = {"demo", "__pycache__"}
"""Packages with their own servers, or without texts."""


def texts_of(path: Path) -> Iterator[str]:
    """Yield every string of a module except docstrings."""
    tree = syntax_tree(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_text_proposes_to_destroy_a_foreign_object() -> None:
    package = ROOT / "cdcd"
    paths = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in OF_ITSELF]
    found = {
        (str(path.relative_to(package)), match.group())
        for path in paths
        for text in texts_of(path)
        for match in DESTROYS.finditer(text)
    }
    assert found - MAY.keys() == set()
    assert MAY.keys() - found == set(), "entries of MAY that no module has any more"


@pytest.mark.parametrize(
    "page", ["docs/recovery.md", "docs/slot-gone.md", "docs/operate.md", "helm/cdcd/templates/NOTES.txt"]
)
def test_what_a_page_says_of_dropping_a_slot_begins_with_the_command_that_asks_whose_it_is(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "cdcd drop-slot" in text
    before, _, _ = text.partition("pg_drop_replication_slot")
    assert "cdcd drop-slot" in before
