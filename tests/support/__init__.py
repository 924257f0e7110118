"""Helpers for tests: each action on real servers, or assertion about them, is one call.

In: running servers of `cdcd.demo.stack`.  Out: rows, records, positions, or a failed wait that names its condition.
Must not: use cdcd's own encoders and decoders; these helpers check them independently.
"""
