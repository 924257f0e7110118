"""A condition that fails for a row is named in the error; other errors of the copy remain as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import CdcdError, SourceError, SourceSetup, SourceUnavailable
from cdcd.snapshot.condition import failed_for_a_row
from cdcd.snapshot.units import CopiedTable

TABLE = CopiedTable(17, "s", "t", ("id",), None, is_partitioned=False, where="note::int > 0")
BAD_ROW = SourceError("invalid input syntax for type integer", sqlstate="22P02")


def test_a_condition_that_fails_for_a_row_is_named() -> None:
    error = failed_for_a_row(BAD_ROW, TABLE)
    assert isinstance(error, SourceSetup)
    assert error.context == {"table": "s.t", "sqlstate": "22P02"}
    assert "`where` of snapshot.overrides" in error.advice
    assert TABLE.where not in str(error)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("error", "table"),
    [
        (BAD_ROW, replace(TABLE, where=None)),
        (
            SourceError(
                "the server cannot convert a text to UTF-8", hint="correct the row", sqlstate="22P05"
            ),
            TABLE,
        ),
        (SourceUnavailable("the connection was lost"), TABLE),
        (SourceSetup("permission denied", sqlstate="42501"), TABLE),
    ],
)
def test_another_error_remains_as_it_is(error: CdcdError, table: CopiedTable) -> None:
    assert failed_for_a_row(error, table) is error
