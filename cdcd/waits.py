"""Waits: the condition that cdcd waits for, its blockers, its start time, and the event that ends it.

In: the kind and object of a wait, and the blockers that a query found.  Out: `Wait`, with its texts for log and
/status.
Invariant: the table KINDS defines the condition and the ending event of every kind of wait. An unknown property of a
blocker is None and is not shown. No text here contains query text or row values.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from cdcd.redaction import clean

WaitKind = Literal[
    "slot_creation",
    "lock",
    "slot_held",
    "promotion",
    "standby",
    "snapshot_standby",
    "source",
    "kafka",
    "registry",
    "back_pressure",
    "disk",
]

MOST_BLOCKERS = 10
"""The most blockers that are shown; there may be thousands of open transactions."""
_MOST_CHARACTERS = 200


class Rule(NamedTuple):
    """The condition that a kind of wait is for, and the event that ends the wait."""

    waits_for: str
    ends_when: str


KINDS: dict[WaitKind, Rule] = {
    "slot_creation": Rule(
        "PostgreSQL to create the slot, after every transaction that was writing when the creation began",
        "these transactions commit or roll back, in every database of the server, including prepared ones "
        "(COMMIT PREPARED, ROLLBACK PREPARED): ask their owners to end them; new transactions may continue to write",
    ),
    "lock": Rule(
        "a lock in PostgreSQL",
        "the transaction that holds the lock commits or rolls back: ask its owner to end it",
    ),
    "slot_held": Rule(
        "the replication slot, which another session holds",
        "the other session ends its stream; PostgreSQL ends a frozen or disconnected one after wal_sender_timeout",
    ),
    "promotion": Rule(
        "a primary: the server is a standby",
        "the standby is promoted, or source.dsn leads to the primary (name all servers, and target_session_attrs)",
    ),
    "standby": Rule(
        "a standby to receive the WAL before PostgreSQL sends it (synchronized_standby_slots)",
        "the standby of each slot in synchronized_standby_slots has the WAL; remove a standby that will not come "
        "back from synchronized_standby_slots (ALTER SYSTEM SET, then SELECT pg_reload_conf())",
    ),
    "snapshot_standby": Rule(
        "the standby from which the tables are copied (snapshot.from)",
        "the standby answers, replays the primary's WAL and cancels no query of the copy; cdcd retries by "
        "itself, and does not read the tables of the primary instead. To copy from the primary, remove "
        "snapshot.from and restart cdcd",
    ),
    "source": Rule(
        "PostgreSQL to accept a connection and answer",
        "the server and the network work again, and the credentials in source.dsn are valid; cdcd retries by itself",
    ),
    "kafka": Rule(
        "Kafka to answer",
        "every partition that cdcd writes to has a leader and enough in-sync replicas; cdcd continues by itself",
    ),
    "registry": Rule("the schema registry to answer", "the registry answers; cdcd retries by itself"),
    "back_pressure": Rule(
        "Kafka to accept the encoded rows; nothing more is read from PostgreSQL meanwhile",
        "Kafka accepts the rows",
    ),
    "disk": Rule(
        "disk space for open transactions in buffer.spill_dir; nothing more is read from PostgreSQL meanwhile",
        "space is freed on the file system of buffer.spill_dir within 30 s; otherwise cdcd halts and removes its "
        "files there",
    ),
}


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session, transaction, partition or slot that a wait depends on.

    `who`: `pid 4711`, a prepared transaction, a partition, a slot. `since_s`: when it began to block, or when its
    transaction began (Unix epoch); None if PostgreSQL does not show it to this role. `doing`: the blocking activity.
    """

    who: str
    doing: str = ""
    pid: int | None = None
    database: str | None = None
    user: str | None = None
    application: str | None = None
    since_s: float | None = None

    def __str__(self) -> str:
        of = f" of {clean_name(self.user)}" if self.user else ""
        where = f" in database {clean_name(self.database)}" if self.database else ""
        application = f" ({clean_name(self.application)})" if self.application else ""
        since = f", since {instant(self.since_s)}" if self.since_s is not None else ""
        doing = f", {clean_name(self.doing)}" if self.doing else ""
        return f"{clean_name(self.who)}{of}{where}{application}{doing}{since}"

    def page(self) -> dict[str, Any]:
        """Return the blocker's fields for /status, without those that are unknown."""
        known: dict[str, Any] = {
            "who": clean_name(self.who),
            "pid": self.pid,
            "database": clean_name(self.database or ""),
            "user": clean_name(self.user or ""),
            "application": clean_name(self.application or ""),
            "doing": clean_name(self.doing),
            "since": None if self.since_s is None else instant(self.since_s),
        }
        return {name: value for name, value in known.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class WaitCause:
    """The result of a query about a wait: the object that is waited for, and the blockers."""

    kind: WaitKind
    what: str = ""
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait. `since_s`: when the wait began (Unix epoch)."""

    kind: WaitKind
    what: str
    since_s: float
    blockers: tuple[Blocker, ...] = ()

    @property
    def ends_when(self) -> str:
        """The event that ends the wait."""
        return KINDS[self.kind].ends_when

    @property
    def waits_for(self) -> str:
        """The condition that is waited for, with its object if that is known."""
        rule = KINDS[self.kind].waits_for
        return f"{rule}: {clean_name(self.what)}" if self.what else rule

    def page(self, now_s: float) -> dict[str, Any]:
        """Return the wait's fields for /status."""
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
    """Return one line that names the blockers; of many blockers, the first."""
    if not blockers:
        return "not known"
    more = len(blockers) - MOST_BLOCKERS
    shown = [str(blocker) for blocker in blockers[:MOST_BLOCKERS]]
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown)


def instant(epoch_s: float) -> str:
    """Return a moment as ISO 8601 in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clean_name(text: str | None) -> str:
    """Return a name as it may be shown: a client can set its application_name to any text."""
    return clean(text or "", _MOST_CHARACTERS)
