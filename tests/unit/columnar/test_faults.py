"""The numbers of faults are those of the C extension, and none has two meanings."""

from __future__ import annotations

import re
from pathlib import Path

import cdcd.columnar
from cdcd.columnar.faults import REASONS, Fault

INPUT = Path(cdcd.columnar.__file__).parent / "_arrow" / "input.pxi"
OTHER_NAMES = {"DECIMAL_DIGITS": "DECIMAL"}
OF_THE_EXTENSION = {"OK", "NO_MEMORY", "UNKNOWN_SCHEMA"}


def test_each_number_has_one_meaning() -> None:
    (block,) = re.findall(r"^cdef enum:\n((?:    \w+ = \d+\n)+)", INPUT.read_text(), re.MULTILINE)[:1]
    found = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", block)}
    own = {name: number for name, number in found.items() if name in OF_THE_EXTENSION}
    shared = {OTHER_NAMES.get(name, name): found[name] for name in found.keys() - own}
    faults = {one.name: one.value for one in Fault}
    assert {name: faults.get(name) for name in shared} == shared
    assert not {one.value for one in Fault} & set(own.values())
    assert REASONS.keys() == set(Fault)
