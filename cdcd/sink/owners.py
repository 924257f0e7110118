"""The slots that own topics, by the records of all slots on the cluster, and the conflicts between them.

In: the last progress of every slot, and its record of topics.  Out: `Owner`s, and the error of a conflict.
Invariant: only one slot writes to a topic, unless an operator allows more: rows of two databases would have the same
keys there, and rows of one database would come twice (F80). A slot whose records an older version wrote is an owner
too: its progress names its server and database.
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
_AFTER_RETIRED = (
    "In place of a retired slot, cdcd has to empty the topics too: start it, stop it when it streams, run "
    "`cdcd resnapshot` and start it again. Otherwise rows that were deleted in between remain with readers"
)
Record = tuple[int, bytes | None]
"""Offset and value of the last record under a key of a progress topic."""


@dataclass(frozen=True, slots=True)
class ProgressKey:
    """The location of a slot's progress, unique to the slot."""

    progress_topic: str
    slot: str

    @property
    def prefix(self) -> str:
        """The `name` of its configuration."""
        return self.progress_topic.removesuffix(progress_topic(""))


@dataclass(frozen=True, slots=True)
class Owner:
    """A slot that has written records, and its topics.

    `has_slot`: its daemon has read or created the slot; false where its first start was interrupted before that.
    """

    progress_key: ProgressKey
    system_identifier: str
    database: str
    transactional_id: str
    topics: frozenset[str]
    has_slot: bool = True

    def reads(self, slot: str, system_identifier: str, database: str) -> bool:
        """Whether its progress belongs to this slot of this server."""
        here = (self.progress_key.slot, self.system_identifier, self.database)
        return self.has_slot and here == (slot, system_identifier, database)

    def is_of(self, system_identifier: str, database: str) -> bool:
        """Whether its progress belongs to this server and database."""
        return (self.system_identifier, self.database) == (system_identifier, database)

    def __str__(self) -> str:
        key = self.progress_key
        slot = f"slot {key.slot} of database {self.database}, system identifier {self.system_identifier}"
        return f"{slot} (name {key.prefix})"


def progress_of(records: Mapping[bytes, Record]) -> dict[str, Progress]:
    """Return the progress of each slot of one progress topic. Raises ProgressUnreadable.

    A key that is not a slot's name is another program's, or that of a slot's record of topics.
    """
    return {
        key.decode(): load(value)
        for key, (_, value) in records.items()
        if value is not None and is_slots(key)
    }


def is_slots(key: bytes) -> bool:
    """Whether the key may be a slot's name: it has only ASCII characters, and no slash."""
    return key.isascii() and b"/" not in key


def topics_elsewhere(found: Mapping[str, Progress], records: Mapping[bytes, Record]) -> dict[str, int]:
    """Return the offsets of the records of topics that these slots' progress refers to and `records` lacks."""
    named = {slot: progress.topics_at for slot, progress in found.items() if progress.topics_at >= 0}
    return {slot: at for slot, at in named.items() if records.get(key_of_topics(slot), (-1,))[0] < at}


def owners_of(
    topic: str, found: Mapping[str, Progress], records: Mapping[bytes, Record], own: ProgressKey
) -> list[Owner]:
    """Return the owners in one progress topic. Raises ProgressUnreadable, for our own topic.

    Daemons of another name also own the common topics of that name; the slots of our own name share some of them.
    """
    is_ours = topic == own.progress_topic
    common = own_topics(own.prefix) if is_ours else own_topics(ProgressKey(topic, "").prefix)
    owners = []
    for slot, progress in found.items():
        _, value = records.get(key_of_topics(slot), (-1, None))
        known: Collection[str] = ()
        if value is not None and progress.topics_at >= 0:
            # Under another name the record may be of another program; the progress itself is still valid.
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
    """Return the topics of one name that its slots share: each record there names its slot."""
    return {topic for topic in common if topic.rpartition(".")[2].startswith("__")}


def conflict(
    names: Collection[str], owners: Iterable[Owner], own: ProgressKey, shared_with: Collection[str]
) -> OwnedByAnother | None:
    """Return the error of topics that another slot owns, None where each topic is free or shared on purpose."""
    for owner in owners:
        taken = sorted(owner.topics.intersection(names))
        if not taken or owner.progress_key == own or owner.progress_key.slot in shared_with:
            continue
        shown = ", ".join(taken[:_SHOWN]) + (f" and {len(taken) - _SHOWN} more" if taken[_SHOWN:] else "")
        return OwnedByAnother(
            f"another slot writes to {shown}: {owner}. Records of both slots would be mixed there, under the same "
            "keys",
            hint=_way_out(taken, own.prefix)
            + "choose another name: cdcd then writes to topics of its own; or, to write the records of both slots "
            "to one topic, or if that slot is retired, set "
            f"sink.topics.shared_with: [{owner.progress_key.slot}]. {_AFTER_RETIRED}",
        )
    return None


def _way_out(taken: Collection[str], prefix: str) -> str:
    """Return the additional hint for topics where every slot of a database would write the same records."""
    options = {
        message_topic(prefix): "source.protocol.messages: false",
        transaction_topic(prefix): "format.transactions: false",
    }
    if not options.keys() >= set(taken):
        return ""
    return f"let only one slot write there ({', '.join(options[topic] for topic in taken)} on the other); or "


def same_id(transactional_id: str, owners: Iterable[Owner], own: ProgressKey) -> OwnedByAnother | None:
    """Return the error of a transactional id that another slot uses, None where no other slot does.

    The two daemons would fence each other's producers in turn (F64, F79).
    """
    mine = [owner for owner in owners if owner.transactional_id == transactional_id]
    if not transactional_id or any(owner.progress_key == own for owner in mine) or not mine:
        return None
    return OwnedByAnother(
        f"another slot uses this transactional id: {mine[0]}. The two would fence each other's producers",
        hint="set sink.transactional_id to an id that no other slot uses, and restart cdcd",
        transactional_id=transactional_id,
    )
