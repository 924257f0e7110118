"""Run `cdcd verify` as its users do, and read its JSON.

In: a daemon's configuration, options.  Out: the exit status and the tables' outcomes.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from tests.support.daemon import DEADLINE_S, Daemon


class Verified(NamedTuple):
    """The result of one run. `tables`: the outcomes by table."""

    status: int
    tables: dict[str, dict[str, Any]]

    def one(self) -> dict[str, Any]:
        """Return the outcome of the only table."""
        (found,) = self.tables.values()
        return found


def verify(daemon: Daemon, *words: str, within_s: float = DEADLINE_S) -> Verified:
    """Run the command. Fails where its output is not JSON."""
    command = [
        sys.executable,
        "-m",
        "cdcd",
        "verify",
        "--config",
        str(daemon.config_path),
        "--output",
        "json",
    ]
    done = daemon.run_command([*command, *words], daemon.folder, within_s)
    assert done.stdout, (done.returncode, done.stderr)
    return Verified(done.returncode, {one["table"]: one for one in json.loads(done.stdout)["tables"]})
