"""The findings of `cdcd check` about the key of a table's records: a missing key, or one that rows may share.

In: a published table, its options in the configuration.  Out: findings, each with a remedy.
Invariant: each finding is a warning, because the daemon runs anyway; the application's changes may fail (F45).
Must not: query the server.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdcd.findings import Finding
from cdcd.model import ReplicaIdentity
from cdcd.schema.policy import Policy
from cdcd.source.key_index import KeyIndex
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.start import quote_identifier

_NULL_KEY = (
    "its records have null keys, so all of them go to one partition, and the topic cannot be compacted"
)
_FAILS = "the application's UPDATE and DELETE fail while the table is published"
_SHARED = "rows with the same key replace one another for consumers that read by key"
_CHOOSE = "or set format.key_columns or format.keyless"


def record_key(table: PublishedTable, policy: Policy) -> tuple[str, ...]:
    """Return the columns of the records' key: the database's, else those of the configuration, else ()."""
    if table.key is not None and table.has_record_key:
        return table.key.columns
    is_whole = policy.keyless == "row" and table.identity is ReplicaIdentity.FULL
    return policy.key_columns or (table.columns if is_whole else ())


def key_findings(table: PublishedTable, policy: Policy) -> Iterator[Finding]:
    """Yield the findings about the key, none if it is unique for every row."""
    subject = f"table {table.schema}.{table.name}"
    if chosen := record_key(table, policy):
        if not table.keys.is_unique(chosen):
            yield _shared(table, policy, subject)
    elif table.key is not None and table.key.flaw is not None:
        yield _flawed(table, table.key, table.key.flaw, subject)
    else:
        yield _keyless(table, subject)


def _shared(table: PublishedTable, policy: Policy, subject: str) -> Finding:
    if not policy.key_columns:
        message = f"format.keyless is row, and no unique index prevents equal rows: {_SHARED}"
        return Finding("warn", subject, message, f"{_alter(table)} ADD PRIMARY KEY (...)")
    columns = ", ".join(policy.key_columns)
    quoted = ", ".join(map(quote_identifier, policy.key_columns))
    message = (
        f"no unique index prevents two rows with the same key in format.key_columns ({columns}): {_SHARED}"
    )
    hint = f"{_alter(table)} ADD UNIQUE ({quoted}), with each column NOT NULL; or choose other columns"
    return Finding("warn", subject, message, hint)


def _flawed(table: PublishedTable, index: KeyIndex, flaw: str, subject: str) -> Finding:
    """Return the finding for a key index that exists and still gives the records no key (F82)."""
    columns = ", ".join(index.columns)
    what = f"two rows may have the same ({columns}) temporarily, because {flaw}"
    follows = _NULL_KEY
    if not index.is_sent and table.identity is not ReplicaIdentity.FULL:
        what = f"({columns}) is not a replica identity, because {flaw}"
        fails = table.needs_identity and not table.comes_from_partitions  # else their identities decide
        follows = f"{_FAILS}; {_NULL_KEY}" if fails else _NULL_KEY
    hint = "recreate its constraint as NOT DEFERRABLE (DROP CONSTRAINT, ADD PRIMARY KEY in one ALTER TABLE)"
    if not flaw.endswith("DEFERRABLE"):
        hint = "make the index valid: ALTER INDEX ... ATTACH PARTITION for an index of each partition"
    hint += f", {_CHOOSE}" if table.identity is ReplicaIdentity.FULL else ", or set format.key_columns"
    return Finding("warn", subject, f"{what}: {follows}", hint)


def _keyless(table: PublishedTable, subject: str) -> Finding:
    alter = _alter(table)
    if table.has_key and table.identity is ReplicaIdentity.FULL:
        why = "no primary key" if table.key is None else "a primary key that is not published"
        hint = f"{alter} ADD PRIMARY KEY (...)" if table.key is None else "publish its key columns"
        return Finding("warn", subject, f"{_identity(table)} and {why}: {_NULL_KEY}", f"{hint}, {_CHOOSE}")
    if table.has_key:
        message = f"replica identity {table.identity.name} with columns that are not published: {_NULL_KEY}"
        if table.needs_identity and not table.comes_from_partitions:
            message += "; UPDATE and DELETE fail in PostgreSQL, or halt cdcd (CDCD-REPLICA-IDENTITY)"
        hint = f"publish its key columns, or {alter} REPLICA IDENTITY FULL"
        return Finding("warn", subject, message, hint)
    hint = f"{alter} ADD PRIMARY KEY (...)"
    if table.identity is ReplicaIdentity.NOTHING:
        hint = f"{alter} REPLICA IDENTITY DEFAULT, with a primary key"
    if table.comes_from_partitions:  # the partitions' identities decide which changes PostgreSQL refuses
        return Finding("warn", subject, f"{_identity(table)}: {_NULL_KEY}", "set format.key_columns")
    if not table.needs_identity:
        return Finding("warn", subject, f"{_identity(table)}: {_NULL_KEY}", hint)
    message = f"{_identity(table)}: {_FAILS}; {_NULL_KEY}"
    return Finding(
        "warn", subject, message, f"{hint}; for UPDATE and DELETE alone: {alter} REPLICA IDENTITY FULL"
    )


def _identity(table: PublishedTable) -> str:
    return {
        ReplicaIdentity.DEFAULT: "no primary key",
        ReplicaIdentity.INDEX: "replica identity INDEX without its index",
        ReplicaIdentity.NOTHING: "replica identity NOTHING",
        ReplicaIdentity.FULL: "replica identity FULL",
    }[table.identity]


def _alter(table: PublishedTable) -> str:
    return f"ALTER TABLE {quote_identifier(table.schema)}.{quote_identifier(table.name)}"
