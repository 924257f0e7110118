"""Who writes to which topics: what the records of all slots on the cluster say, and what that forbids.

In: the last progress of every slot, and its record of topics.  Out: `Owner`s, and the error of what another one owns.
Invariant: a topic has one slot that writes to it, unless somebody has said so: two databases' rows would have the
same keys there, and one database's rows would come twice (F80). A slot that an older version has written for is an
owner, too: its progress says which server and database it is of.
Must not: do I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cdcd.errors import OwnedByAnother, ProgressUnreadable
from cdcd.model import Progress
from cdcd.sink.names import message_topic, own_topics, progress_topic, transaction_topic
from cdcd.sink.progress import load
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics

__all__ = [
    "Owner",
    "ProgressKey",
    "Record",
    "conflict",
    "is_slots",
    "owners_of",
    "progress_of",
    "same_id",
    "topics_elsewhere",
]

_SHOWN = 5
Record = tuple[int, bytes | None]
"""Offset and value of the last record under a key of a progress topic."""


@dataclass(frozen=True, slots=True)
class ProgressKey:
    """Where a slot's progress is; no two slots have the same."""

    progress_topic: str
    slot: str

    @property
    def prefix(self) -> str:
        """The `name` of its configuration."""
        return self.progress_topic.removesuffix(progress_topic(""))


@dataclass(frozen=True, slots=True)
class Owner:
    """A slot that has written, and the topics that are its own.

    `has_slot`: it has read the slot, or made it; one whose start was cut off before has not.
    """

    progress_key: ProgressKey
    system_identifier: str
    database: str
    transactional_id: str
    topics: frozenset[str]
    has_slot: bool = True

    def reads(self, slot: str, system_identifier: str, database: str) -> bool:
        """Whether it is this slot of this server that its progress is of."""
        here = (self.progress_key.slot, self.system_identifier, self.database)
        return self.has_slot and here == (slot, system_identifier, database)

    def is_of(self, system_identifier: str, database: str) -> bool:
        """Whether its progress is of this server and database."""
        return (self.system_identifier, self.database) == (system_identifier, database)

    def __str__(self) -> str:
        key = self.progress_key
        slot = f"slot {key.slot} of database {self.database}, system identifier {self.system_identifier}"
        return f"{slot} (name {key.prefix})"


def progress_of(records: Mapping[bytes, Record]) -> dict[str, Progress]:
    """Return the progress of each slot of one progress topic. Raises ProgressUnreadable.

    A key that is no slot's name is somebody else's, or says what a slot's topics are.
    """
    return {
        key.decode(): load(value)
        for key, (_, value) in records.items()
        if value is not None and is_slots(key)
    }


def is_slots(key: bytes) -> bool:
    """Whether the key may be a slot's name: it is of ASCII characters, and has no slash."""
    return key.isascii() and b"/" not in key


def topics_elsewhere(found: Mapping[str, Progress], records: Mapping[bytes, Record]) -> dict[str, int]:
    """Return at which offsets the records of topics are that these slots' progress names and `records` lack."""
    named = {slot: progress.topics_at for slot, progress in found.items() if progress.topics_at >= 0}
    return {slot: at for slot, at in named.items() if records.get(key_of_topics(slot), (-1,))[0] < at}


def owners_of(
    topic: str, found: Mapping[str, Progress], records: Mapping[bytes, Record], own: ProgressKey
) -> list[Owner]:
    """Return the owners in one progress topic. Raises ProgressUnreadable, of our own topic.

    Another name's daemons own the topics of that name besides; those of our own name share some of them.
    """
    is_ours = topic == own.progress_topic
    common = own_topics(own.prefix) if is_ours else own_topics(ProgressKey(topic, "").prefix)
    owners = []
    for slot, progress in found.items():
        _, value = records.get(key_of_topics(slot), (-1, None))
        known: Collection[str] = ()
        if value is not None and progress.topics_at >= 0:
            # Of another name it may be anything, and what the progress itself says is still true.
            with contextlib.nullcontext() if is_ours else contextlib.suppress(ProgressUnreadable):
                known = TopicIdentities.load(value, 0).with_records()
        topics = {*progress.offsets, *progress.snapshot_tables, *known}
        topics = topics - _shared(common) if is_ours else topics | set(common)
        owners.append(
            Owner(
                ProgressKey(topic, slot),
                progress.identity.system_identifier,
                progress.identity.database,
                progress.transactional_id,
                frozenset(topics),
                progress.phase == "streaming" or progress.identity.slot_lsn > 0,
            )
        )
    return owners


def _shared(common: Iterable[str]) -> set[str]:
    """Return those of the topics of one name that its slots write to together: each record says whose it is."""
    return {topic for topic in common if topic.rpartition(".")[2].startswith("__")}


def conflict(
    names: Collection[str], owners: Iterable[Owner], own: ProgressKey, shared_with: Collection[str]
) -> OwnedByAnother | None:
    """Return the error of topics that another slot owns, None where each is free or shared on purpose."""
    for owner in owners:
        taken = sorted(owner.topics.intersection(names))
        if not taken or owner.progress_key == own or owner.progress_key.slot in shared_with:
            continue
        shown = ", ".join(taken[:_SHOWN]) + (f" and {len(taken) - _SHOWN} more" if taken[_SHOWN:] else "")
        return OwnedByAnother(
            f"another slot writes to {shown}: {owner}. Records of both would be mixed there, under the same keys",
            hint=_way_out(taken, own.prefix)
            + "choose another name, which gives topics of its own; or, if records of "
            "both slots are wanted in one topic, or that slot is retired, set "
            f"sink.topics.shared_with: [{owner.progress_key.slot}]",
        )
    return None


def _way_out(taken: Collection[str], prefix: str) -> str:
    """Return what is special about topics that every slot of a database writes the same to."""
    options = {
        message_topic(prefix): "source.protocol.messages: false",
        transaction_topic(prefix): "format.transactions: false",
    }
    if not options.keys() >= set(taken):
        return ""
    return (
        f"let one slot alone write there ({', '.join(options[topic] for topic in taken)} on the other); or "
    )


def same_id(transactional_id: str, owners: Iterable[Owner], own: ProgressKey) -> OwnedByAnother | None:
    """Return the error of a transactional id under which another slot writes, None where nobody else does.

    Whoever opens a producer under it would end the other's, and be ended by it in turn (F64, F79).
    """
    mine = [owner for owner in owners if owner.transactional_id == transactional_id]
    if not transactional_id or any(owner.progress_key == own for owner in mine) or not mine:
        return None
    return OwnedByAnother(
        f"another slot writes under this transactional id: {mine[0]}. The two would end each other's producers",
        hint="set sink.transactional_id to one that no other slot has",
        transactional_id=transactional_id,
    )
