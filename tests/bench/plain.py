"""`python -m tests.bench.plain`: the daemon as a plain installation and the image have it, without the extra `demo`.

The log's library loads `rich` where it finds it, which is 5 MB that no production has.
"""

import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it is an ImportError, as where it is missing

    from cdcd.cli import main

    sys.exit(main())
