"""`python -m cdcd.spark mirror`, also for spark-submit: `spark-submit deploy/spark/cdcd_spark.py mirror`.

In: a command and its arguments.  Out: the command's exit status.
Must not: have options of its own; each command has `--help`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from cdcd.spark.mirror import main as mirror

COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {"mirror": mirror}
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(given[0]) if given else None
    if command is None:
        known = " | ".join(COMMANDS)
        print(f"usage: python -m cdcd.spark {known} --help", file=sys.stderr)
        return EXIT_USAGE
    return command(given[1:])


if __name__ == "__main__":
    sys.exit(main())
