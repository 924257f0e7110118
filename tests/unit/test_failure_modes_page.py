"""docs/failure-modes.md defines each failure number in code and tests, and no text for users has such a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).parents[2]
CYTHON = (".pyx", ".pxd", ".pxi")
PAGE = ROOT / "docs" / "failure-modes.md"
NUMBER = re.compile(r"\bF(\d{1,2})\b")
RANGE = re.compile(r"\bF(\d{1,2}) to F(\d{1,2})\b")
FAULT = re.compile(r"\bfaults? (?:number )?F\d", re.I)
FAULT_FILE = re.compile(r"test_fault_(\d\d)_")
FAULT_NUMBER = re.compile(r"\bfaults? (\d{1,2})\b", re.I)
ENTRY = re.compile(
    r"^### F(?P<number>\d+)\n\n"
    r"\*\*(?P<name>[^*]+)\.\*\*\s(?P<failure>.+?)\n\n"
    r"- \*\*Rule:\*\*\s(?P<rule>.+?)\n- \*\*Implemented in:\*\*\s(?P<kept>.+?)\n- \*\*Tests:\*\*\s(?P<tests>.+?)\n\n",
    re.M | re.S,
)
LATE = re.compile(r"pytest\.mark\.(nightly|long)\b")
QUOTED = re.compile(r"`([^`]+)`")

TEXT = PAGE.read_text()
ENTRIES = {int(found["number"]): found for found in ENTRY.finditer(TEXT)}


def numbers(text: str) -> set[int]:
    """Return the numbers that a text names, including those inside a range."""
    spans = (range(int(first), int(last) + 1) for first, last in RANGE.findall(text))
    return {int(number) for number in NUMBER.findall(text)}.union(*spans)


def sources(*folders: str) -> list[Path]:
    found = (
        path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
    )
    return sorted(
        path for path in found if path.suffix in (".py", ".pyi", *CYTHON) and path != Path(__file__)
    )


@cache
def named() -> frozenset[int]:
    """Return all numbers in the code and its tests."""
    return frozenset().union(*(numbers(path.read_text()) for path in sources("cdcd", "tests")))


def quoted(entry: re.Match[str], part: str) -> list[str]:
    return QUOTED.findall(entry[part])


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions that a file defines."""
    return frozenset(one.name for one in definitions(syntax_tree(path.read_text())))


def definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def at_each_change(path: Path) -> frozenset[str]:
    """Return the functions of a file that are not marked as a whole to run only at night, or for many minutes."""
    tree = syntax_tree(path.read_text())
    marks = [
        one.value for one in tree.body if isinstance(one, ast.Assign) and "pytestmark" in ast.unparse(one)
    ]
    if any(LATE.search(ast.unparse(one)) for one in marks):
        return frozenset()
    return frozenset(
        one.name
        for one in definitions(tree)
        if not any(LATE.fullmatch(ast.unparse(mark)) for mark in one.decorator_list)
    )


# --- the page ---


def test_each_number_that_is_named_has_an_entry() -> None:
    assert sorted(named() - ENTRIES.keys()) == []


def test_each_entry_is_named_somewhere() -> None:
    assert sorted(ENTRIES.keys() - named()) == []


def test_every_heading_is_an_entry_and_every_entry_is_whole() -> None:
    headings = [int(number) for number in re.findall(r"^### F(\d+)$", TEXT, re.M)]
    assert headings == list(ENTRIES)
    assert len(set(headings)) == len(headings), "a number is defined twice"
    assert [number for number, entry in ENTRIES.items() if "### F" in entry[0][4:]] == []


def test_the_entries_of_a_subject_are_in_their_order_and_the_index_has_them_all() -> None:
    for subject in TEXT.split("\n## ")[1:]:
        found = [int(number) for number in re.findall(r"^### F(\d+)$", subject, re.M)]
        assert found == sorted(found), subject.partition("\n")[0]
    index = TEXT.partition("\n## ")[0]
    assert [int(number) for number in re.findall(r"\[F\d+\]\(#f(\d+)\)", index)] == sorted(ENTRIES)


def test_links_inside_the_page_lead_to_the_number_that_they_show() -> None:
    links = re.findall(r"\[F(\d+)\]\(#f(\d+)\)", TEXT)
    assert [link for link in links if link[0] != link[1] or int(link[0]) not in ENTRIES] == []


