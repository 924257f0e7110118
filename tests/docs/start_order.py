"""The order of a start: its checks, then its changes, in one list (F79).

In: nothing.  Out: `ORDER`, which `cdcd.session.start_checks` and `start_state` follow; `draw`, the table in
docs/recovery.md.
Invariant: every step that only reads and may refuse comes before every step that changes anything: a refused start
has created no topic, no slot and no schema, has written nothing, and has fenced nobody. The one exception is "read
again": the position is read again after the fence (F64, F76), because another producer may have written in between. A
new check goes into `start_checks.checks.START_CHECKS`, and a row with its name into `ORDER`: a test compares both.
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
    StandbyUnavailable,
    StandbyUnusable,
    TopicMismatch,
    TopicMissing,
    TopicReplaced,
)

StepKind = Literal["reads", "changes", "reads again"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `refuses`: the errors that end the start here, besides those of a broken connection."""

    name: str
    kind: StepKind
    what: str
    refuses: tuple[type[CdcdError], ...] = ()


ORDER: tuple[Step, ...] = (
    Step(
        "start lock",
        "reads",
        "takes an advisory lock in the database, which ends with its connection: one daemon starts at a time",
        (SlotActive, SourceUnavailable, SourceAuthentication, SourceSetup),
    ),
    Step(
        "server",
        "reads",
        "which server answers, its version, whether it is a primary",
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
        "whether the brokers answer and accept the client",
        (SinkUnavailable, SinkAuthorization),
    ),
    Step(
        "position",
        "reads",
        "the committed progress record, without fencing a producer; then slot, server, database and timeline are "
        "compared with it, as in the table below",
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
        "wal_level, a free replication slot, the role, a replication connection, the output plugin, the options",
        (SourceSetup, SourceUnavailable, SourceAuthentication),
    ),
    Step(
        "published",
        "reads",
        "the publications, compared with their state when records were last written",
        (PublicationChanged, PublicationMissing, ProgressUnreadable),
    ),
    Step(
        "tables",
        "reads",
        "the published tables: differing column lists, and, if they are to be copied, whether the role may read "
        "all of their rows",
        (SourceSetup,),
    ),
    Step(
        "standby",
        "reads",
        "with `snapshot.from`, if tables are to be copied: whether the server is a standby of this primary, and the "
        "role may read the tables there",
        (StandbyUnavailable, StandbyUnusable, SourceSetup),
    ),
    Step(
        "owners",
        "reads",
        "whether another slot writes to one of the topics, or under our transactional id; if an interrupted start "
        "would recreate the slot, whether a daemon with another name reads it",
        (OwnedByAnother,),
    ),
    Step(
        "topics",
        "reads",
        "the topics of the published tables and cdcd's own: whether they exist unchanged, or can be created; two "
        "tables in one topic; a topic that refuses or deletes records",
        (TopicMissing, TopicMismatch, TopicReplaced, SinkAuthorization, SinkError),
    ),
    Step(
        "transactional id",
        "reads",
        "whether the principal may use the slot's transactional id, with the wanted timeout; skipped if the broker's "
        "own limit may not be read",
        (SinkAuthorization, SinkError),
    ),
    Step(
        "registry",
        "reads",
        "whether the registry answers and accepts the client, unless this process knows its schemas already; without "
        "a registry, whether the schema topic can be read",
        (RegistryUnavailable, RegistryRefused, SchemasUnreadable),
    ),
    Step(
        "schemas",
        "reads",
        "if tables are to be copied, or a gap is to be marked: whether each table has the key of its topic, and "
        "readers can read its new schemas; otherwise the session checks this while it streams, and halts only at a "
        "row",
        (KeyChanged, SchemaIncompatible, SchemaError, RegistryRefused),
    ),
    Step(
        "spill folder",
        "reads",
        "whether buffer.spill_dir can be written to, and belongs to this user alone",
        (SpillError,),
    ),
    Step("make spill folder", "changes", "creates the folder, and deletes the files of dead daemons in it"),
    Step("make progress topic", "changes", "creates the progress topic if it is missing"),
    Step(
        "fence",
        "changes",
        "`init_transactions`: an older producer of this slot can no longer write",
    ),
    Step(
        "read again",
        "reads again",
        "reads the progress record, which is final now, and decides everything again",
        (SlotActive, SlotAhead, SlotMissing, SlotLost, SlotUnusable, SourceMismatch, ProgressUnreadable),
    ),
    Step(
        "make own topics",
        "changes",
        "creates the topics of dead letters and of schemas, and reads the schemas",
    ),
    Step("mark gap", "changes", "writes the markers of an accepted gap"),
    Step("begin snapshot", "changes", "if tables are to be copied: writes that a snapshot has begun"),
    Step("make slot", "changes", "drops the slot of an interrupted attempt; creates the slot"),
    Step("copy", "changes", "creates topics and subjects table by table, and copies"),
    Step("stream", "changes", "START_REPLICATION, which switches two_phase on if it is wanted"),
)
"""The order of every start, also of a session after a broken connection."""


def draw() -> list[str]:
    """Return the table of the order, as the docs show it."""
    lines = ["| step | | what | may refuse with |", "|---|---|---|---|"]
    for step in ORDER:
        codes = ", ".join(f"`{code}`" for code in dict.fromkeys(error.code for error in step.refuses))
        lines.append(f"| {step.name} | {step.kind} | {step.what} | {codes} |")
    return lines
