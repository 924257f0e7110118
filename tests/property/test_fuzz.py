"""The fuzz targets: a short run with a fixed seed, and every input that ever crashed one (`make fuzz` runs long)."""

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

CRASHES = Path(fuzz.__file__).parent / "crashes"


@pytest.mark.parametrize(("target", "runs"), [("decoder", 40_000), ("frames", 20_000), ("assembler", 4_000)])
def test_no_input_raises_anything_but_the_documented_errors(target: str, runs: int) -> None:
    for data in itertools.islice(inputs(corpus(target), Random(1)), runs):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_costs_more_memory_than_a_multiple_of_its_size(target: str) -> None:
    worst_bytes = 0
    for data in itertools.islice(inputs(corpus(target), Random(2)), 1_500):
        tracemalloc.start()
        TARGETS[target](data)
        worst_bytes = max(worst_bytes, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert worst_bytes < 500 * MAX_INPUT_BYTES


@pytest.mark.parametrize("target", TARGETS)
def test_what_once_crashed_a_target_does_so_no_more(target: str) -> None:
    for path in sorted((CRASHES / target).glob("*")):
        TARGETS[target](path.read_bytes())
