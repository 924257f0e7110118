"""Errors of rows and schemas: what has no Avro form, and what the registry says no to.

In: names of tables, columns, types and subjects.  Out: classes of the tree.
Invariant: no value is named, only where it is.
Must not: decide what becomes of a table.
"""

from __future__ import annotations

from cdcd.errors.tree import CdcdError, Retry


class SchemaError(CdcdError):
    """A relation that has no Avro schema (name collision, unknown type shape)."""

    code = "CDCD-SCHEMA"
    hint = "rename the column or table, or choose another form for it in `format`"


class KeyChanged(SchemaError):
    """A table's key is no longer that of its topic: rows written before and after would not share a key (F45)."""

    code = "CDCD-KEY-CHANGED"
    hint = (
        "give the table its former key again; or let the new key count from here on, and rebuild what reads the "
        "topic by key: delete the subject <topic>-key from the registry; then `cdcd resume`. Or set "
        "registry.incompatible: new_topic, and restart cdcd"
    )


class ReplicaIdentityIncomplete(CdcdError):
    """A change that does not name its row: the replica identity, of a partition or the table, lacks the key (F78)."""

    code = "CDCD-REPLICA-IDENTITY"
    hint = (
        "ALTER TABLE ... REPLICA IDENTITY FULL on the partition; changes that are in the WAL already stay as they "
        "are: `cdcd resnapshot`"
    )


class ValueUnencodable(CdcdError):
    """A value its column's Avro type cannot hold; names table, column, type, LSN, never the value."""

    code = "CDCD-VALUE"
    hint = "choose another form for the column in `format`, and restart cdcd; or correct the row, then `cdcd resume`"


class BinaryUnreadable(ValueUnencodable):
    """A value in its type's binary form, of which no exact reading is known."""

    code = "CDCD-VALUE-BINARY"
    hint = "set source.protocol.binary: false"


class TextUnreadable(ValueUnencodable):
    """A value's text that its type does not have: damaged on its way, or of a server that writes it otherwise."""

    code = "CDCD-VALUE-TEXT"
    retry = Retry.AGAIN
    hint = (
        "nothing was confirmed: `cdcd resume` has it sent again; if that does not help, report the column's type "
        "with the server's version"
    )


class RegistryUnavailable(CdcdError):
    """The schema registry cannot be reached or answers with a server error (F55)."""

    code = "CDCD-REGISTRY-UNAVAILABLE"
    retry = Retry.AUTO
    hint = "start the registry, or correct registry.url and the network; cdcd tries again"


class RegistryRefused(CdcdError):
    """The registry refused a schema or the credentials (F55)."""

    code = "CDCD-REGISTRY-REFUSED"
    hint = "correct what the message names in the registry, then `cdcd resume`"


class SchemaIncompatible(RegistryRefused):
    """Readers of a table's topic could not read on under its new schema; the message says where and why (F55)."""

    code = "CDCD-SCHEMA-INCOMPATIBLE"
    hint = (
        "nothing was written or confirmed. Take the change back, then `cdcd resume`; or let it through with "
        "registry.incompatible: new_topic, or register_with_none, and restart cdcd"
    )


class SchemaIdTaken(CdcdError):
    """Two writers of one schema topic gave one id, or one version of a subject, to different schemas at once."""

    code = "CDCD-REGISTRY-ID-TAKEN"
    retry = Retry.AUTO
    hint = "nothing was written under it; the next session chooses another"
