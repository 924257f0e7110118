"""`python -m tests.bench.plain`: the daemon as in a plain installation and in the image, without the extra `demo`.

The log's library loads `rich` if it is installed, which is 5 MB that no production installation has.
"""

import sys

if __name__ == "__main__":
    sys.modules["rich"] = None  # type: ignore[assignment]  # the import raises ImportError, as without the extra

    from cdcd.cli import main

    sys.exit(main())
