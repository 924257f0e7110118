"""Batches of complete transactions: one read may return hundreds of small ones, which need no individual handling.

In: items in the order of the wire.  Out: the same items, with each sequence of Begin, rows and Commit in a
`TransactionBatch`; and the reverse.
Invariant: `expand` restores the items given to `gather`, except the send time of Begin and Commit, which is not
used, and keepalives between transactions that the next item makes redundant (`_is_needless`). All items that do not
have exactly this form are unchanged.
Wire source: protocol messages Begin and Commit (flags 0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from cdcd.errors import MessageTruncated
from cdcd.frame_layout import (
    BEGIN_BYTES,
    BEGIN_COMMIT_LSN_AT,
    BEGIN_TIME_AT,
    BEGIN_XID_AT,
    COMMIT_BYTES,
    COMMIT_END_LSN_AT,
    COMMIT_LSN_AT,
    FRAME_BYTES,
)
from cdcd.frame_layout import HEADER as FRAME_HEADER
from cdcd.lsn import Lsn
from cdcd.model import Control, Item, Keepalive, PlainItem, RowBatch, TransactionBatch

_BEGIN, _COMMIT = b"B", b"C"
_BEGIN_LSN = slice(BEGIN_COMMIT_LSN_AT, BEGIN_TIME_AT)
_COMMIT_LSN = slice(COMMIT_LSN_AT, COMMIT_END_LSN_AT)


def gather(items: Sequence[Item]) -> list[Item]:
    """Return the items with complete transactions combined into batches."""
    found: list[Item] = []
    pieces: list[bytes] = []
    count = at = 0
    while at < len(items):
        length = _whole_at(items, at)
        if length:
            transaction = items[at : at + length]
            pieces += [item.frames if isinstance(item, RowBatch) else _frame(item) for item in transaction]
            count += 1
            at += length
            continue
        if count and _is_needless(items, at):
            at += 1
            continue
        if count:
            found.append(TransactionBatch(b"".join(pieces), count))
            pieces, count = [], 0
        found.append(items[at])
        at += 1
    if count:
        found.append(TransactionBatch(b"".join(pieces), count))
    return found


def xids_of(transactions: TransactionBatch) -> Iterator[int]:
    """Yield the transaction ids of a batch. Raises MessageTruncated."""
    data = transactions.frames
    for kind, _, at, _ in _frames(data):
        if kind == _BEGIN[0]:
            yield _xid_at(data, at)


def transactions_of(transactions: TransactionBatch) -> Iterator[tuple[int, Lsn, RowBatch | None]]:
    """Yield the id, the commit LSN and the rows of each transaction, None without rows. Raises MessageTruncated."""
    data, xid, commit_lsn, begun, rows = transactions.frames, 0, 0, 0, 0
    for kind, _, at, end in _frames(data):
        if kind == _BEGIN[0]:
            commit_lsn = int.from_bytes(data[at + BEGIN_COMMIT_LSN_AT : at + BEGIN_TIME_AT], "big")
            xid = _xid_at(data, at)
            begun, rows = end, 0
        elif kind == _COMMIT[0]:
            yield xid, commit_lsn, RowBatch(data[begun : at - FRAME_BYTES], rows) if rows else None
        else:
            rows += 1


def _xid_at(data: bytes, at: int) -> int:
    """Return the transaction id of a Begin at this offset."""
    return int.from_bytes(data[at + BEGIN_XID_AT : at + BEGIN_BYTES], "big")


def _is_needless(items: Sequence[Item], at: int) -> bool:
    """Return whether a keepalive requests no reply and the next item makes it redundant.

    The next item is a keepalive, or a complete transaction that commits no earlier than the keepalive's position. A
    walsender that has sent all data sends keepalives (F11): at a steady rate, two per transaction.
    """
    keepalive = items[at]
    if not isinstance(keepalive, Keepalive) or keepalive.reply_requested or at + 1 == len(items):
        return False
    behind = items[at + 1]
    if isinstance(behind, Keepalive):
        return not behind.reply_requested and behind.wal_end_lsn >= keepalive.wal_end_lsn
    if not isinstance(behind, Control) or not _whole_at(items, at + 1):
        return False
    return int.from_bytes(behind.payload[_BEGIN_LSN], "big") >= keepalive.wal_end_lsn


def _whole_at(items: Sequence[Item], at: int) -> int:
    """Return the number of items from `at` on that form a complete transaction: 2, 3, or 0 if they do not."""
    begin = items[at]
    if not isinstance(begin, Control) or begin.payload[:1] != _BEGIN or len(begin.payload) != BEGIN_BYTES:
        return 0
    end = at + 1
    if end < len(items) and isinstance(rows := items[end], RowBatch) and rows.xid is None:
        end += 1
    commit = items[end] if end < len(items) else None
    if not isinstance(commit, Control) or len(commit.payload) != COMMIT_BYTES:
        return 0
    is_its = (
        commit.payload[:COMMIT_LSN_AT] == _COMMIT + b"\0"
        and commit.payload[_COMMIT_LSN] == begin.payload[_BEGIN_LSN]
    )
    return end + 1 - at if is_its else 0


def _frame(item: Item) -> bytes:
    assert isinstance(item, Control)
    return FRAME_HEADER.pack(len(item.payload), item.lsn) + item.payload


def expand(transactions: TransactionBatch) -> Iterator[PlainItem]:
    """Yield the items from which the batch was gathered. Raises MessageTruncated."""
    data, begun, rows = transactions.frames, 0, 0
    for kind, lsn, at, end in _frames(data):
        if kind in _BEGIN + _COMMIT:
            if rows:
                yield RowBatch(data[begun : at - FRAME_BYTES], rows)
            yield Control(lsn, data[at:end])
            begun, rows = end, 0
        else:
            rows += 1


def _frames(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield each message's type, LSN, start offset and end offset. Raises MessageTruncated."""
    at = 0
    while at < len(data):
        try:
            length, lsn = FRAME_HEADER.unpack_from(data, at)
            at += FRAME_BYTES
            kind = data[at]
        except (struct.error, IndexError):
            raise MessageTruncated("a transaction batch ends inside a frame") from None
        yield kind, lsn, at, at + length
        at += length
