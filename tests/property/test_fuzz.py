"""The fuzz targets: a short run with a fixed seed, and every stored input (`make fuzz` runs longer)."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from tests import fuzz
from tests.fuzz.corpus import corpus
from tests.fuzz.mutator import inputs
from tests.fuzz.targets import MAX_INPUT_BYTES, TARGETS
from tests.support.nightly import nightly

CRASHES = Path(fuzz.__file__).parent / "crashes"


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("decoder", 6_000),
        nightly("decoder", 40_000),
        ("frames", 8_000),
        ("assembler", 1_500),
        ("messages", 150),
        nightly("messages", 4_000),
        ("reading", 600),
        nightly("reading", 4_000),
        ("rows", 600),
        ("transactions", 600),
        ("columns", 150),
        nightly("columns", 1_500),
        nightly("frames", 20_000),
        nightly("assembler", 4_000),
        nightly("rows", 1_500),
        nightly("transactions", 1_500),
    ],
)
def test_no_input_raises_anything_but_the_documented_errors(target: str, runs: int) -> None:
    for data in itertools.islice(inputs(corpus(target), Random(1)), runs):
        TARGETS[target](data)


@pytest.mark.parametrize("runs", [70, nightly(1_500)])
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_costs_more_memory_than_a_multiple_of_its_size(target: str, runs: int) -> None:
    worst_bytes = 0
    for data in itertools.islice(inputs(corpus(target), Random(2)), runs):
        tracemalloc.start()
        TARGETS[target](data)
        worst_bytes = max(worst_bytes, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert worst_bytes < 500 * MAX_INPUT_BYTES


def stored(below: Path) -> list[tuple[str, Path]]:
    """Return the stored inputs, each with the target that its folder names."""
    return [(path.parent.name, path) for path in sorted(below.rglob("*")) if path.is_file()]


def run_stored(below: Path) -> None:
    for target, path in stored(below):
        TARGETS[target](path.read_bytes())


def test_inputs_that_once_crashed_a_target_pass() -> None:
    """Each target has a folder with at least one stored input, so that no target is skipped."""
    assert {target for target, _ in stored(CRASHES)} == set(TARGETS)
    run_stored(CRASHES)


def test_an_input_that_crashes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(data: bytes) -> None:
        assert data != b"planted"

    monkeypatch.setitem(TARGETS, "frames", crash)
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "crash-1").write_bytes(b"other")
    run_stored(tmp_path)
    (tmp_path / "frames" / "crash-2").write_bytes(b"planted")
    with pytest.raises(AssertionError):
        run_stored(tmp_path)
