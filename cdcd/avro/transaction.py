"""The bytes that all records of one transaction share, encoded once.

In: TransactionInfo, its timeline, prefix, database, the processing time, cdcd's version.  Out: the constant pieces of
the envelope's `source` block and tail, and the counter of the transaction's changes.
Invariant: `tx_seq` is the number of the last numbered change, and the sum of `counts`; only the encoder increases
them, through `number`.
"""

from __future__ import annotations

from functools import lru_cache

from cdcd.errors import ProtocolError
from cdcd.lsn import Lsn
from cdcd.model import POSTGRES_EPOCH_US, TransactionInfo
from cdcd.schema.varint import MAX_LONG, MIN_LONG, encode_long, encode_string

NULL = b"\x00"
SOME = b"\x02"


def optional_long(n: int | None) -> bytes:
    """Return a ["null", "long"]."""
    return NULL if n is None else SOME + encode_long(n)


def optional_of_origin(n: int | None) -> bytes:
    """Return a ["null", "long"], null where a long cannot hold it: an origin may set any time and any LSN."""
    return optional_long(n if n is not None and MIN_LONG <= n <= MAX_LONG else None)


def encode_lsn(lsn: Lsn) -> bytes:
    """Return an LSN as a long. Raises ProtocolError where a long cannot hold it: no server reaches such an LSN."""
    if lsn > MAX_LONG:
        raise ProtocolError("an LSN has more than 63 bits", lsn=lsn)
    return encode_long(lsn)


def optional_string(text: str | None) -> bytes:
    """Return a ["null", "string"]."""
    return NULL if text is None else SOME + encode_string(text.encode())


@lru_cache(maxsize=16)
def _strings(*texts: str) -> bytes:
    return b"".join(encode_string(text.encode()) for text in texts)


class TransactionContext:
    """The constants of one transaction's records and its counter `tx_seq` (0 before the first change).

    `timeline` is the timeline of the commit LSN, `name` the topic prefix, `now_us` the processing time in
    microseconds of the Unix epoch. With `has_block` each change gets Debezium's `transaction` block, and `counts` has
    the number of changes by table; without, `counts` is None.
    """

    __slots__ = (
        "_after_ts_ms",
        "_before_ts_ms",
        "_block_head",
        "_by_relation",
        "_commit",
        "_commit_lsn_text",
        "_head",
        "_times_and_id",
        "_ts_ms",
        "after_lsn",
        "counts",
        "id",
        "info",
        "tail",
        "timeline",
        "timeline_bytes",
        "tx_seq",
    )

    def __init__(
        self,
        info: TransactionInfo,
        *,
        timeline: int,
        name: str,
        database: str,
        now_us: int,
        version: str,
        has_block: bool = False,
    ) -> None:
        self.info = info
        self.timeline = timeline
        self.tx_seq = 0
        self.id = f"{info.xid}:{info.commit_lsn}"
        self.counts: dict[str, int] | None = {} if has_block else None
        self.timeline_bytes = encode_long(timeline)
        self._commit = self.timeline_bytes + encode_lsn(info.commit_lsn)  # F58: timelines repeat LSNs
        self._block_head = SOME + encode_string(self.id.encode())
        commit_us = info.commit_pg_us + POSTGRES_EPOCH_US
        self._ts_ms = encode_long(commit_us // 1000)
        snapshot = NULL + _strings(str(info.snapshot) or "false")  # branch 0 is the string
        self._before_ts_ms = _strings(version, "postgresql", name)
        self._after_ts_ms = snapshot + _strings(database) + SOME
        self._head = self._before_ts_ms + self._ts_ms + self._after_ts_ms
        self._times_and_id = (
            optional_of_origin(commit_us) + optional_of_origin(commit_us * 1000),
            optional_long(info.xid or None),
        )
        self._commit_lsn_text = b'["%d","' % info.commit_lsn
        self._by_relation: dict[bytes, bytes] = {}
        self.after_lsn = (
            NULL  # xmin
            + optional_string(info.origin)
            + optional_of_origin(info.origin_lsn)
            + self._commit
        )
        self.tail = optional_long(now_us // 1000) + optional_long(now_us) + optional_long(now_us * 1000)

    def source_until_tx_seq(self, schema_and_table: bytes, lsn: int) -> bytes:
        """Return the `source` block up to `tx_seq` for a change at `lsn` of an already encoded table name."""
        middle = self._by_relation.get(schema_and_table)
        if middle is None:
            times, xid = self._times_and_id
            middle = self._by_relation[schema_and_table] = times + schema_and_table + xid + SOME
        sequence = encode_string(self._commit_lsn_text + b'%d"]' % lsn)
        return self._head + sequence + middle + encode_lsn(lsn) + self.after_lsn

    def flat_middle(self, op: bytes, is_deleted: bool) -> bytes:
        """Return the flat format's fields from op to ts_ms; `op` is already encoded."""
        return b"".join(
            (op, b"\x01" if is_deleted else b"\x00", self._commit, encode_long(self.tx_seq), self._ts_ms)
        )

    def pieces(self) -> tuple[bytes, ...]:
        """Return the pieces that the compiled row codec assembles for each row, in the order of the record.

        The fields before `ts_ms`; `ts_ms`; the fields up to the sequence; the sequence up to the row's LSN; times;
        xid; the fields after the row's LSN; timeline and commit LSN; the head of the `transaction` block, or empty;
        the tail.
        """
        times, xid = self._times_and_id
        return (
            self._before_ts_ms,
            self._ts_ms,
            self._after_ts_ms,
            self._commit_lsn_text,
            times,
            xid + SOME,
            self.after_lsn,
            self._commit,
            b"" if self.counts is None else self._block_head,
            self.tail,
        )

    def number(self, collection: str) -> bytes:
        """Number the next change of a table (or of `message`); return its `transaction` block."""
        self.tx_seq += 1
        if self.counts is None:
            return NULL
        order = self.counts[collection] = self.counts.get(collection, 0) + 1
        return self._block_head + encode_long(self.tx_seq) + encode_long(order)
