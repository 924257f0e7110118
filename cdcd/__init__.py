"""cdcd: committed changes of a PostgreSQL database, in Kafka, exactly once.

The path of a row, which is also the map of the packages:

    PostgreSQL walsender -> source -> pipeline (txn, pgoutput; avro, schema) -> sink -> Kafka -> spark
                               ^                                                  |
                               +------------ safe LSN (ack: one value) <----------+

Pure (bytes and values in, values out): `pgoutput`, `txn`, `schema`, `avro`, `ack`, `recovery`.
With I/O, and independent of each other: `source`, `snapshot`, `sink`, `registry`, `spill`.
The daemon: `process` runs one `session` after another; a session decides its start by `recovery` and streams through
the `pipeline`; `monitoring` observes both and the server. `cli` and `demo` start the daemon, `config` holds its
options. All packages use `lsn`, `model`, `errors` and `findings`. Imports point downwards only.
"""

from cdcd.version import __version__

__all__ = ["__version__"]
