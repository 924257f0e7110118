"""The table of `make bench-spark ARGS=--figures`: medians of the rounds, and what is wanted."""

from __future__ import annotations

import pytest

from tests.bench.spark.figures import Figure, median_of, print_table


def test_a_figure_is_the_median_of_the_rounds_where_there_is_a_process() -> None:
    rounds = [Figure(rate, None, 1e6 / rate, None) for rate in (1.0, 5.0, 4.0)]
    assert median_of(rounds) == Figure(4.0, None, 250_000.0, None)


def test_the_table_has_each_way_and_says_what_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        {
            ("native", "13 of 13"): Figure(3e6, None, 0.33, None),
            ("from_avro", "13 of 13"): Figure(1e6, 1.0, None, None),
            ("cdcd, a table", "Kafka, 13"): Figure(3e5, 1.0, 1.0, 0.5),
            ("kafka + from_avro", "Kafka, 13"): Figure(1e5, 9.0, 0.0, 2.0),
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4 + 4
    assert lines[3].split() == ["cdcd,", "a", "table", "Kafka,", "13", "300,000", "1.00", "1.00", "0.50"]
    assert [line.endswith("not reached") for line in lines[5:]] == [False, True, False, False]
