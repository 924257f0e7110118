"""Decide which position is safe: pure decisions about groups of transactions and the LSN that may be confirmed.

In: chunks of encoded records and the commit positions between them.  Out: when a Kafka transaction ends, and
the one LSN that may be confirmed to PostgreSQL. Must not: do I/O, read the clock.
"""
