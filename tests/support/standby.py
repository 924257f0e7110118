"""Create a physical standby from a running primary, let it follow, promote it.

In: a running primary of the test.  Out: a `PostgresServer` in recovery, with synchronized slots (17 and later).
Invariant: the data is copied with the low-level backup functions while the primary runs, because these servers have
no pg_basebackup.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer
from tests.support.stack import written_position
from tests.support.waiting import eventually

_SOCKET = ".s.PGSQL"
PHYSICAL_SLOT = "standby_1"
_LEFT_OUT = {"postmaster.pid", "postmaster.opts", "pg_replslot", "pg_wal"}


def make_standby(primary: PostgresServer, standby: PostgresServer, *, is_synchronised: bool = True) -> None:
    """Make `standby`, which is not started yet, a standby of `primary`, and start it.

    `is_synchronised`: the standby synchronizes the primary's failover slots; their walsenders wait for it.
    """
    copy_of(primary, standby)
    conninfo = f"host={primary.host} port={primary.port} user={primary.superuser} dbname=postgres"
    lines = [
        f"primary_conninfo = '{conninfo}'",
        f"primary_slot_name = '{PHYSICAL_SLOT}'",
        "hot_standby_feedback = on",
    ]
    if is_synchronised:
        lines.append("sync_replication_slots = on")
    _append(standby, *lines)
    (standby.data_folder / "standby.signal").touch()
    primary.execute(f"SELECT pg_create_physical_replication_slot('{PHYSICAL_SLOT}', true)")
    standby.start()
    if is_synchronised:
        primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{PHYSICAL_SLOT}'")
        primary.execute("SELECT pg_reload_conf()")
    eventually(lambda: primary.execute("SELECT 1 FROM pg_stat_replication"), "the standby follows")


def copy_of(server: PostgresServer, other: PostgresServer) -> None:
    """Copy the data of the running `server` to `other`, which is not started yet; their histories then diverge."""
    is_old = server.major < 15
    start = "pg_start_backup('copy', true, false)" if is_old else "pg_backup_start('copy', true)"
    stop = "pg_stop_backup(false, false)" if is_old else "pg_backup_stop(false)"
    other.folder.mkdir(parents=True, exist_ok=True)
    # The backup ends with the session that began it.
    with contextlib.closing(psycopg2.connect(server.dsn())) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"SELECT {start}")
        _copy_folder(server.data_folder, other.data_folder)
        cursor.execute(f"SELECT labelfile FROM {stop}")
        ((label,),) = cursor.fetchall()
    # Copy the WAL after the data: all WAL that the copy needs has been written by then.
    shutil.copytree(server.data_folder / "pg_wal", other.data_folder / "pg_wal")
    (other.data_folder / "pg_replslot").mkdir(mode=0o700)
    (other.data_folder / "backup_label").write_text(label)
    owner = server.data_folder.stat()
    for folder, _, files in os.walk(other.folder):
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            os.chown(path, owner.st_uid, owner.st_gid)


def follow(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has replayed everything that the primary has committed."""
    end_lsn = written_position(primary)
    replayed = "SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn"
    eventually(lambda: standby.execute(replayed)[0][0] >= end_lsn, "the standby has replayed the WAL")


def promote(standby: PostgresServer) -> None:
    """Promote the server and wait until it accepts writes."""
    standby.execute("SELECT pg_promote()")
    eventually(lambda: standby.execute("SELECT pg_is_in_recovery()") == [(False,)], "the server is promoted")


def await_slot(standby: PostgresServer, slot: str) -> None:
    """Wait until the standby's copy of the slot would survive a promotion (F57)."""
    usable = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND synced AND NOT temporary"
    eventually(lambda: standby.execute(usable), "the slot is synchronised", 60)


def hosts_dsn(dbname: str, *servers: PostgresServer) -> str:
    """Return a DSN with several servers that connects to the one that accepts writes."""
    places = ",".join(f"{server.host}:{server.port}" for server in servers)
    return f"postgresql://{servers[0].superuser}@{places}/{dbname}?target_session_attrs=read-write"


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder while the server writes: a file may disappear meanwhile; WAL replay restores the state."""
    target.mkdir(mode=0o700)
    for folder, folders, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in folders:
            (here / name).mkdir(mode=0o700)
        for name in files:
            if name not in _LEFT_OUT and not name.startswith(_SOCKET):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(Path(folder) / name, here / name)


def _append(server: PostgresServer, *lines: str) -> None:
    # Not postgresql.conf: the copied settings of the primary's ALTER SYSTEM would override it.
    with (server.data_folder / "postgresql.auto.conf").open("a") as file:
        file.write("\n".join(["", *lines, ""]))
