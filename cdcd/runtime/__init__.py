"""The process: its sessions one after another, and what happens on errors and signals.

In: a `Config`.  Out: a running daemon, and its exit status.
"""
