"""Sentences for tests: what a test wants to say about real servers, in one call each.

In: running servers of `cdcd.demo.stack`.  Out: rows, records, positions, or a failed wait that says for what.
Must not: know anything of cdcd's own encoders and decoders; these are the independent judges.
"""
