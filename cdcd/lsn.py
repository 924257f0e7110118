"""Log sequence numbers as PostgreSQL writes and reads them.

In: an LSN as the server's text `X/Y` or as a 64-bit number.  Out: the other form.
Invariant: inside cdcd an LSN is an `int` (a byte position in the WAL); SQL, logs and output use the text form.
"""

from __future__ import annotations

import re

Lsn = int

INVALID_LSN: Lsn = 0
MAX_LSN: Lsn = (1 << 64) - 1

_LONG_PAGE_HEADER = 40
_SHORT_PAGE_HEADER = 24
_BLOCK_BYTES = 8192
"""`wal_block_size` of a server that was not built with another one."""

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> Lsn:
    """Return the number of an LSN written as `16/B374D848`. Raises ValueError on anything else."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"not an LSN: {text!r}")
    return (int(found[1], 16) << 32) | int(found[2], 16)


def format_lsn(lsn: Lsn) -> str:
    """Return the LSN as PostgreSQL prints it, `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def end_of_commits(
    insert_lsn: Lsn, *, block_bytes: int = _BLOCK_BYTES, segment_bytes: int = _BLOCK_BYTES
) -> Lsn:
    """Return the LSN up to which a stream has to be received, so that it has all commits before `insert_lsn`.

    At the start of a page `pg_current_wal_insert_lsn()` points after the page header, which is not written yet. The
    stream's LSNs are ends of records: on an idle server they stay at the start of the page, below the insert LSN.
    `block_bytes`, `segment_bytes`: the server's `wal_block_size`, `wal_segment_size`. Without the latter, each page
    counts as the first of a segment. That is right for all LSNs at which records end: in the first 40 bytes of a page
    only a record ends that began before the page, and then none ends at its start.
    """
    if insert_lsn < block_bytes:  # no server has records there
        return insert_lsn
    if insert_lsn % segment_bytes == _LONG_PAGE_HEADER:
        return insert_lsn - _LONG_PAGE_HEADER
    if insert_lsn % block_bytes == _SHORT_PAGE_HEADER:
        return insert_lsn - _SHORT_PAGE_HEADER
    return insert_lsn
