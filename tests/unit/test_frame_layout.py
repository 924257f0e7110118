"""The frame layout matches the protocol's messages, and the C extensions use the same values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdcd import frame_layout as layout
from cdcd.model import TransactionBatch
from cdcd.pgoutput import messages as m
from cdcd.pgoutput.messages import TupleData
from tests.support.pgoutput_encode import encode, row_batch_of

BEGIN = m.Begin(final_lsn=0x0102030405060708, commit_pg_us=-2, xid=0x0A0B0C0D)
COMMIT = m.Commit(commit_lsn=0x1112131415161718, end_lsn=0x2122232425262728, commit_pg_us=-3)


def at(data: bytes, begin: int, size: int) -> int:
    return int.from_bytes(data[begin : begin + size], "big")


def test_begin_and_commit_are_laid_out_as_the_protocol_says() -> None:
    begin, commit = encode(BEGIN, in_stream=False), encode(COMMIT, in_stream=False)
    assert (len(begin), len(commit)) == (layout.BEGIN_BYTES, layout.COMMIT_BYTES)
    assert at(begin, layout.BEGIN_COMMIT_LSN_AT, 8) == BEGIN.final_lsn
    assert at(begin, layout.BEGIN_TIME_AT, 8) == BEGIN.commit_pg_us % 2**64
    assert at(begin, layout.BEGIN_XID_AT, 4) == BEGIN.xid
    assert commit[layout.COMMIT_FLAGS_AT] == 0
    assert at(commit, layout.COMMIT_LSN_AT, 8) == COMMIT.commit_lsn
    assert at(commit, layout.COMMIT_END_LSN_AT, 8) == COMMIT.end_lsn


@pytest.mark.parametrize("xid", [None, 0x0A0B0C0D])
def test_a_row_is_laid_out_as_the_protocol_says(xid: int | None) -> None:
    frames = row_batch_of(
        [(0x1112131415161718, m.Insert(0x01020304, TupleData(()), xid=xid))], xid=xid
    ).frames
    assert at(frames, 0, layout.LENGTH.size) == len(frames) - layout.FRAME_BYTES
    assert at(frames, layout.FRAME_LSN_AT, 8) == 0x1112131415161718
    payload = frames[layout.FRAME_BYTES :]
    assert at(payload, layout.relid_at(xid), layout.RELID_BYTES) == 0x01020304
    if xid is not None:
        assert at(payload, layout.XID_AT, 4) == xid


def test_transactions_know_where_the_first_and_the_last_commit() -> None:
    frames = b""
    for lsn in (7, 8):
        begin = encode(m.Begin(lsn, 0, 1), in_stream=False)
        commit = encode(m.Commit(lsn, lsn + 100, 0), in_stream=False)
        frames += (
            layout.HEADER.pack(len(begin), 1) + begin + layout.HEADER.pack(len(commit), lsn + 50) + commit
        )
    both = TransactionBatch(frames, 2)
    assert (both.commit_lsns, both.last_lsn) == ((7, 8), 58)


def test_the_extensions_read_every_value_from_the_python_module() -> None:
    text = Path(layout.__file__).with_suffix(".pxi").read_text()
    read = re.findall(r"^cdef Py_ssize_t (\w+) = frame_layout\.(\w+)$", text, re.M)
    assert [one for one, other in read if one != other] == []
    checked = re.findall(r"^if (\w+) != frame_layout\.\1:$", text, re.M)
    assert re.findall(r"^    (\w+) = \d+", text, re.M) == checked, (
        "a constant of C is compared when it is loaded"
    )
    assert {*checked, *(name for name, _ in read)} == {
        name for name, value in vars(layout).items() if isinstance(value, int)
    }
    assert len(re.findall("^cdef Py_ssize_t ", text, re.M)) == len(read)
