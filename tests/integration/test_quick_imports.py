"""`make test-quick` needs only the extra `test`: without Spark, Java and whatever else only other extras have.

In: pyproject.toml, the metadata of the installed packages.  Out: the modules of tests/unit that need another package.
A second virtual environment would prove the same, and takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRA = "test"
IMPORTING = """
import importlib, sys

class Blocked:
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"{name} is not of the extra", name=name)

names, modules = (text.split() for text in sys.stdin.read().split(";"))
sys.meta_path.insert(0, Blocked(set(names)))
for module in modules:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(module, "needs", error.name)
"""


def required(requirements: list[str]) -> set[str]:
    """Return the names of the distributions that these requirements need, directly or not."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        one = waiting.pop()
        for extra in (*one.extras, ""):
            if (one.name, extra) in seen:
                continue
            seen.add((one.name, extra))
            found.add(canonicalize_name(one.name))
            try:
                further = [Requirement(text) for text in requires(one.name) or ()]
            except PackageNotFoundError:
                continue
            waiting += [each for each in further if not each.marker or each.marker.evaluate({"extra": extra})]
    return found


def other_packages() -> set[str]:
    """Return the top-level packages that are installed here and that neither cdcd nor the extra requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    available = required([*project["dependencies"], *project["optional-dependencies"][EXTRA]])
    available |= {"cdcd", "pip", "setuptools"}
    return {
        package
        for package, distributions in packages_distributions().items()
        if not available & {canonicalize_name(name) for name in distributions}
    }


def modules() -> list[str]:
    """Return all modules of tests/unit."""
    paths = sorted((ROOT / "tests" / "unit").rglob("*.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def imported(blocked: set[str], names: list[str]) -> list[str]:
    """Import modules in a process of its own without the blocked packages; return which need them."""
    process = subprocess.run(
        [sys.executable, "-c", IMPORTING],
        cwd=ROOT,
        input=f"{' '.join(blocked)};{' '.join(names)}",
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.nightly  # it imports each quick test in a process of its own
def test_no_quick_test_needs_a_package_of_another_extra() -> None:
    blocked = other_packages()
    assert {"pyspark", "pandas", "mypy"} <= blocked
    assert not {"pytest", "pyarrow", "fastavro", "hypothesis"} & blocked
    assert len(modules()) > 100
    assert imported(blocked, modules()) == []


def test_a_module_that_needs_spark_is_found() -> None:
    module = "tests.spark.unit.test_two_slots"
    assert imported({"pyspark"}, [module]) == [f"{module} needs pyspark"]
