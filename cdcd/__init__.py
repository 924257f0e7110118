"""cdcd: committed changes of a PostgreSQL database, in Kafka, exactly once.

The way of a row, which is also the map of the rooms:

    PostgreSQL walsender -> source -> txn (pgoutput) -> avro (schema) -> sink -> Kafka -> spark
                                ^                                         |
                                +-------- safe LSN (ack: one value) <-----+

Pure rooms (bytes and values in, values out): `pgoutput`, `txn`, `schema`, `avro`, `ack`.
Rooms with I/O, which do not know each other: `source`, `snapshot`, `sink`, `registry`, `ops`.
`runtime` is the only room that knows all rooms; `cli` and `demo` start it; `config` tells it what is wanted.
`lsn`, `model`, `errors` and `findings` are the nouns that all rooms share. Imports point downwards only.
"""

from cdcd.version import __version__

__all__ = ["__version__"]
