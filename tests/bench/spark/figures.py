"""`make bench-spark ARGS=--figures`: decoding alone, and the whole way from Kafka, in the rounds of one run.

In: a number of records, and of rounds.  Out: one table of medians: rows per second, and the CPU seconds of a million
rows: of the JVM (in a local session that of the driver and of its executor), of Python, and of the broker.
Invariant: the ways alternate: each round measures each of them once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from tests.bench.spark import decoding, envelopes, kafka
from tests.bench.spark.wanted import said

MILLION = 1e6


class Figure(NamedTuple):
    """A way in one round: rows per second, and CPU seconds of a million rows; None: it has no such process."""

    rate: float
    jvm_s: float | None
    python_s: float | None
    broker_s: float | None

    @property
    def spark_s(self) -> float:
        """The JVM and its workers."""
        return (self.jvm_s or 0.0) + (self.python_s or 0.0)


Way = tuple[str, str]
"""The name of a way, and its columns."""
Round = Callable[[], Iterator[tuple[Way, Figure]]]


def by_figures(rows: int, rounds: int) -> None:
    """Measure all ways in turns, and print the table."""
    wanted = {13: envelopes.all_columns(), 3: envelopes.few_columns()}
    records = envelopes.records(rows)
    with ExitStack() as stack:
        from_avro = stack.enter_context(decoding.spark_rounds(records, wanted))
        pipelines = stack.enter_context(kafka.pipeline_rounds(rows))
        measured: list[Round] = [
            lambda: _python(decoding.python_round(records, wanted)),
            lambda: _from_avro(from_avro()),
            lambda: _from_kafka(pipelines(), rows),
        ]
        found: dict[Way, list[Figure]] = {}
        for _ in range(rounds):
            for way, figure in (one for each in measured for one in each()):
                found.setdefault(way, []).append(figure)
    print(f"{rows} records of {records.nbytes // rows} bytes, {rounds} rounds; from Kafka with local[2]")
    print_table({way: median_of(figures) for way, figures in found.items()})


def median_of(figures: list[Figure]) -> Figure:
    """Return the median of each value."""
    rate, *used = (None if one[0] is None else statistics.median(one) for one in zip(*figures, strict=True))
    return Figure(rate or 0.0, *used)


def print_table(medians: dict[Way, Figure]) -> None:
    """Print a line for each way, and the figures of which something is wanted."""
    print(
        f"{'way':22} {'columns':>9} {'rows/s':>12} {'JVM':>7} {'Python':>7} {'broker':>7}   CPU s a million rows"
    )
    for (name, columns), one in medians.items():
        used = " ".join(_shown(value) for value in (one.jvm_s, one.python_s, one.broker_s))
        print(f"{name:22} {columns:>9} {one.rate:12,.0f} {used}", flush=True)
    native, pruned = medians["native", "13 of 13"], medians["from_avro", "13 of 13"]
    mine, other = medians["cdcd, a table", "Kafka, 13"], medians["kafka + from_avro", "Kafka, 13"]
    for text, value, least in (
        ("native, 13 columns, rows/s a core:", native.rate, decoding.WANTED_RATE),
        ("times that of from_avro with the wanted fields:", native.rate / pruned.rate, decoding.WANTED_RATIO),
        (
            "from Kafka, a table's rate, times that of kafka + from_avro:",
            mine.rate / other.rate,
            kafka.WANTED,
        ),
        (
            "from Kafka, its rows for a second of Spark's CPU, times as many:",
            other.spark_s / mine.spark_s,
            kafka.WANTED,
        ),
    ):
        print(f"{text} {value:,.2f}; {said(value, least)}")


def _shown(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.2f}"


def _python(costs: dict[Way, float]) -> Iterator[tuple[Way, Figure]]:
    for way, cost_s in costs.items():
        yield way, Figure(1 / cost_s, None, cost_s * MILLION, None)


def _from_avro(costs: dict[str, float]) -> Iterator[tuple[Way, Figure]]:
    for name, cost_s in costs.items():
        columns = name if name == "whole" else f"{name} of 13"
        yield ("from_avro", columns), Figure(1 / cost_s, cost_s * MILLION, None, None)


def _from_kafka(lines: list[dict[str, float]], rows: int) -> Iterator[tuple[Way, Figure]]:
    for line in lines:
        used = (line[name] / rows * MILLION for name in ("jvm_s", "python_s", "broker_s"))
        yield (str(line["way"]), "Kafka, 13"), Figure(rows / line["s"], *used)