def test_each_entry_names_modules_that_exist() -> None:
    paths = {number: quoted(entry, "kept") for number, entry in ENTRIES.items()}
    assert [number for number, named_paths in paths.items() if not named_paths] == []
    assert [
        (number, path)
        for number, named_paths in paths.items()
        for path in named_paths
        if not (path.startswith("cdcd/") and (ROOT / path).is_file())
    ] == []


def test_every_path_on_the_page_exists() -> None:
    paths = (one.partition("::")[0] for one in QUOTED.findall(TEXT) if one.startswith(("cdcd/", "tests/")))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def named_tests(entry: re.Match[str]) -> list[tuple[str, str]]:
    """Return the path and the function of each test that an entry names."""
    return [(path, name) for path, _, name in (test.partition("::") for test in quoted(entry, "tests"))]


def is_test(path: str, name: str) -> bool:
    """Return whether a file of the tests defines this test."""
    file = ROOT / path
    is_named = path.startswith("tests/") and name.startswith("test_")
    return is_named and file.is_file() and name in functions(file)


def test_each_entry_names_tests_that_exist() -> None:
    tests = {number: named_tests(entry) for number, entry in ENTRIES.items()}
    assert [number for number, found in tests.items() if not found] == []
    assert [
        (number, path, name)
        for number, found in tests.items()
        for path, name in found
        if not is_test(path, name)
    ] == []


def test_each_entry_names_a_test_that_runs_at_each_change() -> None:
    assert [
        number
        for number, entry in ENTRIES.items()
        if not any(name in at_each_change(ROOT / path) for path, name in named_tests(entry))
    ] == []


# --- texts for users have no number ---


def literals(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module that a user may see: all except docstrings."""
    documentation = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in documentation:
            yield one.value


def strings(path: Path) -> Iterator[str]:
    """Yield the strings of a file. `ast` cannot parse Cython, so there all quoted text within a line counts.

    A file without any number is not parsed.
    """
    text = path.read_text()
    if path.suffix not in CYTHON:
        yield from literals(syntax_tree(text)) if NUMBER.search(text) else ()
        return
    for line in text.splitlines():
        if '"""' not in line:
            yield from re.findall(r'"([^"]*)"', line.partition("  # ")[0].replace("c'\"'", ""))


def test_no_string_has_a_number() -> None:
    found = ((path, text) for path in sources("cdcd") for text in strings(path))
    assert [f"{path}: {text}" for path, text in found if NUMBER.search(text)] == []


def test_no_docstring_that_is_a_help_text_has_a_number() -> None:
    shown = (path.read_text() for path in sources("cdcd") if "__doc__" in path.read_text())
    assert [text for text in shown if NUMBER.search(ast.get_docstring(syntax_tree(text)) or "")] == []


def pages() -> list[Path]:
    readable = (".md", ".yaml", ".yml", ".json", ".tpl", ".txt", ".sql")
    below = (path for folder in ("config", "deploy", "docs", "helm") for path in (ROOT / folder).rglob("*"))
    found = [path for path in below if path.suffix in readable and path != PAGE]
    return sorted([*found, *(ROOT / name for name in ("CHANGELOG.md", "README.md", "SECURITY.md"))])


def test_no_page_for_operators_has_a_number() -> None:
    assert (paths := pages())
    assert [
        (str(path), NUMBER.findall(path.read_text())) for path in paths if NUMBER.search(path.read_text())
    ] == []


# --- faults have other numbers ---


def test_a_fault_has_a_plain_number() -> None:
    texts = [*sources("cdcd", "tests"), *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    assert [str(path) for path in texts if FAULT.search(path.read_text())] == []


def other_faults(path: Path) -> set[int]:
    """Return the faults that the docstring of a fault's test names, except its own."""
    text = ast.get_docstring(syntax_tree(path.read_text())) or ""
    return {int(found) for found in FAULT_NUMBER.findall(text)} - {int(str(FAULT_FILE.search(path.name)[1]))}  # type: ignore[index]


def test_the_test_of_a_fault_names_no_other_one() -> None:
    assert (paths := sorted((ROOT / "tests").rglob("test_fault_[0-9]*.py")))
    assert [(path.name, other_faults(path)) for path in paths if other_faults(path)] == []
