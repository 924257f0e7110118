"""`cdcd demo` with a tenth of its large transaction: `python -m tests.support.small_demo WORDS`."""

from __future__ import annotations

import sys

from cdcd.demo import plan
from cdcd.demo.run import main

BULK_CHANGES = 10_000

if __name__ == "__main__":
    plan.BULK_CHANGES, plan._BULK_CHUNK = BULK_CHANGES, BULK_CHANGES // 10
    sys.exit(main())
