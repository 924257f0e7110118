"""The hot path: batches of raw rows -> Kafka records, through a plan compiled once per relation. Pure.

In: row batches, plans by relid, the transaction's constants.  Out: `Record`s in Confluent's wire format.
Invariant: the number of a change (`tx_seq`) depends on the transaction's bytes alone, so a replay gives the same
number.
Must not: do I/O, read the clock, log, or put a row value into an error.
"""
