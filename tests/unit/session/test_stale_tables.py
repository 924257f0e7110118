"""Which table is copied first, and when a snapshot halts (F81)."""

from __future__ import annotations

from cdcd.errors import SnapshotStale
from cdcd.session.stale_tables import TRIES, StaleTables


def stale(table: str) -> SnapshotStale:
    return SnapshotStale("another file", table=table)


def test_tables_that_were_stale_go_first_and_the_others_keep_their_order() -> None:
    tables = StaleTables()
    assert not any(map(tables.is_met, "abcd"))
    assert not tables.is_given_up(stale("d"))
    assert not tables.is_given_up(stale("b"))
    assert [one for one in "abcd" if tables.is_met(one)] == ["b", "d"]
    tables.forget()
    assert not any(map(tables.is_met, "abcd"))


def test_each_table_is_counted_by_itself_and_what_names_none_not_at_all() -> None:
    tables = StaleTables()
    for _ in range(TRIES - 1):
        assert not tables.is_given_up(stale("a"))
        assert not tables.is_given_up(stale("b"))
    for _ in range(TRIES):
        assert not tables.is_given_up(SnapshotStale("the exported snapshot ended"))
    assert tables.is_given_up(stale("a"))
    tables.forget()
    assert not tables.is_given_up(stale("a"))
