"""One situation: how it is brought about, what cdcd prints then, and what an operator does who follows the hint.

In: real servers, a database with a table, a daemon for it.  Out: nothing; a situation whose error, hint or outcome
is another one fails.
Invariant: the hint is read from what cdcd prints: what is done after it is what its words say, and nothing else.
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
"""Brings the situation about, yields (what was printed, if that is not in the daemon's log), follows the hint."""

SHOWN_WITHIN_S = 120
CLASSES: dict[str, type[CdcdError]] = {
    one.code: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CdcdError)
}
_ids = itertools.count(1_000)


@dataclass(frozen=True)
class Situation:
    """A row of the table. `hint`: what the printed hint has to have; `told`: the log's event that tells the error;
    `is_well_after`: a row arrives at the end.
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
    """Put a function into the table. It halts, or `is_retried`, or `ends` the process."""

    def taken(play: Play) -> Play:
        reported = "exiting" if ends else "retrying" if is_retried else "halted"
        SITUATIONS.append(Situation(code, what, hint, play, reported, is_well_after))
        return play

    return taken


@dataclass
class World:
    """What a situation is played with. The table `t (id int PRIMARY KEY, body text)` is there and published."""

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
    """What was printed last; from then on nothing is done that it does not say."""

    # --- the daemon ---

    def configure(self, **over: Any) -> None:
        """Change the configuration; a running daemon does not see it before its next start."""
        for path in _paths(over) if self.hint else ():
            assert _says(self.hint, path), f"{path} is not in: {self.hint}"
        merge(self.daemon.config, over)

    def start(self, **over: Any) -> None:
        """Start the daemon, again where it runs, with another configuration."""
        self.configure(**over)
        if self.daemon.process is not None and self.daemon.process.poll() is None:
            self.daemon.stop()
        self.daemon.start()

    def stream(self, **over: Any) -> None:
        """Start the daemon and let it come as far as streaming, with a row in the topic."""
        self.start(**over)
        self.daemon.wait_state("streaming")
        self.insert()
        await_confirmed(self.server, self.daemon)

    def resume(self, *words: str) -> None:
        """`cdcd resume`, or another command: it goes through."""
        words = words or ("resume",)
        said = " ".join(words).replace(self.topic, "NAME")
        assert f"`cdcd {said}`" in self.hint or not self.hint, f"{said} is not in: {self.hint}"
        ran = self.command(*words)
        assert ran.returncode == 0, (ran.stdout, ran.stderr)

    def command(self, *words: str) -> Any:
        """Run a command with the daemon's configuration."""
        return command(self.daemon, *words)

    def said(self, code: str) -> str:
        """The hint of the last line of the log that tells of this code."""
        reported = [line for line in self.daemon.lines() if line.get("code") == code][-1]
        self.hint = hint_of(" ".join(filter(None, (str(reported["error"]), reported.get("hint")))))
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
        """Make a role; the DSN for it."""
        self.sql(f"CREATE ROLE {name} LOGIN {' '.join(options)}")
        self.closing.callback(self._drop_role, name)
        return self.server.dsn(self.dbname, name)

    def _drop_role(self, name: str) -> None:
        self.sql(f"DROP OWNED BY {name}", f"DROP ROLE {name}")

    def pg_hba(self, line: str) -> Callable[[], None]:
        """Put a line before all others of pg_hba.conf; what takes it away again."""
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
    """Play a situation: its error and hint are printed, and it is gone when the hint is followed."""
    steps = one.play(world)
    shown = next(steps)
    reported = shown if shown is not None else _printed(one, world.daemon)
    error, _, hint = reported.partition(" -> ")
    assert one.code + ":" in error, reported
    for part in one.hint:
        assert part in hint, f"{part!r} is not in: {hint or reported}"
    world.hint = hint
    assert next(steps, None) is None, "a situation has one error"
    if one.is_well_after:
        _assert_well(world)


def _paths(over: dict[str, Any], above: str = "") -> Iterator[str]:
    """The settings that a configuration changes, as a hint names them."""
    for key, value in over.items():
        path = f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
        else:
            yield path


def _says(hint: str, path: str) -> bool:
    """Whether the hint names the setting, or that which it is a part of."""
    parts = path.split(".")
    return any(".".join(parts[:count]) in hint for count in range(min(2, len(parts)), len(parts) + 1))


def _printed(one: Situation, daemon: Daemon) -> str:
    """The error of the first line that tells of this code; what may pass is tried again before it halts."""
    passing = {"retrying"} if CLASSES[one.code].retry is Retry.LIMITED else set()

    def said() -> str:
        for found in daemon.lines():
            if found["event"] in ("retrying", "halted", "exiting") and found["code"] == one.code:
                if found["event"] in passing - {one.reported}:
                    continue
                assert found["event"] == one.reported, found
                return " ".join(filter(None, (str(found["error"]), found.get("hint"))))
        return ""

    try:
        return eventually(said, f"{one.code} is {one.reported}", SHOWN_WITHIN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{daemon.log()[-4000:]}") from None


def _assert_well(world: World) -> None:
    world.daemon.wait_state("streaming", deadline_s=120)
    world.insert()
    await_confirmed(world.server, world.daemon)
