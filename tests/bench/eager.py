"""`python -m tests.bench.eager`: the normal daemon, except that it reads as soon as data is available.

The runner `cdcd_eager`, compared with `cdcd`, shows the benefit of the pauses between reads.
"""

import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # see tests.bench.plain

    from cdcd.cli import main
    from cdcd.source import pause

    pause.FILL_BYTES = pause.BUSY_PAUSE_US = 0
    sys.exit(main())
