"""A situation: how to cause an error, what cdcd then prints, and what an operator who follows the hint does.

In: real servers, a database with a table, a daemon for it.  Out: nothing; the test fails if the error, the hint or
the outcome differs.
Invariant: the hint is read from cdcd's output; the steps after it are exactly those that the hint names.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from cdcd import errors
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import CdcdError, Retry
from tests.support.daemon import Daemon, await_confirmed, merge
from tests.support.hints import apply, hint_of
from tests.support.resolutions import command
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

Play = Callable[["World"], Iterator[str | None]]
"""Causes the error, yields (the printed error, if it is not in the daemon's log, else None), follows the hint."""

SHOWN_WITHIN_S = 120
CLASSES: dict[str, type[CdcdError]] = {
    one.code: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CdcdError)
}
_ids = itertools.count(1_000)


@dataclass(frozen=True)
class Situation:
    """A row of the table. `hint`: texts that the printed hint must contain; `reported`: the log event that has the
    error; `is_well_after`: a row that is inserted at the end arrives.
    """

    code: str
    what: str
    hint: tuple[str, ...]
    play: Play
    reported: str
    is_well_after: bool

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


SITUATIONS: list[Situation] = []


def situation(
    code: str, what: str, *hint: str, is_retried: bool = False, ends: bool = False, is_well_after: bool = True
) -> Callable[[Play], Play]:
    """Add a function to the table. The daemon halts, unless the error `is_retried` or `ends` the process."""

    def taken(play: Play) -> Play:
        reported = "exiting" if ends else "retrying" if is_retried else "halted"
        SITUATIONS.append(Situation(code, what, hint, play, reported, is_well_after))
        return play

    return taken


@dataclass
class World:
    """The environment of a situation. The table `t (id int PRIMARY KEY, body text)` exists and is published."""

    servers: PostgresServers
    server: PostgresServer
    dbname: str
    kafka: KafkaBroker
    registry: SchemaRegistry
    folder: Path
    new_daemon: Callable[..., Daemon]
    daemon: Daemon
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    table: str = "public.t"
    hint: str = ""
    """The hint printed last; every later step must be named in it."""

    # --- the daemon ---

    def configure(self, **over: Any) -> None:
        """Change the configuration; a running daemon reads it at its next start."""
        for path in _paths(over) if self.hint else ():
            assert _says(self.hint, path), f"{path} is not in: {self.hint}"
        merge(self.daemon.config, over)

    def start(self, **over: Any) -> None:
        """Start the daemon with another configuration; stop it first if it runs."""
        self.configure(**over)
        if self.daemon.process is not None and self.daemon.process.poll() is None:
            self.daemon.stop()
        self.daemon.start()

    def stream(self, **over: Any) -> None:
        """Start the daemon, wait until it streams, and insert a row and wait until it is in the topic."""
        self.start(**over)
        self.daemon.wait_state("streaming")
        self.insert()
        await_confirmed(self.server, self.daemon)

    def resume(self, *words: str) -> None:
        """Run `cdcd resume`, or another command that the hint names; the command must succeed."""
        words = words or ("resume",)
        line = " ".join(words).replace(self.topic, "NAME")
        assert f"`cdcd {line}`" in self.hint or not self.hint, f"{line} is not in: {self.hint}"
        ran = self.command(*words)
        assert ran.returncode == 0, (ran.stdout, ran.stderr)

    def command(self, *words: str) -> Any:
        """Run a command with the daemon's configuration."""
        return command(self.daemon, *words)

    def printed_hint(self, code: str) -> str:
        """Return the hint of the last log line with this error code."""
        reported = [line for line in self.daemon.lines() if line.get("code") == code][-1]
        self.hint = hint_of(_shown(reported))
        return self.hint

    def follow(self, hint: str, name: str, value: Any = None) -> None:
        """Change the setting as the hint says (`tests.support.hints.apply`) and restart the daemon."""
        apply(self.daemon.config, hint, name, value)
        self.start()

    # --- the servers ---

    @property
    def slot(self) -> str:
        """The daemon's slot."""
        return self.daemon.slot

    @property
    def topic(self) -> str:
        """The topic of the table t."""
        return f"{self.daemon.name}.public.t"

    def sql(self, *statements: str, server: PostgresServer | None = None, dbname: str | None = None) -> None:
        """Run statements as the superuser."""
        run_script((server or self.server).dsn(dbname or self.dbname), *statements)

    def insert(self) -> None:
        """Insert a row into the table."""
        self.sql(f"INSERT INTO {self.table} (id) VALUES ({next(_ids)})")

    def admin(self) -> AdminClient:
        """An admin client of Kafka."""
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap})

    def role(self, name: str, *options: str) -> str:
        """Create a role; return its DSN."""
        self.sql(f"CREATE ROLE {name} LOGIN {' '.join(options)}")
        self.closing.callback(self._drop_role, name)
        return self.server.dsn(self.dbname, name)

    def _drop_role(self, name: str) -> None:
        self.sql(f"DROP OWNED BY {name}", f"DROP ROLE {name}")

    def pg_hba(self, line: str) -> Callable[[], None]:
        """Insert a line at the top of pg_hba.conf; return a function that removes it."""
        path = self.server.data_folder / "pg_hba.conf"
        before = path.read_text()

        def restore() -> None:
            path.write_text(before)
            self.sql("SELECT pg_reload_conf()", dbname="postgres")

        path.write_text(f"{line}\n{before}")
        self.sql("SELECT pg_reload_conf()", dbname="postgres")
        self.closing.callback(restore)
        return restore


def played(one: Situation, world: World) -> None:
    """Run a situation: its error and hint are printed, and following the hint resolves the error."""
    steps = one.play(world)
    shown = next(steps)
    reported = shown if shown is not None else _printed(one, world.daemon)
    error, hint = reported.partition(" -> ")[0], hint_of(reported)
    assert one.code + ":" in error, reported
    for part in one.hint:
        assert part in hint, f"{part!r} is not in: {hint or reported}"
    world.hint = hint
    assert next(steps, None) is None, "a situation may yield only one error"
    if one.is_well_after:
        _assert_well(world)


def _paths(over: dict[str, Any], above: str = "") -> Iterator[str]:
    """Yield the settings that a configuration changes, as hints name them."""
    for key, value in over.items():
        path = f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
        else:
            yield path


def _says(hint: str, path: str) -> bool:
    """Return whether the hint names the setting or its section."""
    parts = path.split(".")
    return any(".".join(parts[:count]) in hint for count in range(min(2, len(parts)), len(parts) + 1))


def _printed(one: Situation, daemon: Daemon) -> str:
    """Return the error and hint of the first log line with this code; an error that can pass is retried first."""
    passing = {"retrying"} if CLASSES[one.code].retry is Retry.LIMITED else set()

    def reported() -> str:
        for found in daemon.lines():
            if found["event"] in ("retrying", "halted", "exiting") and found["code"] == one.code:
                if found["event"] in passing - {one.reported}:
                    continue
                assert found["event"] == one.reported, found
                return _shown(found)
        return ""

    try:
        return eventually(reported, f"{one.code} is {one.reported}", SHOWN_WITHIN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{daemon.log()[-4000:]}") from None


def _shown(line: dict[str, Any]) -> str:
    """Return the error of a log line with its hint; a hint of the line itself repeats that of the error."""
    error, _, hint = str(line["error"]).partition(" -> ")
    return f"{error} -> {line.get('hint', hint)}"


def _assert_well(world: World) -> None:
    world.daemon.wait_state("streaming", deadline_s=120)
    world.insert()
    await_confirmed(world.server, world.daemon)
