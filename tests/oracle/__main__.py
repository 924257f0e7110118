"""`make oracle`: every type of each major through the topics, as text and as binary, judged by PostgreSQL.

In: --majors, --values, --types.  Out: a line for each type, then the sums; exit status 1 when any value differed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.packages import WHEEL_POSTGRES
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry
from tests.oracle.report import failures, table_of
from tests.oracle.run import Outcome, run
from tests.support.stack import PostgresServers, Stack


def main() -> int:
    """Run the requested majors."""
    options = _options()
    cache, folder = Cache(), make_run_folder("cdcd-oracle-", server_account())
    servers = PostgresServers(cache, folder)
    failed: list[str] = []
    try:
        with (
            KafkaBroker(folder / "kafka", cache=cache) as kafka,
            SchemaRegistry(folder / "registry", cache=cache) as registry,
        ):
            for major in options.majors:
                began_s = time.monotonic()
                stack = Stack(servers(major), kafka, registry, folder)
                failed += _say(major, "", run(stack, options.values, options.types), began_s)
                if major in WHEEL_POSTGRES and not options.types:
                    began_s = time.monotonic()
                    with PostgresServer(
                        major, programs_from_wheel(major), folder / f"vector-{major}"
                    ) as server:
                        stack = Stack(server, kafka, registry, folder)
                        outcome = run(stack, options.values, vectors=True)
                        failed += _say(major, " with pgvector", outcome, began_s)
    finally:
        servers.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _say(major: int, what: str, outcome: Outcome, began_s: float) -> list[str]:
    took_s = time.monotonic() - began_s
    print(f"PostgreSQL {major}{what}, {took_s:.0f} s\n{table_of(outcome)}", flush=True)
    found = failures(outcome)
    for one in found[:100]:
        print(f"  {one}", flush=True)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make oracle", description=__doc__)
    parser.add_argument(
        "--majors", type=lambda text: [int(one) for one in text.split(",")], default=[14, 16, 18]
    )
    parser.add_argument(
        "--values", type=int, default=220, help="number of random values, in addition to those picked by hand"
    )
    parser.add_argument(
        "--types", type=lambda text: text.split(";"), default=[], help="only these types: int4;'char'"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
