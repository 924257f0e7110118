"""The order of a start: what it looks at, then what it changes, in one list (F79).

In: nothing.  Out: `ORDER`; `start_checks`, `start_state` and `cdcd check` go through it, docs/recovery.md shows it.
Invariant: whatever only reads and may refuse comes before whatever changes something anywhere: a refused start has
made no topic, no slot and no schema, has written nothing, and has fenced nobody. The one exception is named as
such: what was read before the fence is read again behind it (F64, F76), because somebody may have written in between.
A new question goes into `start_checks.checks.START_CHECKS`, a row with its name goes here: a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdcd.errors import (
    CdcdError,
    KeyChanged,
    OwnedByAnother,
    PartialTransactionMissing,
    ProgressUnreadable,
    PublicationChanged,
    PublicationMissing,
    RegistryRefused,
    RegistryUnavailable,
    SchemaError,
    SchemaIncompatible,
    SchemasUnreadable,
    SinkAuthorization,
    SinkError,
    SinkUnavailable,
    SlotActive,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceAuthentication,
    SourceMismatch,
    SourceSetup,
    SourceStandby,
    SourceUnavailable,
    SpillError,
    TopicMismatch,
    TopicMissing,
    TopicReplaced,
)

Kind = Literal["reads", "changes", "reads again"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `refuses`: the errors with which it ends the start, besides those of a connection that breaks."""

    name: str
    kind: Kind
    what: str
    refuses: tuple[type[CdcdError], ...] = ()


ORDER: tuple[Step, ...] = (
    Step(
        "start lock",
        "reads",
        "takes an advisory lock in the database, which ends with its connection: one daemon begins at a time",
        (SlotActive, SourceUnavailable, SourceAuthentication, SourceSetup),
    ),
    Step(
        "server",
        "reads",
        "who answers, its version, whether it is a primary",
        (SourceUnavailable, SourceAuthentication, SourceSetup, SourceStandby),
    ),
    Step(
        "publications",
        "reads",
        "whether the publications exist",
        (PublicationMissing,),
    ),
    Step(
        "kafka",
        "reads",
        "whether the brokers answer and let the client in",
        (SinkUnavailable, SinkAuthorization),
    ),
    Step(
        "position",
        "reads",
        "the committed progress record, without fencing anybody; then slot, server, database and timeline are "
        "compared with it, as the table below says",
        (
            SlotActive,
            SlotMissing,
            SlotAhead,
            SlotLost,
            SlotUnusable,
            SourceMismatch,
            SourceSetup,
            ProgressUnreadable,
            PartialTransactionMissing,
        ),
    ),
    Step(
        "setup",
        "reads",
        "wal_level, room for a slot, the role, a replication connection, the output plugin, the options wanted",
        (SourceSetup, SourceUnavailable, SourceAuthentication),
    ),
    Step(
        "published",
        "reads",
        "the publications compared with what they were when records were last written",
        (PublicationChanged, PublicationMissing, ProgressUnreadable),
    ),
    Step(
        "tables",
        "reads",
        "the published tables: column lists that differ, and, where they are to be copied, whether the role may read "
        "them whole",
        (SourceSetup,),
    ),
    Step(
        "owners",
        "reads",
        "whether another slot writes to one of the topics, or under our id; where a start that was cut off would "
        "make the slot again, whether another name's daemon reads it",
        (OwnedByAnother,),
    ),
    Step(
        "topics",
        "reads",
        "the topics of the published tables and cdcd's own: whether they are there as they were, or can be made; two "
        "tables in one topic; one that refuses or forgets records",
        (TopicMissing, TopicMismatch, TopicReplaced, SinkAuthorization, SinkError),
    ),
    Step(
        "transactional id",
        "reads",
        "whether the principal may use the slot's Kafka transactions, for as long as is wanted; not asked where the "
        "broker's own limit may not be read",
        (SinkAuthorization, SinkError),
    ),
    Step(
        "registry",
        "reads",
        "whether the registry answers and lets the client in, unless this process knows its schemas already; without "
        "a registry, whether the schema topic can be read",
        (RegistryUnavailable, RegistryRefused, SchemasUnreadable),
    ),
    Step(
        "schemas",
        "reads",
        "where tables are to be copied, or a gap to be marked in them: whether each table has the key of its topic, "
        "and its readers can read the schemas that it would get; elsewhere this is said beside the stream, and "
        "refuses nothing before a row comes",
        (KeyChanged, SchemaIncompatible, SchemaError, RegistryRefused),
    ),
    Step(
        "spill folder",
        "reads",
        "whether buffer.spill_dir can be written to, and is of this user alone",
        (SpillError,),
    ),
    Step("make spill folder", "changes", "makes it, and clears away what dead daemons left in it"),
    Step("make progress topic", "changes", "makes the progress topic if it is missing"),
    Step(
        "fence",
        "changes",
        "`init_transactions`: an older producer of this slot can write nothing any more",
    ),
    Step(
        "read again",
        "reads again",
        "the progress record, which is final now, is read and everything decided again",
        (SlotActive, SlotAhead, SlotMissing, SlotLost, SlotUnusable, SourceMismatch, ProgressUnreadable),
    ),
    Step(
        "make own topics", "changes", "makes the topics of dead letters and of schemas, and reads the schemas"
    ),
    Step("mark gap", "changes", "writes the markers of a gap that somebody has accepted"),
    Step("begin snapshot", "changes", "where tables are to be copied: writes that a snapshot has begun"),
    Step("make slot", "changes", "drops the slot of an attempt that was cut off; makes the slot"),
    Step("copy", "changes", "makes topics and subjects table by table, and copies"),
    Step("stream", "changes", "START_REPLICATION, which switches two_phase on where it is wanted"),
)
"""Of a start; each session that follows a broken connection goes through it too."""


def draw() -> list[str]:
    """Return the table of the order, as the docs show it."""
    lines = ["| step | | what | may refuse with |", "|---|---|---|---|"]
    for step in ORDER:
        codes = ", ".join(f"`{code}`" for code in dict.fromkeys(error.code for error in step.refuses))
        lines.append(f"| {step.name} | {step.kind} | {step.what} | {codes} |")
    return lines
