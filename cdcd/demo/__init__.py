"""The demo: the whole job of cdcd on real servers that run on this machine.

In: nothing but installed packages.  Out: a shop in PostgreSQL, its changes in Kafka, its mirror in Spark, and
a comparison of the two.
Invariant: everything it starts runs on 127.0.0.1 in a folder of its own and ends with it.
Must not: be imported by the daemon.
"""
