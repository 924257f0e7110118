"""Waits: what cdcd waits for, who holds it up, since when, and what ends it.

In: what a part of cdcd waits for, whom a look at the server has found.  Out: `Wait`, its words for log and /status.
Invariant: one table says of every kind of wait what is waited for and what ends it. What is not known of a blocker
is None, and is left out where it is shown. No query text and no row value is in it.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from cdcd.redaction import clean

Kind = Literal[
    "slot_creation",
    "lock",
    "slot_held",
    "promotion",
    "standby",
    "source",
    "kafka",
    "registry",
    "back_pressure",
    "disk",
]

MOST_BLOCKERS = 10
"""So many are shown; there may be thousands of open transactions."""
_MOST_CHARACTERS = 200


class Rule(NamedTuple):
    """What is waited for, and what ends it."""

    waits_for: str
    ends_when: str


KINDS: dict[Kind, Rule] = {
    "slot_creation": Rule(
        "PostgreSQL to create the slot, after every transaction that was writing when the creation began",
        "these transactions commit or roll back, in every database of the server, prepared ones included (COMMIT "
        "PREPARED, ROLLBACK PREPARED): ask whoever runs them; new transactions may go on writing",
    ),
    "lock": Rule(
        "a lock in PostgreSQL",
        "the transaction that holds the lock commits or rolls back: ask whoever runs it",
    ),
    "slot_held": Rule(
        "the replication slot, which somebody else holds",
        "its holder stops or streams no more; a frozen or disconnected one loses it after wal_sender_timeout",
    ),
    "promotion": Rule(
        "a primary: the server is a standby",
        "the standby is promoted, or source.dsn leads to the primary (name all servers, and target_session_attrs)",
    ),
    "standby": Rule(
        "a standby to receive the WAL before PostgreSQL sends it (synchronized_standby_slots)",
        "the standby of each slot in synchronized_standby_slots has it; a standby that is gone for good is taken out "
        "of synchronized_standby_slots (ALTER SYSTEM SET, then SELECT pg_reload_conf())",
    ),
    "source": Rule(
        "PostgreSQL to accept a connection and answer",
        "the server, the network or the credentials in source.dsn are back; cdcd tries again by itself",
    ),
    "kafka": Rule(
        "Kafka to answer",
        "every partition that is written to has a leader and enough replicas in sync; cdcd goes on by itself",
    ),
    "registry": Rule("the schema registry to answer", "it answers; cdcd tries again by itself"),
    "back_pressure": Rule(
        "Kafka to take the rows that are encoded already; nothing more is read from PostgreSQL meanwhile",
        "Kafka takes them",
    ),
    "disk": Rule(
        "room for open transactions in buffer.spill_dir; nothing more is read from PostgreSQL meanwhile",
        "space is freed on its file system within 30 s; then cdcd halts and gives its room back",
    ),
}


@dataclass(frozen=True, slots=True)
class Blocker:
    """Who or what holds a wait up.

    `who`: `pid 4711`, a prepared transaction, a partition, a slot. `since_s`: since when it does, or its transaction
    is open (Unix epoch), None where PostgreSQL does not show that to this role. `doing`: what it does that holds up.
    """

    who: str
    doing: str = ""
    pid: int | None = None
    database: str | None = None
    user: str | None = None
    application: str | None = None
    since_s: float | None = None

    def __str__(self) -> str:
        of = f" of {cleaned(self.user)}" if self.user else ""
        where = f" in database {cleaned(self.database)}" if self.database else ""
        application = f" ({cleaned(self.application)})" if self.application else ""
        since = f", since {instant(self.since_s)}" if self.since_s is not None else ""
        doing = f", {cleaned(self.doing)}" if self.doing else ""
        return f"{cleaned(self.who)}{of}{where}{application}{doing}{since}"

    def page(self) -> dict[str, Any]:
        """Return what /status shows of it: what is not known is not there."""
        known: dict[str, Any] = {
            "who": cleaned(self.who),
            "pid": self.pid,
            "database": cleaned(self.database or ""),
            "user": cleaned(self.user or ""),
            "application": cleaned(self.application or ""),
            "doing": cleaned(self.doing),
            "since": None if self.since_s is None else instant(self.since_s),
        }
        return {name: value for name, value in known.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look has found of a wait: what is waited for exactly, and who holds it up."""

    kind: Kind
    what: str = ""
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait. `since_s`: since when cdcd waits (Unix epoch)."""

    kind: Kind
    what: str
    since_s: float
    blockers: tuple[Blocker, ...] = ()

    @property
    def ends_when(self) -> str:
        """What ends it."""
        return KINDS[self.kind].ends_when

    @property
    def waits_for(self) -> str:
        """What is waited for, with the object where one is known."""
        rule = KINDS[self.kind].waits_for
        return f"{rule}: {cleaned(self.what)}" if self.what else rule

    def page(self, now_s: float) -> dict[str, Any]:
        """Return what /status shows."""
        return {
            "kind": self.kind,
            "waits_for": self.waits_for,
            "since": instant(self.since_s),
            "seconds": round(max(0.0, now_s - self.since_s), 1),
            "blockers": [blocker.page() for blocker in self.blockers[:MOST_BLOCKERS]],
            "more_blockers": max(0, len(self.blockers) - MOST_BLOCKERS),
            "ends_when": self.ends_when,
        }


def held_by(blockers: tuple[Blocker, ...]) -> str:
    """Return one line that names them, the first of many."""
    if not blockers:
        return "not known"
    more = len(blockers) - MOST_BLOCKERS
    shown = [str(blocker) for blocker in blockers[:MOST_BLOCKERS]]
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown)


def instant(epoch_s: float) -> str:
    """Return a moment as ISO 8601 in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cleaned(text: str | None) -> str:
    """Return a name as it may be shown: an application_name is whatever its client says."""
    return clean(text or "", _MOST_CHARACTERS)
