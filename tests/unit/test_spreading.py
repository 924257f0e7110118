"""Which tests run on the worker that has Spark."""

from __future__ import annotations

from pathlib import Path

from tests.support.spreading import costly_scope

TEXT = """
import pytest

@pytest.fixture
def order(spark): ...

@pytest.fixture
def changes(order): ...

def test_direct(spark): ...

def test_by_fixtures(changes): ...

def test_by_name(request):
    request.getfixturevalue("spark")

@pytest.mark.usefixtures("order")
def test_used(): ...

def test_without(topics): ...
"""


def scopes(root: Path, text: str) -> dict[str, str | None]:
    file = root / "tests" / "spark" / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    names = ("direct", "by_fixtures", "by_name", "used", "without")
    return {name: costly_scope(f"tests/spark/test_it.py::test_{name}[1-a]", root) for name in names}


def test_tests_that_use_spark_have_its_scope(tmp_path: Path) -> None:
    assert scopes(tmp_path, TEXT) == {
        "direct": "spark",
        "by_fixtures": "spark",
        "by_name": "spark",
        "used": "spark",
        "without": None,
    }


def test_a_file_with_costly_servers_starts_them_once(tmp_path: Path) -> None:
    assert set(scopes(tmp_path / "both", f"{TEXT}\n# own_broker").values()) == {"spark"}
    without = "def test_without(own_broker): ..."
    assert scopes(tmp_path / "servers", without)["without"] == "own brokers"


def test_a_fault_with_a_mirror_runs_where_spark_is() -> None:
    test = (
        "tests/faults/test_fault_02_snapshot_kills.py::test_an_interrupted_snapshot_loses_and_repeats_nothing"
    )
    assert costly_scope(f"{test}[few-18-2000]", Path(__file__).parents[2]) == "spark"
