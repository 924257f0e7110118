"""Source: the data stream of one PostgreSQL walsender, and the server's catalog.

In: `SourceSettings`.  Out: items (`cdcd.model.Item`) of one replication slot in wire order, and catalog data.
Invariant: after the start LSN only `ReplicationStream.queue_flush_lsn` advances the slot's confirmed position (F71).
psycopg2 connects, authenticates and runs SQL; this package reads and writes the CopyBoth stream itself.
Must not: decode pgoutput beyond a row's type byte and xid, import config, or print a password.
"""
