"""`make verify-load`: `cdcd verify` again and again under load with DDL; no table may ever differ.

In: --minutes, --seed, --major, --rows.  Out: a line for each run, then the counts; exit status 1 after a false alarm.
`--rows`: instead, one table of so many rows, copied and compared once: the times, the memory, the load on the source.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.daemon import Daemon
from tests.support.stack import PostgresServers, Stack
from tests.verify.load import TABLES, Load
from tests.verify.running import verify

BIG = """
    CREATE TABLE big (
        id int8 PRIMARY KEY, customer int, amount numeric(12,2), placed timestamptz, state text, note text
    )
"""
FILL = """
    INSERT INTO big
    SELECT n, n % 100000, n / 7.0, timestamptz '2020-01-01' + n * interval '1 second', 'paid', md5(n::text)
    FROM generate_series(1, {rows}) n
"""


def main() -> int:
    """Run what was asked for."""
    options = _options()
    with _stack(options.major) as stack:
        if options.rows:
            return _large(stack, options.rows)
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


def _large(stack: Stack, rows: int) -> int:
    began_s = time.monotonic()
    stack.postgres.create_database("verified")
    for statement in (BIG, FILL.format(rows=rows), "VACUUM ANALYZE big"):
        stack.postgres.execute(statement, dbname="verified")
    print(f"{rows:,} rows inserted in {time.monotonic() - began_s:.0f} s", flush=True)
    began_s = time.monotonic()
    with _daemon(stack, ()) as daemon:
        print(f"copied in {time.monotonic() - began_s:.0f} s", flush=True)
        began_s = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        server_before_s = _ended_sessions_s(stack)
        found = verify(daemon, within_s=4 * 3600)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"verified in {time.monotonic() - began_s:.0f} s: {json.dumps(found.one())}")
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"the server's sessions for it: {_ended_sessions_s(stack) - server_before_s:.0f} s of CPU")
        print(f"the command: {used_s:.0f} s of CPU, at most {after.ru_maxrss / 1024:.0f} MiB")
    return found.status


def _ended_sessions_s(stack: Stack) -> float:
    """Return the seconds of CPU of all sessions of the server that have ended."""
    pid = int((stack.postgres.data_folder / "postmaster.pid").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
