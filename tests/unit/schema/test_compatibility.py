"""The differences that prevent a reader from reading, and the verdict of each compatibility level."""

from __future__ import annotations

import pytest

from cdcd.errors import SchemaError
from cdcd.schema.compatibility import differences, level_differences
from tests.unit.schema.compatibility_cases import CASES, Case, optional, record

V1 = record(optional("a", "int"))
V2 = record(optional("a", "long"))
V3 = record(optional("a", "long"), optional("b", "string"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_difference_is_reported_with_its_location(case: Case) -> None:
    assert tuple(map(str, differences(case.reader, case.writer))) == case.differs


@pytest.mark.parametrize(
    ("level", "new", "earlier", "is_fine"),
    [
        ("BACKWARD", V2, [V1], True),
        ("BACKWARD", V1, [V2], False),
        ("BACKWARD", V1, [V2, V1], True),
        ("BACKWARD_TRANSITIVE", V1, [V2, V1], False),
        ("FORWARD", V2, [V1], False),
        ("FORWARD", V1, [V2], True),
        ("FORWARD", V3, [V1, V2], True),
        ("FORWARD_TRANSITIVE", V3, [V1, V2], False),
        ("FULL", V3, [V2], True),
        ("FULL", V2, [V1], False),
        ("FULL_TRANSITIVE", V3, [V1, V2], False),
        ("NONE", V1, [V2], True),
        ("FULL_TRANSITIVE", V1, [], True),
    ],
)
def test_a_level_says_who_reads_whom(level: str, new: object, earlier: list[object], is_fine: bool) -> None:
    assert (level_differences(level, new, earlier) == []) is is_fine


def test_what_is_no_schema_is_an_error() -> None:
    with pytest.raises(SchemaError):
        differences({"no": "type"}, "int")
