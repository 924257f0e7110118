"""The result as lines, JSON and metrics; the files of entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.verify.outcome import (
    DIFFERS,
    EQUAL,
    UNKNOWN,
    DifferentRow,
    TableOutcome,
    as_lines,
    as_metrics,
    settle,
    status_of,
)
from cdcd.verify.spill import BUFFER_BYTES, SpillFolder, file_bits


def outcome(state: str, **over: object) -> TableOutcome:
    known = {"lsn": "0/1A", "rows_in_source": 1200, "rows_in_topics": 1199, "seconds": 1.5}
    return TableOutcome("public.t", state, **(known if state != UNKNOWN else {}) | over)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ([EQUAL, EQUAL], 0),
        ([EQUAL, DIFFERS, UNKNOWN], 1),
        ([EQUAL, UNKNOWN], 2),
        ([], 2),
    ],
)
def test_the_exit_status(states: list[str], status: int) -> None:
    assert status_of(map(outcome, states)) == status


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({}, EQUAL),
        ({"unknown_rows": 1}, UNKNOWN),
        ({"unknown_rows": 1, "missing": 1}, DIFFERS),
        ({"extra": 1}, DIFFERS),
        ({"different": 1}, DIFFERS),
    ],
)
def test_a_table_with_rows_of_unknown_state_is_not_equal(counts: dict[str, int], state: str) -> None:
    found = outcome(EQUAL, **counts)
    settle(found)
    assert (found.state, bool(found.reason)) == (state, state == UNKNOWN)
    assert ("1 have an unknown state" in "".join(as_lines([found]))) == (state == UNKNOWN)
    assert f'cdcd_verify_unknown_rows{{table="public.t"}} {found.unknown_rows}\n' in as_metrics([found], 1.0)


def test_the_lines() -> None:
    rows = [
        DifferentRow("missing", "00ff"),
        DifferentRow("different", "11ff", ("note",), "shop.public.t", 2, 17),
    ]
    differs = outcome(DIFFERS, missing=1, different=2, rows=rows, not_compared={"added": 5})
    unknown = outcome(UNKNOWN, reason="the table has no unique key")
    assert as_lines([differs, unknown]) == [
        "differs public.t: 1,200 rows in the source at 0/1A, 1,199 in the topics, 1 missing, 2 different (1.5 s)",
        "        column added: not in the records of 5 rows, not compared there",
        "        missing: key 00ff",
        "        different in note: key 11ff, shop.public.t 2@17",
        "        and 1 more rows",
        "unknown public.t: the table has no unique key",
        "0 equal, 1 differs, 1 unknown",
    ]


def test_the_metrics_have_no_rows_of_a_table_that_could_not_be_compared() -> None:
    text = as_metrics([outcome(DIFFERS, extra=3), TableOutcome('a."b"', UNKNOWN)], 1000.4)
    assert "cdcd_verify_finished_timestamp_seconds 1000\n" in text
    assert 'cdcd_verify_state{table="public.t",state="differs"} 1\n' in text
    assert 'cdcd_verify_state{table="a.\\"b\\"",state="unknown"} 1\n' in text
    assert 'cdcd_verify_differing_rows{table="public.t",kind="extra"} 3\n' in text
    assert 'differing_rows{table="a.' not in text
    assert 'unknown_rows{table="a.' not in text
    assert "cdcd_verify_complete 1\n" in text
    assert "cdcd_verify_complete 0\n" in as_metrics([], 1.0, is_complete=False)


def test_entries_are_in_the_file_of_their_key(tmp_path: Path) -> None:
    files = SpillFolder(tmp_path, "e", 20, 2)
    entries = [bytes([first]) + b"x" * 19 for first in (0x00, 0x3F, 0x40, 0xFF)]
    for one in entries:
        files.append(one)
    files.flush()
    assert [list(files.read(number)) for number in files.files] == [
        entries[:2],
        entries[2:3],
        [],
        entries[3:],
    ]


def test_a_torn_entry_is_cut(tmp_path: Path) -> None:
    files = SpillFolder(tmp_path, "e", 8, 0)
    (tmp_path / "e-0000").write_bytes(b"complete" + b"torn")
    files.trim()
    files.append(b"the next")
    files.flush()
    assert list(files.read(0)) == [b"complete", b"the next"]
    files.remove()
    assert list(files.read(0)) == []
    assert list(tmp_path.iterdir()) == []


def test_the_buffer_is_written_when_it_is_full(tmp_path: Path) -> None:
    size = BUFFER_BYTES // 4
    files = SpillFolder(tmp_path, "e", size, 0)
    for _ in range(4):
        files.append(bytes(size))
    assert (tmp_path / "e-0000").stat().st_size == 4 * size


@pytest.mark.parametrize(("entries", "bits"), [(0, 0), (50_000, 0), (150_000, 2), (10**7, 8), (10**12, 12)])
def test_a_file_has_some_ten_thousand_entries(entries: int, bits: int) -> None:
    assert file_bits(entries) == bits
