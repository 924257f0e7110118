"""The process: its start and signals (`main`), its sessions one after another and what an error does to them
(`supervisor`), its memory.

In: a `Config`.  Out: a running daemon, and its exit status.
Invariant: an error is treated by its retry class and nothing else; a stop loses nothing, because nothing is confirmed
that is not durable.
Must not: decode, write or confirm anything itself.
"""
