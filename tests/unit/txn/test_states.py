"""The state table of the message flow, and its drawing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.errors import MessageOutOfOrder
from cdcd.pgoutput.messages import MESSAGES, ROWS
from cdcd.txn.states import ROW_TYPES, STEPS, State, draw, step

ROOT = Path(__file__).parents[3]


def test_every_message_is_legal_somewhere() -> None:
    assert {byte for _, byte in STEPS} == set(MESSAGES)


def test_rows_may_come_wherever_one_of_them_may() -> None:
    """A row batch mixes kinds of rows, so one lookup decides for all."""
    for state in State:
        assert len({STEPS.get((state, byte)) for byte in ROW_TYPES}) == 1


def test_an_unlisted_pair_names_state_and_message() -> None:
    with pytest.raises(MessageOutOfOrder, match="Stream Stop outside a transaction"):
        step(State.OUTSIDE, MESSAGES[ord("E")])


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    assert draw() in (ROOT / "docs" / "transactions.md").read_text()


def test_the_drawing_has_a_line_per_message_and_a_column_per_state() -> None:
    header, rule, *lines = draw().splitlines()
    assert [line.split("|")[1].strip() for line in lines] == [row.name for row in ROWS]
    assert {line.count("|") for line in (header, rule, *lines)} == {len(State) + 2}
    assert "| Stream Stop | - | - | close the segment -> outside a transaction | - |" in lines
