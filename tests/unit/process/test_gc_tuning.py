"""Garbage collection: permanent objects are excluded, new cycles are still freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from cdcd.process.gc_tuning import tune_gc


class Knot:
    """An object in a reference cycle, which only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    # No unfreeze: each later collection would traverse the thousands of collected tests (tests/conftest.py).
    gc.set_threshold(*threshold)


def test_permanent_objects_are_excluded_and_new_cycles_are_freed() -> None:
    lasting = Knot()
    tune_gc()
    assert all(one is not lasting for one in gc.get_objects())
    knot = weakref.ref(Knot())
    rows = [[] for _ in range(11_000)]
    assert knot() is None
    assert len(rows) == 11_000


def test_a_collection_is_rare() -> None:
    tune_gc()
    before = gc.get_stats()[0]["collections"]
    rows = [[] for _ in range(9_000)]
    assert gc.get_stats()[0]["collections"] <= before + 1
    assert len(rows) == 9_000
