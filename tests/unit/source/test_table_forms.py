"""Which tables have rows that PostgreSQL has changed without sending them."""

from __future__ import annotations

from cdcd.source.table_forms import FoundForms, TableForm, rewritten

BEFORE = {1: TableForm("100", 7, 2), 2: TableForm("200", 8, 2)}


def now(form: TableForm, with_value: tuple[int, ...] = ()) -> dict[int, bool]:
    return rewritten(BEFORE, FoundForms({2: BEFORE[2], 1: form}, {1: with_value} if with_value else {}))


def test_a_table_is_found_by_its_file_and_its_columns_together() -> None:
    assert now(BEFORE[1]) == {}
    assert now(TableForm("101", 7, 2)) == {}, "TRUNCATE, VACUUM FULL"
    assert now(TableForm("100", 9, 2)) == {}, "SET NOT NULL, RENAME"
    assert now(TableForm("100", 9, 3)) == {}, "ADD COLUMN"
    assert now(TableForm("101", 9, 2)) == {1: True}, "ALTER TYPE"
    assert now(TableForm("101", 9, 3)) == {1: True}, "ADD COLUMN with a default that is not constant"


def test_only_columns_that_were_not_there_have_new_values() -> None:
    assert now(TableForm("100", 9, 3), with_value=(3,)) == {1: False}
    assert now(TableForm("100", 9, 4), with_value=(2,)) == {}
    assert now(TableForm("100", 9, 4), with_value=(2, 4)) == {1: False}


def test_a_table_that_was_not_known_is_not_found() -> None:
    assert rewritten({}, FoundForms(BEFORE, {1: (1, 2)})) == {}
