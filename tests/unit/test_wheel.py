"""The wheel has all modules that users run and import, and none that only tests need."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FIND = SETUPTOOLS["packages"]["find"]
TOP_LEVELS = [ROOT / one for one in reversed(FIND["where"])]
"""The folders whose packages are at the top level of the wheel, inner ones first."""


def module_of(path: Path) -> str:
    """Return the name under which a file of the wheel is imported."""
    top = next(one for one in TOP_LEVELS if path.is_relative_to(one))
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted((ROOT / "cdcd").rglob("*.py"))}
STARTED = {
    "cdcd.__main__": "python -m cdcd",
    "cdcd.cli": "the command cdcd",
    "cdcd.demo.stack.__main__": "python -m cdcd.demo.stack",
    "cdcd.spark.__main__": "python -m cdcd.spark",
    "cdcd.spark.decoding.decode": "readers import it",
    "cdcd.spark.mirroring.start": "readers import it",
    "cdcd.spark.testing": "the tests of readers import it",
    "pyspark_cdcd": "Spark imports it",
}


def imports(path: Path) -> set[str]:
    """Return the modules of cdcd that a file imports, and their parent packages."""
    names: set[str] = set()
    for node in ast.walk(syntax_tree(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in FILES:
            names.add(node.value)  # importlib.import_module, python -m
    parents = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    return (names | parents) & FILES.keys()


def test_each_module_is_reached_from_what_users_start_or_import() -> None:
    reached: set[str] = set()
    todo = set(STARTED)
    while todo:
        module = todo.pop()
        reached.add(module)
        todo |= imports(FILES[module]) - reached
    assert FILES.keys() - reached == set(), "only tests import these modules: move them to tests/"


@pytest.mark.parametrize("module", STARTED)
def test_what_users_start_is_there(module: str) -> None:
    assert module in FILES


def test_the_wheel_has_all_packages_of_cdcd_and_no_other() -> None:
    chosen = {name: FIND[name] for name in ("include", "exclude")}
    folders = {
        top.joinpath(*package.split("."))
        for top in TOP_LEVELS
        for package in find_packages(str(top), **chosen)
    }
    assert folders == {path.parent for path in FILES.values()}


def test_the_wheel_has_the_files_that_are_named_and_no_other() -> None:
    assert SETUPTOOLS["include-package-data"] is False
    named = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    tracked = {path for path in (ROOT / "cdcd").rglob("*") if path.suffix not in NOT_DATA and path.is_file()}
    assert named == tracked


NOT_DATA = {".py", ".pyc", ".so", ".pyx", ".pxi", ".pxd", ".c"}
"""Modules, and sources and results of C extensions; package-data must list any other file."""
