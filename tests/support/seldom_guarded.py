"""cdcd whose WAL guard takes its next turn late: `python -m tests.support.seldom_guarded --config FILE`.

After the guard has ended a session, there is time for the next session to begin before the guard looks again.

`Daemon.entry = SELDOM_GUARDED`: for tests of a drop of the slot that must not depend on who is quicker.
"""

from __future__ import annotations

import sys

from cdcd.cli import main
from cdcd.monitoring import server_monitor

SELDOM_GUARDED = ("-m", "tests.support.seldom_guarded")

if __name__ == "__main__":
    server_monitor.INTERVAL_S = 1.0
    server_monitor.URGENT_INTERVAL_S = 3.0
    sys.exit(main())
