"""What keeps a comparison from an answer, without servers."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.verify import source, verification
from cdcd.verify.fold import Barriers
from cdcd.verify.outcome import DIFFERS, EQUAL, CannotTell, TableOutcome
from cdcd.verify.records import POSITION, Found

NO_BARRIERS = Barriers(b"", b"", frozenset())
POSITION_10 = POSITION.pack(1, 10, 1, 1)


def question(outcome: TableOutcome, found: Found, incomplete: int = 0, uncopied: int = 0) -> str:
    return verification._open_question(outcome, found, NO_BARRIERS, incomplete, uncopied)


def test_an_equal_table_is_unknown_where_the_topic_does_not_say_so() -> None:
    equal = TableOutcome("public.t", EQUAL)
    assert question(equal, Found()) == ""
    assert "2 rows have an update" in question(equal, Found(), incomplete=2)
    assert "3 rows have no record" in question(equal, Found(), uncopied=3)
    assert "--recopy" in question(equal, Found(former=POSITION_10))
    assert "twice" in question(equal, Found(disordered=POSITION_10))
    assert question(equal, Found(unnumbered=POSITION_10)) == ""


def test_other_values_in_columns_without_numbers_are_no_difference() -> None:
    found = Found(unnumbered=POSITION_10)
    assert "no numbers" in question(TableOutcome("public.t", DIFFERS, different=1), found)
    assert question(TableOutcome("public.t", DIFFERS, different=1, missing=1), found) == ""
    assert question(TableOutcome("public.t", DIFFERS, different=1), Found()) == ""


def test_what_the_publication_does_not_publish_is_named() -> None:
    assert source._unpublished((True, True, True, True)) == []
    assert source._unpublished((True, False, True, None)) == ["update", "truncate"]


def test_a_standby_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[("10:10:",)], [(None,)]])
    monkeypatch.setattr(source, "fetch", lambda *_: next(answers))
    one: Any = source.Source.__new__(source.Source)
    one._connection = one._other = None
    with pytest.raises(CannotTell, match="standby"):
        one._open(1, 1, 1)
