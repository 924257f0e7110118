"""`make verify-load`: `cdcd verify` again and again under load with DDL; no table may ever differ.

In: --minutes, --seed, --major, --rows, --mirror, --planted.  Out: a line for each run, then the counts; exit status 1
after a false alarm.
`--rows`: instead, one table of so many rows, copied and compared once: the times, the memory, the load on the source;
with `--mirror` also mirrors of it. `--planted`: instead, so many single values are changed in the files of mirrors.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.support.daemon import Daemon
from tests.support.stack import PostgresServers, Stack
from tests.verify.large import large
from tests.verify.load import TABLES, Load
from tests.verify.mirrored_table import created
from tests.verify.planted_mirror import Source, print_found
from tests.verify.running import verify

EACH_KIND = 10


def main() -> int:
    """Run what was asked for."""
    options = _options()
    with _stack(options.major) as stack:
        if options.planted:
            return _planted(stack, options.planted, options.seed, options.mirror)
        if options.rows:
            return large(stack, options.rows, options.mirror, lambda: _daemon(stack, ()))
        return _under_load(stack, options.minutes, options.seed)


def _under_load(stack: Stack, minutes: float, seed: int) -> int:
    states: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with _daemon(stack, TABLES) as daemon, Load(stack.postgres, "verified", seed) as load:
        ends_s = time.monotonic() + minutes * 60
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            found = verify(daemon, within_s=1800)
            states.update(one["state"] for one in found.tables.values())
            reasons.update(one["reason"] for one in found.tables.values() if one["reason"])
            rows = {title: one["rows_in_source"] for title, one in found.tables.items()}
            print(f"{time.monotonic() - began_s:.1f} s, status {found.status}, rows {rows}", flush=True)
            if found.status == 1:
                print(json.dumps(found.tables, indent=2))
        print(f"{load.transactions} transactions, {load.alterations} of DDL, seed {seed}")
    print(f"tables compared: {dict(states)}; reasons: {dict(reasons)}; false alarms: {states['differs']}")
    return 1 if states["differs"] or not states["equal"] else 0


def _planted(stack: Stack, values: int, seed: int, formats: Sequence[TableFormat]) -> int:
    formats = formats or TABLE_FORMATS
    with _daemon(stack, tuple(created())) as daemon:
        source = Source(stack.postgres, "verified", daemon)
        each = -(-values // len(formats))
        return print_found(
            source, stack.folder / "mirrors", formats, random.Random(seed), each=EACH_KIND, values=each
        )


@contextmanager
def _daemon(stack: Stack, statements: tuple[str, ...]) -> Iterator[Daemon]:
    if statements:
        stack.postgres.create_database("verified")
    for statement in statements:
        stack.postgres.execute(statement, dbname="verified")
    stack.postgres.execute("CREATE PUBLICATION cdcd_verified FOR ALL TABLES", dbname="verified")
    with Daemon(
        stack.folder / "verified",
        "verified",
        dsn=stack.postgres.dsn("verified"),
        bootstrap=stack.kafka.bootstrap,
        registry_url=stack.registry.url,
    ) as daemon:
        daemon.start()
        daemon.wait_state("streaming", deadline_s=3600)
        yield daemon


@contextmanager
def _stack(major: int) -> Iterator[Stack]:
    cache, folder = Cache(), make_run_folder("cdcd-verify-", server_account())
    servers = PostgresServers(cache, folder)
    try:
        with (
            KafkaBroker(folder / "kafka", cache=cache) as kafka,
            SchemaRegistry(folder / "registry", cache=cache) as registry,
        ):
            yield Stack(servers(major), kafka, registry, folder)
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make verify-load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--major", type=int, default=18)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--mirror", nargs="+", choices=TABLE_FORMATS, default=())
    parser.add_argument("--planted", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
