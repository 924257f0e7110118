"""Run `cdcd verify` as its users do, and read its JSON.

In: a daemon's configuration, options.  Out: the exit status and the tables' outcomes.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from tests.support.daemon import DEADLINE_S, Daemon


class Verified(NamedTuple):
    """The result of one run. `tables`: the outcomes by table; `mirror`: with --mirror, also those by topic."""

    status: int
    tables: dict[str, dict[str, Any]]
    mirror: dict[str, dict[str, Any]]

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
    page = json.loads(done.stdout)
    tables, mirror = ({one["table"]: one for one in page.get(of, ())} for of in ("tables", "mirror"))
    return Verified(done.returncode, tables, mirror)
