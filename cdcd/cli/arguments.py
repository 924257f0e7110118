"""The arguments of the two commands that look at the wire: `cdcd capture` and `cdcd decode`.

Comes in: the parser of commands.  Goes out: the same with two more.
Invariant: their help says that they show row values.
Must not: run anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CAPTURE = (
    "Write what the server sends for the configured publications and options to FILE, byte for byte, from now on "
    "until Ctrl-C or a limit. It reads a temporary slot of its own: no other slot is touched and nothing is "
    "confirmed. While it runs, the server keeps the WAL from its beginning on. FILE must not exist yet; it holds "
    "the values of rows, so only its owner may read it."
)
_DECODE = (
    "Print each message of FILE, or each line of hex on standard input, as one line of JSON with every field by its "
    "name: `frame` and its fields, `message` and, under `fields`, its own. LSNs are X/Y, times microseconds since "
    "2000-01-01. A value sent as text is under `text`, or under `hex` where it is not UTF-8; one sent in binary is "
    "always under `hex`. `at_byte` or `line` says where it stands. This command shows the values of rows: that is "
    "what it is for. The first error ends it with one line and a status other than 0."
)
Add = Callable[[argparse.ArgumentParser], None]


def add_capture(commands: Any, add_config: Add) -> None:
    """Add `cdcd capture`."""
    capture: argparse.ArgumentParser = commands.add_parser(
        "capture", help="write what the server sends to a file", description=_CAPTURE, allow_abbrev=False
    )
    add_config(capture)
    capture.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the file to make")
    capture.add_argument(
        "--seconds", metavar="N", type=_seconds, help="end after N seconds (default: at Ctrl-C)"
    )
    capture.add_argument(
        "--messages", metavar="N", type=_count, help="end after N pgoutput messages; keepalives do not count"
    )


def add_decode(commands: Any) -> None:
    """Add `cdcd decode`."""
    decode: argparse.ArgumentParser = commands.add_parser(
        "decode", help="print captured messages as JSON lines", description=_DECODE, allow_abbrev=False
    )
    decode.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        type=Path,
        help="a file of `cdcd capture`; without it: lines of hex",
    )
    lines = decode.add_mutually_exclusive_group()
    lines.add_argument(
        "--frames",
        dest="is_frames",
        action="store_true",
        default=True,
        help="a line of hex is one CopyData payload: w, k, r or h (default)",
    )
    lines.add_argument(
        "--messages",
        dest="is_frames",
        action="store_false",
        help="a line of hex is one pgoutput message, as pg_logical_slot_peek_binary_changes returns it",
    )
    decode.add_argument(
        "--proto-version",
        metavar="N",
        type=int,
        choices=range(1, 5),
        help="protocol version, 1 to 4 (default: the file's; for hex 4)",
    )
    decode.add_argument(
        "--streaming",
        choices=("off", "on", "parallel"),
        help="with parallel, Stream Abort has an LSN and a time (default: the file's; for hex on)",
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of messages")
    return value
