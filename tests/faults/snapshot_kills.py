"""Twenty moments of an initial snapshot at which cdcd is killed or its connections are cut, and the load meanwhile.

In: a world whose daemon is not started, a link in front of its server.  Out: one interruption after another.
Invariant: an interruption happens at its moment, or the run fails; sessions write from before the first start on.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import psycopg2

from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.faults.assertions.snapshots import complete_at
from tests.faults.facts import Block
from tests.faults.workload import first, write
from tests.faults.world import World
from tests.support.daemon import Daemon
from tests.support.proxy import Proxy
from tests.support.snapshot_commands import copied_rows, reports
from tests.support.stack import run_script
from tests.support.waiting import eventually

ROWS = 4_000
"""Rows of each table but the last, about 200 bytes each: several reads, and several Kafka transactions."""
LOAD = {"small": 120, "savepoints": 20, "copied": 10, "prepared": 6, "aborted": 6, "altered": 8, "emptied": 1}
PAUSE_S = 0.03
WRITES_BETWEEN = 12
"""Transactions between an interruption and the next start, so that each attempt has another point."""
SLOW_BYTES_PER_S = 1_500_000
"""The speed of the link during random moments: the copy then takes seconds."""
CONFIGURATION: dict[str, Any] = {
    # Last the largest table, which is never truncated: each attempt is long enough for its moments.
    "snapshot": {"workers": 2, "overrides": [{"table": "public.whole", "priority": -1}]},
    "sink": {"commit": {"max_rows": 100}, "topics": {"partitions": 2}},
}

OF_RANGES: dict[str, Any] = {
    **CONFIGURATION,
    "snapshot": {"workers": 2, "overrides": [{"table": "public.whole", "priority": 1}]},
    "sink": {**CONFIGURATION["sink"], "commit": {"max_rows": 1000}},
}
"""The largest table is unfinished at an early interruption."""
LOAD_OF_RANGES = {**LOAD, "altered": 1}
"""A chunk waits until the stream has caught up. Each ALTER costs two requests to the registry, which takes longer the
more versions a subject has: with many of them the stream does not catch up on a busy machine."""

Moment = Callable[["Kills"], None]


def fill(dsn: str, count: int = ROWS) -> None:
    """Insert `count` rows into each table, and three times as many into the last."""
    note, numbers = "repeat(md5(i::text), 6)", "generate_series(1, %s) i"
    wide = "repeat('wide', CASE WHEN i < 200 THEN 1200 ELSE 600 END)"
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for statement in (
            f"INSERT INTO plain SELECT nextval('ids'), i, i, true, {note} FROM {numbers}",
            f"INSERT INTO whole SELECT nextval('ids'), i, i, {note} FROM generate_series(1, 3 * %s) i",
            f"INSERT INTO coded SELECT i, 'code ' || nextval('ids'), i, {note} FROM {numbers}",
            f"INSERT INTO keyless SELECT i, {note} FROM {numbers}",
            f"INSERT INTO wide SELECT nextval('ids'), i, {wide} FROM generate_series(1, %s / 8) i",
            f"INSERT INTO shape SELECT nextval('ids'), i FROM {numbers}",
        ):
            cursor.execute(statement, (count,))
        rows = "".join(f"{number}\t{'journal ' * 24}\n" for number in range(count))
        cursor.copy_from(io.StringIO(rows), "journal", columns=("n", "note"))
        connection.commit()


class Kills:
    """Interrupts the snapshot of one world; `done` has the name of each interruption."""

    def __init__(self, world: World, link: Proxy, seed: str, load: Mapping[str, int] = LOAD) -> None:
        self.world = world
        self.link = link
        self._dice = random.Random(seed)
        self._seed = seed
        self._load = load
        self.done: list[str] = []

    def begin(self, count: int = ROWS) -> None:
        """Fill the tables and start the sessions that write."""
        fill(self.world.dsn, count)
        self.world.write(self._seed, 2, kinds=self._load, pause_s=PAUSE_S)
        self.world.wait_for_writes(WRITES_BETWEEN)

    def strike(self, moment: str) -> None:
        """Interrupt the snapshot at a moment: a failpoint, or one of `MOMENTS`."""
        if moment in MOMENTS:
            MOMENTS[moment](self)
        else:
            self._crash(moment)
        self.done.append(moment)
        self.world.wait_for_writes(WRITES_BETWEEN)

    def end(self) -> None:
        """Pause the sessions, and write a last row to each table, without which its DDL is not visible."""
        self.world.rest()
        write(self.world.dsn, f"{self._seed}.last", first)

    def _crash(self, failpoint: str) -> None:
        daemon = self.world.daemon
        assert not self._runs(), "the moment before has left a process"
        daemon.environment = {VARIABLE: failpoint}
        status = daemon.start().wait_exit()
        daemon.environment = {}
        assert status == EXIT_STATUS, f"{failpoint}: ended with {status}:\n{daemon.log()[-3000:]}"

    def kill_in_copy(self) -> None:
        """SIGKILL when a random number of rows is durable, which is less than the copy has left."""
        self._wait_in_copy()
        self.world.daemon.kill()

    def cut(self, condition: str) -> None:
        """pg_terminate_backend of cdcd's sessions during the copy. The process goes on by itself."""
        self._wait_in_copy()
        ended = self.world.server.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE datname = %s AND application_name LIKE 'cdcd%%' AND {condition}",
            self.world.dbname,
        )
        assert ended[0][0] >= 1, "no session was ended"

    def kill_in_stream(self) -> None:
        """SIGKILL when the stream has written some transactions."""
        if not self._runs():
            self.world.daemon.start()
        self.link.heal()
        wanted = self._dice.randrange(1, 5)
        eventually(
            lambda: self._page("streaming").get("transactions_written", 0) >= wanted, "the stream writes"
        )
        self.world.daemon.kill()

    def kill_in_chunks(self) -> None:
        """SIGKILL when chunks of unfinished tables are durable, while the stream runs."""
        self.world.daemon.start()
        self.link.slow(bytes_per_s=SLOW_BYTES_PER_S)
        wanted = self._dice.randrange(100, ROWS // 2)
        eventually(
            lambda: self._page("streaming") and copied_rows(self.world.daemon) >= wanted,
            f"{wanted} rows are copied in chunks",
            pause_s=0.005,
        )
        assert reports(self.world.daemon), "the copy ended before the moment"
        self.world.daemon.kill()

    def crash_server(self) -> None:
        """Stop PostgreSQL at once during the copy, and start it: its crash recovery keeps the slot."""
        self._wait_in_copy()
        self.world.server.restart("immediate")
        self.world.decide()  # an undecided one would make the creation of the next slot wait for ever (F38)

    def alter_in_copy(self) -> None:
        """Rewrite the last table while the others are copied: its snapshot may not see its rows any more (F81)."""
        self._wait_in_copy()
        run_script(self.world.dsn, "ALTER TABLE whole ALTER n TYPE bigint")

    def alter(self) -> None:
        """Rewrite complete and incomplete tables while no process runs."""
        if self._runs():
            self.world.daemon.kill()
        for table in ("coded", "keyless", "plain", "wide", "shape"):
            run_script(self.world.dsn, f"ALTER TABLE {table} ALTER n TYPE bigint")
        run_script(self.world.dsn, "ALTER TABLE coded ADD added int DEFAULT 7", "VACUUM FULL whole")

    def two_daemons(self) -> None:
        """Start two daemons at the same time. SIGKILL the one that copies, then the one that takes over (F69)."""
        one, other = self.world.daemon, self._second()
        self.link.slow(bytes_per_s=SLOW_BYTES_PER_S)
        for daemon in (one, other):
            daemon.start()
        first = eventually(
            lambda: next((it for it in (one, other) if self._copies(it)), None),
            "a daemon copies",
            pause_s=0.005,
        )
        second = other if first is one else one
        second.wait_state("waiting_slot")
        first.kill()
        eventually(
            lambda: self._copies(second) or self._is_back(second), "the other daemon copies", pause_s=0.005
        )
        second.kill()

    def _second(self) -> Daemon:
        """Return another daemon with the same slot, topics and links."""
        one = self.world.daemon
        folder = one.folder.with_name("second")
        other = Daemon(folder, one.name, dsn="", bootstrap="", registry_url="", **CONFIGURATION)
        other.config = {**one.config, "admin": other.config["admin"]}
        other.spawn = one.spawn
        return other

    def _copies(self, daemon: Daemon) -> bool:
        page = daemon.status()
        daemon.assert_alive()
        return page.get("state") == "snapshot" and page["rows_written"] > 0

    def _is_back(self, daemon: Daemon) -> bool:
        """Whether a daemon streams; one that waits is sent SIGHUP to try again now."""
        state = daemon.status().get("state")
        if state in ("waiting_slot", "backoff"):
            daemon.reload()
        return state == "streaming"

    def _wait_in_copy(self) -> None:
        """Start the daemon if it does not run, and wait for a random moment of its copy."""
        self.link.slow(bytes_per_s=SLOW_BYTES_PER_S)
        begun = self._page("snapshot").get("rows_written", 0) if self._runs() else 0
        if not self._runs():
            self.world.daemon.start()
        wanted = begun + self._dice.randrange(0, ROWS)
        eventually(
            lambda: self._page("snapshot").get("rows_written", -1) >= wanted,
            f"{wanted} rows of the copy are durable",
            pause_s=0.005,
        )

    def _page(self, state: str) -> dict[str, Any]:
        """Return /status in this state, otherwise nothing. A daemon in the back-off is sent SIGHUP to retry now."""
        page = self.world.daemon.status()
        self.world.daemon.assert_alive()
        if page.get("state") == "backoff":
            self.world.daemon.reload()
        assert state == "streaming" or page.get("state") != "streaming", "the copy ended before the moment"
        return page if page.get("state") == state else {}

    def _runs(self) -> bool:
        process = self.world.daemon.process
        return process is not None and process.poll() is None


MOMENTS: dict[str, Moment] = {
    "killed in the copy": Kills.kill_in_copy,
    "all connections cut": lambda kills: kills.cut("true"),
    "the slot's connection cut": lambda kills: kills.cut("backend_type = 'walsender'"),
    "killed in the stream": Kills.kill_in_stream,
    "killed in the chunks": Kills.kill_in_chunks,
    "server crashed": Kills.crash_server,
    "altered in the copy": Kills.alter_in_copy,
    "altered": Kills.alter,
    "two daemons": Kills.two_daemons,
}

RANGES = "ranges"
"""The chain in which tables are divided, so that their copy continues in chunks."""
CHAINS: dict[str, tuple[str, ...]] = {
    "few": ("slot_made", "committed:9", "snapshot_copied"),
    "hand-over": (
        "snapshot_begun", "slot_made", "committed:9", "produced:7", "snapshot_copied", "in_transaction:1",
    ),
    "groups": ("schema_level_set", "committed:2", "flushed:9", "progress_produced:6", "received:1"),
    "random": (
        "killed in the copy", "slot_made", "killed in the copy", "all connections cut", "killed in the copy",
        "killed in the stream",
    ),
    "cut": ("the slot's connection cut", "killed in the stream", "killed in the stream"),
    "altered": ("altered in the copy", "killed in the copy", "altered", "committed:5", "killed in the stream"),
    "two": ("committed:5", "two daemons", "two daemons", "snapshot_copied", "killed in the stream"),
    "server": ("server crashed", "killed in the copy", "server crashed", "killed in the stream"),
    "after": ("in_snapshot:14", "snapshot_copied", "committed:1", "confirmed:1"),
    RANGES: ("committed:4", "chunk_emitted:2", "killed in the chunks", "committed:6", "killed in the chunks"),
}  # fmt: skip
"""Most interruptions are kills: of the copy, of the hand-over to the stream, and after it."""


def account(block: Block) -> tuple[int, int, int]:
    """Return the number of snapshot rows, of those in abandoned attempts, and of tables complete before the last."""
    rows = [one for one in block.events if one.op == "r"]
    points: dict[str, int] = {}
    for one in rows:
        points[one.table] = max(points.get(one.table, 0), one.commit_lsn)
    abandoned = sum(one.commit_lsn < points[one.table] for one in rows)
    complete_before = sum(
        point < last_lsn
        for complete, last_lsn in complete_at(block.progress, block.names)
        for point in complete.values()
    )
    return len(rows), abandoned, complete_before
