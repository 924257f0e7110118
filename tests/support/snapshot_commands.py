"""Give a daemon commands for incremental snapshots through its admin port, as `cdcd snapshot` does."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from tests.support.daemon import Daemon
from tests.support.waiting import eventually


def command(daemon: Daemon, action: str, *tables: str, **options: Any) -> tuple[int, Any]:
    """Post a command; return the HTTP status and the body."""
    body = json.dumps({"action": action, "tables": list(tables), **options}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{daemon.port}/snapshots",
        body,
        {"X-Cdcd-Snapshot": "1", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else text
    except (OSError, http.client.HTTPException):
        return 0, "the daemon has ended"


def start(daemon: Daemon, *tables: str, **options: Any) -> None:
    """Start the snapshot of these tables."""
    status, body = command(daemon, "start", *tables, **options)
    assert status == 200, body


def ensure_started(daemon: Daemon, *tables: str) -> None:
    """Start the copies unless the daemon has them in its progress record, or has ended.

    A daemon with a failpoint may end after the first rows of a copy and before the record of its start is durable:
    the next process has no copy then.
    """

    def is_started() -> bool:
        if daemon.process is None or daemon.process.poll() is not None:
            return True
        if daemon.status().get("state") != "streaming":
            return False
        if daemon.get("/snapshots") not in ((200, "[]"), (0, "")):
            return True
        # A session may end at any moment: some transactions are read again without streaming.
        return command(daemon, "start", *tables)[0] in (0, 200)

    eventually(is_started, "the copies are started")


def reports(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the tables that are being copied."""
    code, body = daemon.get("/snapshots")
    assert code == 200, body
    found: list[dict[str, Any]] = json.loads(body)
    return found


def copied_rows(daemon: Daemon) -> int:
    """Return the rows that snapshots of this process have passed to Kafka."""
    name = "cdcd_snapshot_rows_total{"
    lines = daemon.get("/metrics")[1].splitlines()
    return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)))


def await_copied(daemon: Daemon, within_s: float = 120) -> None:
    """Wait until no table is being copied."""

    def is_done() -> bool:
        daemon.assert_alive()
        code, body = daemon.get("/snapshots")
        return code == 200 and json.loads(body) == [] and daemon.status().get("state") == "streaming"

    try:
        eventually(is_done, "every table is copied", within_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {daemon.get('/snapshots')}:\n{daemon.log()[-4000:]}") from None
