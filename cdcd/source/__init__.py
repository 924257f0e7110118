"""Source: bytes from one PostgreSQL walsender, and what its catalog says about them.

In: `SourceSettings`.  Out: items (`cdcd.model.Item`) of one replication slot in wire order, and catalog
facts.
Invariant: the slot's confirmed position moves only by `ReplicationStream.queue_flush_lsn` (F71); psycopg2 connects,
authenticates and runs SQL, the CopyBoth stream is read and written here.
Must not: decode pgoutput beyond a row's type byte and xid, import config, or print a password.
"""
