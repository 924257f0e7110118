"""`python -m tests.bench.eager`: the daemon as ever, but it reads as soon as anything is there.

The runner `cdcd_eager`: beside `cdcd` it shows what the reading rhythm is worth.
"""

import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # see tests.bench.plain

    from cdcd.cli import main
    from cdcd.source import pause

    pause.FILL_BYTES = pause.BUSY_PAUSE_US = 0
    sys.exit(main())
