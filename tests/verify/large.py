"""One large table, copied, mirrored and compared once: the times, the memory, the load on the source.

In: a stack, a number of rows, formats of mirrors.  Out: printed lines, the exit status of `cdcd verify`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.stack import Stack
from tests.verify.command_usage import CommandUsage
from tests.verify.planted_mirror import run_mirror
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
MOST_S = 4 * 3600


def large(
    stack: Stack, rows: int, formats: Sequence[str], daemon: Callable[[], AbstractContextManager[Daemon]]
) -> int:
    """Copy the table and compare its topic, or with `formats` for each a mirror and the topic."""
    began_s = time.monotonic()
    stack.postgres.create_database("verified")
    for statement in (BIG, FILL.format(rows=rows), "VACUUM ANALYZE big"):
        stack.postgres.execute(statement, dbname="verified")
    print(f"{rows:,} rows inserted in {time.monotonic() - began_s:.0f} s", flush=True)
    began_s = time.monotonic()
    with daemon() as running:
        print(f"copied in {time.monotonic() - began_s:.0f} s", flush=True)
        if not formats:
            return _compared(stack, running)
        return max(_mirrored(stack, running, one) for one in formats)


def _mirrored(stack: Stack, daemon: Daemon, table_format: str) -> int:
    began_s = time.monotonic()
    target = stack.folder / f"mirror-{table_format}"
    with CommandUsage("cdcd.spark", "mirror") as usage:
        run_mirror(daemon, target, table_format)
    print(f"{table_format}: mirrored in {time.monotonic() - began_s:.0f} s; {usage}", flush=True)
    return _compared(stack, daemon, "--mirror", str(target))


def _compared(stack: Stack, daemon: Daemon, *words: str) -> int:
    began_s = time.monotonic()
    server_before_s = _ended_sessions_s(stack)
    with CommandUsage("cdcd", "verify") as usage:
        found = verify(daemon, *words, within_s=MOST_S)
    print(f"verified in {time.monotonic() - began_s:.0f} s: {json.dumps(found.one())}")
    for topic, outcome in found.mirror.items():
        print(f"the mirror of {topic}: {json.dumps(outcome)}")
    print(f"the server's sessions for it: {_ended_sessions_s(stack) - server_before_s:.0f} s of CPU")
    print(f"the command: {usage}", flush=True)
    return found.status


def _ended_sessions_s(stack: Stack) -> float:
    """Return the seconds of CPU of all sessions of the server that have ended."""
    pid = int((stack.postgres.data_folder / "postmaster.pid").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
