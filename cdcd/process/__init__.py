"""The process: its start and signals (`main`), its sessions one after another and their errors (`supervisor`), its
memory.

In: a `Config`.  Out: a running daemon, and its exit status.
Invariant: the retry class of an error alone decides what follows; a stop loses nothing, because only durable
positions are confirmed.
Must not: decode, write or confirm anything itself.
"""
