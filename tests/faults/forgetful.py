"""cdcd that buffers three log lines only while nobody reads its log: `-m tests.faults.forgetful --config FILE`."""

from __future__ import annotations

import sys

from cdcd.cli import main
from cdcd.ops.log_thread import ThreadedHandler

WAITING_LINES = 3
ThreadedHandler.__init__.__defaults__ = (WAITING_LINES,)  # type: ignore[misc]

sys.exit(main())
