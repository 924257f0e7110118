"""The arguments of commands: `cdcd capture` and `cdcd decode`, and the ways on from a halt.

Comes in: the parser of commands.  Goes out: the same with some more.
Invariant: the help of those two says that they show row values, that of the ways on what they cost.
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
_RESUME = (
    "Have the halted daemon on this machine retry, as SIGHUP does. With --accept-gap, first decide that what "
    "is missing stays missing: the stored position is moved to where the slot stands (a slot that is gone is made "
    "again), and the topic of each published table gets a marker of the gap. Refused unless that resolves the halt."
)
_RESNAPSHOT = (
    "Have the tables of the publication copied again: the daemon makes the slot again, marks the gap in each topic, "
    "empties it by a truncate event, and copies. It has to be halted or stopped; it need not be in trouble."
)
_DROP_SLOT = (
    "Drop the slot of the configuration, when cdcd is not to run any more: as long as it is there PostgreSQL keeps "
    "the WAL since its position. Refused while a daemon streams or begins. Topics, progress and publication stay."
)
Add = Callable[[argparse.ArgumentParser], None]


def add_recovery_commands(commands: Any, add_config: Add) -> None:
    """Add `cdcd resume`, `cdcd resnapshot` and `cdcd drop-slot`."""
    resume: argparse.ArgumentParser = commands.add_parser(
        "resume", help="tell a halted daemon to look again", description=_RESUME, allow_abbrev=False
    )
    add_config(resume)
    resume.add_argument(
        "--accept-gap", action="store_true", help="go on without the changes that are missing"
    )
    resume.add_argument(
        "--accept-topic",
        action="append",
        metavar="NAME",
        default=[],
        help="go on with a topic that was made again, has other partitions, or is gone and is to be made again",
    )
    resnapshot: argparse.ArgumentParser = commands.add_parser(
        "resnapshot", help="copy the tables again", description=_RESNAPSHOT, allow_abbrev=False
    )
    add_config(resnapshot)
    drop_slot: argparse.ArgumentParser = commands.add_parser(
        "drop-slot", help="drop the slot, to end with cdcd", description=_DROP_SLOT, allow_abbrev=False
    )
    add_config(drop_slot)
    for command in (resume, resnapshot, drop_slot):
        command.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")


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
