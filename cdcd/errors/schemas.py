"""Errors of rows and schemas: values without an Avro form, and schemas that the registry refuses.

In: names of tables, columns, types and subjects.  Out: classes of the tree.
Invariant: an error names the location of a value, never the value.
Must not: decide how cdcd treats the table afterwards.
"""

from __future__ import annotations

from cdcd.errors.tree import CdcdError, Retry


class SchemaError(CdcdError):
    """A relation has no Avro schema (name collision, unknown type shape)."""

    code = "CDCD-SCHEMA"
    hint = "rename the column or table, or choose another Avro type for the column in `format`"
    resolution = "rename the column or table, or choose another Avro type for the column (`format`)"


class KeyChanged(SchemaError):
    """A table's key differs from its topic's key: old and new records of a row would have different keys (F45)."""

    code = "CDCD-KEY-CHANGED"
    hint = (
        "no record with the new key was written, and nothing of its transaction was confirmed. Set "
        "registry.incompatible: new_topic, and restart cdcd: rows with the new key go to a topic of their own; only "
        "this helps where unwritten transactions have rows with both keys, as after an ALTER TABLE between them. Or "
        "accept the new key for all later records, and rebuild every consumer that uses the key: delete the subject "
        "<topic>-key from the registry (`curl -X DELETE REGISTRY/subjects/TOPIC-key`), then `cdcd resume`; or, if no "
        "row was changed since, restore the table's former key, then `cdcd resume`"
    )
    resolution = (
        "no record with the new key was written, and nothing of its transaction was confirmed. Set "
        "registry.incompatible: new_topic, and restart cdcd, the only one that helps where unwritten transactions "
        "have rows with both keys; or accept the new key for all later records, and rebuild every consumer that uses "
        "the key: delete the subject of the key (`curl -X DELETE REGISTRY/subjects/TOPIC-key`), then `cdcd resume`; "
        "or, if no row was changed since, restore the table's former key"
    )


class ReplicaIdentityIncomplete(CdcdError):
    """A change does not identify its row: the replica identity of the table or partition lacks the key (F78)."""

    code = "CDCD-REPLICA-IDENTITY"
    hint = (
        "run ALTER TABLE ... REPLICA IDENTITY FULL on the partition; it does not affect changes already in the "
        "WAL: for those run `cdcd resnapshot`, which copies all tables again"
    )
    resolution = (
        "the message has the `ALTER TABLE ... REPLICA IDENTITY FULL` of each partition; or set "
        "`format.key_columns` to columns that the replica identity of each partition includes. Neither affects "
        "changes already in the WAL: for those run `cdcd resnapshot`, which copies all tables again. See "
        "[source.md](source.md)"
    )


class ValueUnencodable(CdcdError):
    """The Avro type of a column cannot hold a value; the error names table, column, type, LSN, never the value."""

    code = "CDCD-VALUE"
    hint = (
        "the row's transaction was not confirmed, and all tables wait. Choose another Avro type for the "
        "column in `format`, and restart cdcd; or correct the row, then `cdcd resume`"
    )
    resolution = (
        "the row's transaction was not confirmed, and all tables wait. Choose another Avro type for the "
        "column (`format`, [types.md](types.md)), and restart cdcd; or correct the row, then `cdcd resume`"
    )


class BinaryUnreadable(ValueUnencodable):
    """cdcd cannot decode a value exactly from its type's binary format."""

    code = "CDCD-VALUE-BINARY"
    hint = "set source.protocol.binary: false, and restart cdcd"
    resolution = (
        "set source.protocol.binary: false, and restart cdcd. A daemon reports the error as "
        "`CDCD-SOURCE-BINARY`, and its next session reads text"
    )


class TextUnreadable(ValueUnencodable):
    """A value's text is not valid for its type: it was damaged in transit, or this server writes another format."""

    code = "CDCD-VALUE-TEXT"
    retry = Retry.LIMITED
    hint = (
        "the value was not confirmed. cdcd retries by itself, and halts at the third failure at one position. Once "
        "it has halted, run `cdcd resume`: the server sends the value again. If the error repeats, report the "
        "column's type with the server's version"
    )


class RegistryUnavailable(CdcdError):
    """The schema registry cannot be reached or answers with a server error (F55)."""

    code = "CDCD-REGISTRY-UNAVAILABLE"
    retry = Retry.AUTO
    hint = (
        "start the registry, or correct registry.url and the network; cdcd tries again, and no change is lost "
        "while the slot retains its WAL"
    )
    resolution = "start the registry, or correct `registry.url` and the network"


class RegistryRefused(CdcdError):
    """The registry refused a schema or the credentials (F55)."""

    code = "CDCD-REGISTRY-REFUSED"
    hint = "correct what the message names in the registry, then `cdcd resume`"
    resolution = (
        "correct what the message names: credentials, `registry.url` with its path, or the schema to register; "
        "then `cdcd resume`"
    )


class SchemaIncompatible(RegistryRefused):
    """A table's new schema is incompatible with the schemas of its topic; the message says where and why (F55)."""

    code = "CDCD-SCHEMA-INCOMPATIBLE"
    hint = (
        "no row of the new schema was written or confirmed. Revert the change of the table, then `cdcd resume`; or "
        "accept it: set registry.incompatible: new_topic, or register_with_none, and restart cdcd"
    )
    resolution = (
        "no row of the new schema was written or confirmed. Revert the change of the table; or accept it with "
        "registry.incompatible: new_topic, or register_with_none"
    )


class SchemaIdTaken(CdcdError):
    """Two writers of a schema topic assigned one id, or one version of a subject, to different schemas."""

    code = "CDCD-REGISTRY-ID-TAKEN"
    retry = Retry.AUTO
    hint = "no action is needed: no record uses the id, and the next session chooses another"
