"""The arguments of commands: `cdcd snapshot`, `cdcd capture` and `cdcd decode`, and the resolutions of a halt.

Comes in: the parser of commands.  Goes out: the same parser with these commands.
Invariant: the help of capture and decode says that they show row values; the help of a resolution says its effect.
Must not: run anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cdcd.lsn import Lsn, parse_lsn
from cdcd.redaction import clean
from cdcd.snapshot.command_json import BadCommand, check_command, condition_of, is_table_name
from cdcd.spark.commands.option_pairs import add_target_options

_CAPTURE = (
    "Write the messages that the server sends for the configured publications and options to FILE, byte for byte, "
    "from now on until Ctrl-C or a limit. The command reads its own temporary slot: it changes no other slot and "
    "confirms nothing. While it runs, the server retains the WAL since the start of the command. FILE must not exist "
    "yet. FILE contains the values of rows, so only its owner may read it."
)
_DECODE = (
    "Print each message of FILE, or each line of hex on standard input, as one line of JSON with every field by its "
    "name: `frame` and the frame's fields, then `message` and, under `fields`, the message's fields. LSNs are X/Y, "
    "times microseconds since 2000-01-01. A value sent as text is under `text`, or under `hex` if it is not UTF-8; a "
    "value sent in binary is always under `hex`. `at_byte` or `line` is the input position. This command shows "
    "the values of rows. The first error ends it with one line and a status other than 0."
)
_RESUME = (
    "Ask the halted daemon on this machine to retry, as SIGHUP does. With --accept-gap, first accept that "
    "missing changes never arrive: the command moves the stored position to the slot's position, creates a "
    "missing slot again, and has a marker of the gap written to the topic of each published table. The command "
    "is refused unless the accepted gap resolves the halt."
)
_RESNAPSHOT = (
    "Copy the tables of the publication again: the daemon recreates the slot, writes a marker of the gap and a "
    "truncate event to each topic, and copies the tables. The daemon must be halted or stopped."
)
_DROP_SLOT = (
    "Drop the slot of the configuration when cdcd is no longer needed: PostgreSQL retains the WAL since the slot's "
    "position until the slot is dropped. The command is refused while a daemon streams or starts. Topics, progress "
    "and publication are not changed."
)
_SNAPSHOT = (
    "Copy single tables while the daemon streams. The commands use the admin port of the daemon on this machine. "
    "A command that succeeds is durable: the daemon continues with it after a restart."
)
_START = (
    "Copy tables while the daemon streams. The rows arrive in the topics of the tables with op r, and never "
    "after a newer change of the same key. With --blocking the stream waits until the tables are copied."
)
_STATUS = (
    "Print one line for each table that is being copied: progress, rows since the daemon started, the server's "
    "estimate of all rows, rows per second, the estimated time left, the state and its reason. An unknown value is "
    "-. With --watch the exit status is 1 if every table that is left has failed."
)
_WAIT = (
    "Wait until all transactions that have committed below LSN are durable in Kafka, where a read_committed consumer "
    "reads them: to read your own writes. LSN is what SELECT pg_current_wal_insert_lsn() returns after the COMMIT. "
    "The daemon on this machine answers; it may restart meanwhile. The exit status is 1 after the time-out."
)
_VERIFY = (
    "Compare the topics with the source, while both change: numbers of rows, a digest of each column, and the rows "
    "that differ, by their keys and records. Values are never printed. The exit status is 0 if all tables are equal, "
    "1 if one differs, 2 if one could not be compared and none differs."
)
Add = Callable[[argparse.ArgumentParser], None]


def add_recovery_commands(commands: Any, add_config: Add) -> None:
    """Add `cdcd resume`, `cdcd resnapshot` and `cdcd drop-slot`."""
    resume: argparse.ArgumentParser = commands.add_parser(
        "resume", help="ask a halted daemon to retry", description=_RESUME, allow_abbrev=False
    )
    add_config(resume)
    resume.add_argument("--accept-gap", action="store_true", help="continue without the missing changes")
    resume.add_argument(
        "--accept-topic",
        action="append",
        metavar="NAME",
        default=[],
        help="continue with a topic that was recreated, has more partitions, or was deleted and has to be recreated",
    )
    resnapshot: argparse.ArgumentParser = commands.add_parser(
        "resnapshot", help="copy the tables again", description=_RESNAPSHOT, allow_abbrev=False
    )
    add_config(resnapshot)
    drop_slot: argparse.ArgumentParser = commands.add_parser(
        "drop-slot", help="drop the slot, to stop using cdcd", description=_DROP_SLOT, allow_abbrev=False
    )
    add_config(drop_slot)
    for command in (resume, resnapshot, drop_slot):
        command.add_argument("--dry-run", action="store_true", help="print the planned steps, change nothing")


def add_snapshot(commands: Any, add_config: Add) -> None:
    """Add `cdcd snapshot` with its actions."""
    snapshot: argparse.ArgumentParser = commands.add_parser(
        "snapshot", help="copy single tables while streaming", description=_SNAPSHOT, allow_abbrev=False
    )
    actions = snapshot.add_subparsers(dest="action", metavar="ACTION", required=True)
    start = actions.add_parser("start", help="copy tables", description=_START, allow_abbrev=False)
    status = actions.add_parser("status", help="show progress", description=_STATUS, allow_abbrev=False)
    others = [
        actions.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False)
        for name, help in (
            ("pause", "pause the copy of tables; the changes of these tables are still streamed"),
            ("resume", "continue with paused tables"),
            ("stop", "end the copy of tables; rows that have arrived remain"),
        )
    ]
    for action in (start, status, *others):
        add_config(action)
    started = start.add_mutually_exclusive_group(required=True)
    for chosen in (started, *others):
        chosen.add_argument(
            "--table",
            dest="tables",
            action="append",
            metavar="SCHEMA.TABLE",
            type=_table,
            default=[],
            help="a table; repeat the option for several"
            + ("" if chosen is started else " (default: every table that is being copied)"),
        )
    started.add_argument(
        "--all",
        dest="is_all",
        action="store_true",
        help="every published table that has a key and that snapshot.overrides includes",
    )
    start.add_argument(
        "--where",
        metavar="SQL",
        type=_condition,
        help="copy only the rows for which this condition is true",
    )
    deleted = start.add_mutually_exclusive_group()
    deleted.add_argument(
        "--recopy",
        action="store_true",
        help="write a truncate event before the rows, so that readers lose rows that no longer exist",
    )
    deleted.add_argument(
        "--compare",
        action="store_true",
        help="after the copy, write a delete for each row that no longer exists, which cdcd finds by the keys "
        "in the topic",
    )
    start.add_argument(
        "--blocking",
        dest="is_blocking",
        action="store_true",
        help="stop the stream while the tables are copied; the tables need no key",
    )
    start.set_defaults(check=partial(_check_start, start))
    status.add_argument(
        "--watch", action="store_true", help="print the lines each second until no table is left"
    )
    status.add_argument(
        "--output", choices=("text", "json"), default="text", help="output format (default: text)"
    )


def add_wait(commands: Any, add_config: Add) -> None:
    """Add `cdcd wait`."""
    wait: argparse.ArgumentParser = commands.add_parser(
        "wait", help="wait until commits are durable in Kafka", description=_WAIT, allow_abbrev=False
    )
    add_config(wait)
    wait.add_argument("lsn", metavar="LSN", type=_lsn, help="an LSN, such as 16/B374D848")
    wait.add_argument(
        "--timeout",
        dest="timeout_s",
        metavar="S",
        type=_seconds,
        default=60.0,
        help="time-out in seconds (default: 60)",
    )
    wait.add_argument(
        "--mirror",
        metavar="URI",
        help="also wait until the mirror at this URI has them; needs the extra `spark`",
    )
    add_target_options(wait)


def add_verify(commands: Any, add_config: Add) -> None:
    """Add `cdcd verify`."""
    verify: argparse.ArgumentParser = commands.add_parser(
        "verify", help="compare the topics with the source", description=_VERIFY, allow_abbrev=False
    )
    add_config(verify)
    verify.add_argument(
        "--table",
        dest="tables",
        action="append",
        metavar="SCHEMA.TABLE",
        default=[],
        help="a table to compare; repeat the option for several (default: all published tables)",
    )
    verify.add_argument(
        "--sample",
        metavar="PERCENT",
        type=_percent,
        default=100.0,
        help="percentage of the keys to compare (default: 100)",
    )
    verify.add_argument(
        "--sample-window",
        dest="window",
        metavar="NUMBER",
        type=_count,
        help="with --sample: compare the same keys as the run that printed this number (default: other keys "
        "in each run)",
    )
    verify.add_argument(
        "--rate",
        metavar="ROWS",
        type=_rate,
        help="limit of the rows read per second from the source (default: none)",
    )
    verify.add_argument(
        "--timeout",
        dest="timeout_s",
        metavar="S",
        type=_seconds,
        default=300.0,
        help="time-out of the wait for cdcd, and of each request to Kafka, in seconds (default: 300)",
    )
    verify.add_argument(
        "--state",
        metavar="FOLDER",
        type=Path,
        help="folder for the state of the run, with which an interrupted run continues",
    )
    verify.add_argument(
        "--limit",
        metavar="ROWS",
        type=_count,
        default=100,
        help="maximum number of differing rows to list for each table (default: 100)",
    )
    verify.add_argument(
        "--mirror",
        metavar="URI",
        help="also compare the mirror at this URI with the topics; needs the extra `spark`",
    )
    verify.add_argument(
        "--mirror-timeout",
        dest="mirror_limit_s",
        metavar="S",
        type=_seconds,
        help="time limit of the comparison of the mirror, in seconds (default: none)",
    )
    add_target_options(verify)
    verify.add_argument("--show-keys", action="store_true", help="print keys instead of their hashes")
    verify.add_argument(
        "--output", choices=("text", "json"), default="text", help="output format (default: text)"
    )
    verify.add_argument(
        "--metrics-file",
        metavar="FILE",
        type=Path,
        help="also write the result in the Prometheus text format",
    )


def add_capture(commands: Any, add_config: Add) -> None:
    """Add `cdcd capture`."""
    capture: argparse.ArgumentParser = commands.add_parser(
        "capture", help="write the server's messages to a file", description=_CAPTURE, allow_abbrev=False
    )
    add_config(capture)
    capture.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the file to create"
    )
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
        help="a file written by `cdcd capture`; default: lines of hex on standard input",
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


def _check_start(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End as for other wrong usage if options exclude each other; the daemon would refuse them later."""
    tables, flags = tuple(options.tables), (options.where, options.recopy)
    more = {"is_all": options.is_all, "is_blocking": options.is_blocking, "compare": options.compare}
    try:
        check_command("start", tables, *flags, **more)
    except BadCommand as wrong:
        parser.error(str(wrong))


def _condition(text: str) -> str:
    try:
        condition = condition_of(text, "it")
    except BadCommand as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    assert condition is not None
    return condition


def _table(text: str) -> str:
    if not is_table_name(text):
        raise argparse.ArgumentTypeError(f"{clean(text, 200)} is not SCHEMA.TABLE")
    return text


def _lsn(text: str) -> Lsn:
    try:
        return parse_lsn(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{clean(text, 40)} is not an LSN as PostgreSQL prints it, such as 16/B374D848"
        ) from None


def _seconds(text: str) -> float:
    return _positive(text, "a positive number of seconds")


def _rate(text: str) -> float:
    return _positive(text, "a positive number of rows per second")


def _percent(text: str) -> float:
    return _positive(text, "a percentage above 0 and up to 100", most=100)


def _positive(text: str, wanted: str, most: float = sys.float_info.max) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError(f"{clean(text, 40)} is not {wanted}")
    return value


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{clean(text, 40)} is not a positive whole number")
    return value
