"""`cdcd snapshot`: start, pause, resume, stop and watch the copy of single tables, through the daemon's admin port.

In: a configuration, a command.  Out: lines, an exit status.
Invariant: a command that is reported as done is durable. An error of the daemon is reported with its own code,
message and hint; without an answer the command may have taken effect, and the error says so.
Must not: connect to PostgreSQL or Kafka.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, get_args

from cdcd.cli.daemon_port import Answer, NoAnswer, NobodyListens, NotLocal, ask_daemon
from cdcd.cli.output import say
from cdcd.cli.snapshot_table import NOTHING, Lines, Screen, as_json, table_lines
from cdcd.config import Config
from cdcd.errors import EXIT_FAILURE, EXIT_OK, CdcdError, SnapshotRefused
from cdcd.snapshot.admin_page import SNAPSHOT_HEADER
from cdcd.snapshot.control import Action, SnapshotKind, TableReport, TableState

__all__ = ["execute", "show", "watch"]

_COMMAND_TIMEOUT_S = 45.0
"""Longer than the daemon waits for a command."""
_MAX_BYTES = 4 << 20
_OK, _NOT_FOUND = 200, 404
_WATCH_EVERY_S = 1.0
_ABSENT_LOOKS = 120
"""How many looks in a row may find no daemon: one that has answered before may be restarting."""
_RESTARTS = "waiting for the daemon"
_INTERRUPTED = "cdcd: interrupted; the command may still take effect: `cdcd snapshot status` shows the tables"
_CODE = re.compile(r"CDCD(?:-[A-Z]+)+")
_DONE = {"start": "started", "pause": "paused", "resume": "resumed", "stop": "stopped"}


def execute(
    config: Config,
    action: Action,
    tables: Sequence[str],
    *,
    where: str | None = None,
    recopy: bool = False,
    is_all: bool = False,
    is_blocking: bool = False,
    compare: bool = False,
) -> list[str]:
    """Execute a command; return a line for each table. Raises SnapshotRefused, and the daemon's errors."""
    fields: dict[str, Any] = {"action": action, "tables": list(tables), "where": where, "recopy": recopy}
    # An older daemon refuses these fields.
    flags = {"all": is_all, "blocking": is_blocking, "compare": compare}
    fields |= {name: True for name, is_set in flags.items() if is_set}
    try:
        answer = ask_daemon(
            config,
            "POST",
            "/snapshots",
            header=SNAPSHOT_HEADER,
            body=json.dumps(fields).encode(),
            timeout_s=_COMMAND_TIMEOUT_S,
            max_bytes=_MAX_BYTES,
        )
    except (NobodyListens, NotLocal) as none:
        raise _no_daemon(config, none) from None
    except NoAnswer:
        raise SnapshotRefused(
            "the daemon did not answer; the command may still take effect", port=config.admin.port
        ) from None
    except KeyboardInterrupt:
        say([_INTERRUPTED], sys.stderr)
        raise
    page = _page(config, answer)
    concerned = page.get("tables") if isinstance(page, dict) else None
    if not isinstance(concerned, list):
        raise _no_daemon(config)
    left_out = page.get("left_out", {})
    not_copied = left_out.items() if isinstance(left_out, dict) else ()
    lines = [f"{table}: {_DONE[action]}" for table in concerned]
    return [*lines, *(f"{table}: not copied: {reason}" for table, reason in not_copied)] or [NOTHING]


def show(config: Config, *, is_json: bool = False) -> int:
    """Print the tables that are being copied. Raises SnapshotRefused."""
    reports = _reports(config)
    if is_json:
        print(as_json(reports, indent=2))
    else:
        say(table_lines(reports))
    return EXIT_OK


def watch(
    config: Config,
    *,
    is_json: bool = False,
    pause: Callable[[], None] = lambda: time.sleep(_WATCH_EVERY_S),
) -> int:
    """Print the tables each second until none is left, or Ctrl-C. Raises SnapshotRefused.

    If each table that is left has failed, return a failure: nothing changes without an operator. A daemon that has
    answered once may restart meanwhile.
    """
    shown = Screen() if sys.stdout.isatty() and not is_json else Lines()
    try:
        for reports in _looks(config, pause):
            if reports is None:
                shown.show([] if is_json else [_RESTARTS])
                continue
            shown.show([as_json(reports)] if is_json else table_lines(reports))
            if not reports:
                return EXIT_OK
            if all(report.state == "failed" for report in reports):
                return EXIT_FAILURE
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def _looks(config: Config, pause: Callable[[], None]) -> Iterator[list[TableReport] | None]:
    """Yield the reports again and again; None while a daemon that has answered before does not know them."""
    absent = _ABSENT_LOOKS
    while True:
        try:
            reports: list[TableReport] | None = _reports(config)
            absent = 0
        except SnapshotRefused:
            if absent >= _ABSENT_LOOKS:
                raise
            reports, absent = None, absent + 1
        yield reports
        pause()


def _reports(config: Config) -> list[TableReport]:
    try:
        answer = ask_daemon(config, "GET", "/snapshots", max_bytes=_MAX_BYTES)
    except NoAnswer as none:
        raise _no_daemon(config, none) from None
    page = _page(config, answer)
    try:
        return [_report(fields) for fields in page]
    except (TypeError, KeyError, ValueError, OverflowError):
        raise _no_daemon(config) from None


def _page(config: Config, answer: Answer) -> Any:
    """Return the answer of a daemon that has executed the request. Raises the error that it reports otherwise."""
    if answer.status == _NOT_FOUND:
        raise SnapshotRefused(
            "the program at the admin port is not a cdcd that copies single tables",
            hint="correct admin.port if another program listens there; restart an earlier cdcd with this version",
            port=config.admin.port,
        )
    try:
        page = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _no_daemon(config) from None
    if answer.status == _OK:
        return page
    raise _reported(page) or _no_daemon(config)


def _reported(page: Any) -> CdcdError | None:
    """Return the daemon's error; None if the page is of another program."""
    if not isinstance(page, dict):
        return None
    code, message, hint = (page.get(name) for name in ("code", "message", "hint"))
    if not isinstance(code, str) or not isinstance(message, str) or not isinstance(hint, str):
        return None
    if not _CODE.fullmatch(code):
        return None
    error = SnapshotRefused(message, hint=hint)
    vars(error)["code"] = code
    return error


def _report(fields: Any) -> TableReport:
    """Return a report. Raises TypeError, KeyError, ValueError and OverflowError for anything else."""
    rows, reason = fields["rows"], fields["reason"]
    if not isinstance(fields["table"], str) or not isinstance(fields["state"], str):
        raise TypeError
    if not isinstance(rows, int) or not isinstance(reason, str | None):
        raise TypeError
    estimated, rate, left = (
        None if fields[name] is None else _quantity(fields[name])
        for name in ("estimated_rows", "rows_per_second", "seconds_left")
    )
    state = cast(TableState, fields["state"])  # a newer daemon may have more of them
    rounded = None if estimated is None else int(estimated)
    kind = (
        cast(SnapshotKind, fields["kind"]) if fields.get("kind") in get_args(SnapshotKind) else "incremental"
    )
    return TableReport(fields["table"], state, rows, rounded, rate, left, reason, kind)


def _quantity(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError
    return number


def _no_daemon(config: Config, none: NoAnswer | None = None) -> SnapshotRefused:
    none = none or NoAnswer()
    return SnapshotRefused(none.problem, hint=none.hint, port=config.admin.port)
