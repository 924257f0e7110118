"""The checks of a start: everything that may refuse the start runs before the start changes anything.

The daemon, `cdcd check` and `cdcd init` run the same list (`checks`). `server`, `position`, `topics` and `schemas`
hold the checks, by subject; `binary_columns`, `exact_keys` and `schema_dry_run` check each table; `context` holds the
data that the checks share.
Invariant: a check changes nothing and fences no producer (F79). All checks block, and belong in a thread.
"""
