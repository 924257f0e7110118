"""Helpers for a halted daemon and the commands that resolve the halt."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from cdcd.demo.stack.postgres import PostgresServer
from tests.support.daemon import Daemon
from tests.support.reader import BEGINNING, Event, Reader
from tests.support.waiting import eventually

ACCEPT_GAP = ("resume", "--accept-gap")
RESNAPSHOT = ("resnapshot",)


def command(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the daemon's configuration."""
    return daemon.run(*words)


def audited(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the audit line of a successful command."""
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["logger"] == "cdcd.audit"]
    return dict(line)


def halts_with(daemon: Daemon, code: str) -> str:
    """Wait until the daemon halts with this code; return the reason."""
    reason = str(daemon.wait_state("halted")["reason"])
    assert reason.startswith(code + ":"), reason
    return reason


def folded(events: list[Event]) -> dict[Any, Any]:
    """Apply the events in the order of (timeline, commit_lsn, tx_seq); return the resulting rows by key."""
    rows: dict[Any, Any] = {}
    ordered = sorted(
        (one for one in events if one.sequence is not None), key=lambda one: one.sequence or BEGINNING
    )
    for event in ordered:
        if event.op == "t":
            rows.clear()
        elif event.op != "g":
            row = event.value["after"] or event.value["before"]
            rows.pop(row["id"], None)
            if event.op != "d":
                rows[row["id"]] = row["body"]
    return rows


def table(server: PostgresServer, dbname: str, name: str = "t") -> dict[int, str]:
    """Return the rows of the table."""
    return dict(server.execute(f"SELECT id, body FROM {name}", dbname=dbname))


def equals_table(
    reader: Reader, topic: str, server: PostgresServer, dbname: str, name: str = "t"
) -> list[Event]:
    """Wait until the folded topic equals the table; return the events."""
    found: list[Event] = []

    def is_equal() -> bool:
        found[:] = reader.read(topic)
        return folded(found) == table(server, dbname, name)

    eventually(is_equal, "the topic equals the table")
    return found
