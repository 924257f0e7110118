"""What is shown of a table's copy: rows of earlier processes too, and nothing that is not known."""

from __future__ import annotations

from cdcd.model import TableCopyState
from cdcd.snapshot.control import TableReport
from cdcd.snapshot.reports import TableReports

RELID = 7


class Counted:
    """Receives the counts."""

    def copied_rows(self, table: str, rows: int) -> None: ...
    def table_copied(self) -> None: ...


class World:
    """Reports, and their clock."""

    def __init__(self, state: TableCopyState) -> None:
        self.now_s = 0.0
        self.reports = TableReports(lambda: self.now_s, Counted())
        self.reports.begin(RELID, state)

    def copied(self, rows: int, seconds: float) -> None:
        self.now_s += seconds
        self.reports.emitted(RELID, rows)

    @property
    def shown(self) -> TableReport:
        (one,) = self.reports.all()
        return one

    def estimate(self, rows: int | None) -> None:
        self.reports._tables[RELID].estimated_rows = rows


def test_the_rows_of_an_earlier_process_count_and_its_time_does_not() -> None:
    world = World(TableCopyState("t", after=("5",), rows=700, rows_before=100))
    assert world.shown.rows == 600
    assert world.shown.rows_per_second is None
    world.estimate(1000)
    world.copied(100, 2)
    assert (world.shown.rows, world.shown.rows_per_second, world.shown.seconds_left) == (700, 50.0, 6.0)


def test_what_ranges_of_a_snapshot_have_left_is_not_known() -> None:
    world = World(TableCopyState("t", after=("0-9",), is_by_blocks=True))
    world.estimate(1000)
    world.copied(100, 2)
    assert (world.shown.rows, world.shown.seconds_left) == (100, None)


def test_a_copy_that_begins_again_has_no_rows() -> None:
    world = World(TableCopyState("t", after=("5",), rows=700))
    world.copied(100, 2)
    world.reports.begin_attempt(RELID, 1000)
    assert world.shown.rows == 0
    world.copied(100, 4)
    assert (world.shown.rows, world.shown.seconds_left) == (100, 36.0)
