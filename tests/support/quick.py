"""cdcd that compares, checks and retries each second: `python -m tests.support.quick --config FILE`.

It gives a table up that is stale for the third time.

`Daemon.entry = QUICK`: for tests of what is done at the next turn, where the length of the interval proves nothing.
"""

from __future__ import annotations

import sys

from cdcd.cli import main
from cdcd.monitoring import server_monitor
from cdcd.process import backoff
from cdcd.session import stale_tables, topic_watch

INTERVAL_S = 1.0
STALE_TRIES = 3
QUICK = ("-m", "tests.support.quick")

if __name__ == "__main__":
    server_monitor.INTERVAL_S = INTERVAL_S
    topic_watch.WATCH_INTERVAL_S = INTERVAL_S
    backoff.CAP_S = INTERVAL_S
    stale_tables.TRIES = STALE_TRIES
    sys.exit(main())
