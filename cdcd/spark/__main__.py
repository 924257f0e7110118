"""`python -m cdcd.spark COMMAND`, also for spark-submit: `spark-submit deploy/spark/cdcd_spark.py COMMAND`.

In: a command and its arguments.  Out: the command's exit status.
Must not: import PySpark before the arguments are parsed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from cdcd.spark.commands.arguments import parse

COMMANDS = {
    "drop-table": "cdcd.spark.commands.drop_table",
    "read": "cdcd.spark.commands.read",
    "mirror": "cdcd.spark.commands.mirror",
    "register": "cdcd.spark.commands.register",
    "status": "cdcd.spark.commands.status",
    "verify": "cdcd.spark.commands.verify",
    "views": "cdcd.spark.commands.views",
    "wait": "cdcd.spark.commands.wait",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    status: int = import_module(COMMANDS[options.command]).run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
