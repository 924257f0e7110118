"""cdcd's status and metrics, read from its admin port as an operator's tool reads them.

In: the admin port's number.  Out: a `Reading`, or None while no process answers there.
Invariant: loopback only, and no proxy of the environment is used.
Must not: import anything of the daemon.
"""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from typing import Any

_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of /status and /metrics at one time."""

    state: str
    reason: str
    rows_written: int
    transactions_written: int
    snapshot_tables_left: int | None
    lag_seconds: float | None
    lag_bytes: float | None
    """None: unknown."""


def read(port: int) -> Reading | None:
    """Return cdcd's current reading; None if cdcd does not answer (not started yet, killed, stopping)."""
    try:
        status: dict[str, Any] = json.loads(_get(port, "/status"))
        metrics = {
            name: float(value)
            for name, labels, value in _SAMPLE.findall(_get(port, "/metrics"))
            if not labels
        }
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return Reading(
        state=str(status["state"]),
        reason=str(status["reason"]),
        rows_written=int(status["rows_written"]),
        transactions_written=int(status["transactions_written"]),
        snapshot_tables_left=status["snapshot_tables_remaining"],
        lag_seconds=metrics.get("cdcd_replication_lag_seconds"),
        lag_bytes=metrics.get("cdcd_replication_lag_bytes"),
    )


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise http.client.HTTPException(f"{path}: {response.status}")
    return text
