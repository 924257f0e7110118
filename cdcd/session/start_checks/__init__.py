"""The checks of a start: all that may refuse it, before it changes anything.

The daemon, `cdcd check` and `cdcd init` go through the same list (`checks`). `server`, `position`, `topics` and
`schemas` are the checks, by what they ask; `binary_columns`, `exact_keys` and `schema_dry_run` look at each table;
`context` is what the checks share.
Invariant: a check changes nothing and fences nobody (F79). All of them block, and belong in a thread.
"""
