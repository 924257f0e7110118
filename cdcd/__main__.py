"""`python -m cdcd`: the same as the `cdcd` command."""

import sys

from cdcd.cli import main

if __name__ == "__main__":
    sys.exit(main())
