"""Log sequence numbers as PostgreSQL writes and reads them.

In: an LSN as the server's text `X/Y` or as a 64-bit number.  Out: the other form.
Invariant: inside cdcd an LSN is an `int` (a byte position in the WAL); SQL, logs and output use the text form.
"""

from __future__ import annotations

import re

Lsn = int

INVALID_LSN: Lsn = 0
MAX_LSN: Lsn = (1 << 64) - 1

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
