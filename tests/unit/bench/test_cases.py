"""The table of benchmark cases, and the rows written for them."""

from __future__ import annotations

import pytest

from cdcd.errors import ConfigError
from tests.bench.__main__ import ITEMS, chosen
from tests.bench.backlog import statement_of
from tests.bench.cases import CASES
from tests.bench.copying import COPIES


def test_names_are_chosen_by_pattern_in_the_table_s_order() -> None:
    assert [one.name for one in chosen(["latency-100", "insert-1*m"])] == ["insert-1m", "latency-100"]
    assert [one.name for one in chosen([])] == [one.name for one in ITEMS.values() if not one.is_long]
    with pytest.raises(ConfigError, match="insert-7"):
        chosen(["insert-1", "insert-7"])


@pytest.mark.parametrize("share", [0.00001, 0.01, 0.3, 1.0])
def test_a_smaller_case_is_of_whole_transactions(share: float) -> None:
    for case in CASES.values():
        small = case.scaled(share)
        assert small.rows % small.rows_per_transaction == 0, case.name
        assert small.is_one_transaction == case.is_one_transaction, case.name
        assert 1 <= small.rows <= max(case.rows, 2), case.name


def test_a_transaction_writes_its_own_rows() -> None:
    assert statement_of(CASES["delete"], "delete").endswith(
        "WHERE id BETWEEN at AND least(at + per, last + 1) - 1"
    )
    assert statement_of(CASES["topics-500"], "insert").startswith("INSERT INTO spread ")
    assert statement_of(CASES["tables-100"], "insert").startswith("INSERT INTO t0 ")


@pytest.mark.parametrize(
    ("share", "tables", "rows"), [(0.1, 200, 2_000), (0.0001, 2, 20), (1.0, 2_000, 20_000)]
)
def test_a_case_of_many_tables_has_fewer_tables_at_a_smaller_scale(
    share: float, tables: int, rows: int
) -> None:
    scaled = COPIES["snapshot-2000"].scaled(share)
    assert (scaled.tables, scaled.rows) == (tables, rows)
