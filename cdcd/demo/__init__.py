"""The demo: the whole pipeline of cdcd on real servers on this machine.

In: only installed packages.  Out: a shop in PostgreSQL, its changes in Kafka, its mirror in Spark, and
a comparison of source and mirror.
Invariant: all processes of the demo run on 127.0.0.1 in one temporary folder and end with the demo.
Must not: be imported by the daemon.
"""
