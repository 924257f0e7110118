"""Compare the topics with the source while both change: counts, digests, and the rows that differ.

    source at one snapshot -> digests by bucket (PostgreSQL computes them) \\
    topics up to that snapshot -> fold -> digests by bucket                 -> differing buckets -> rows

`hashes`, `texts`, `columns`, `records`, `visible`, `fold` and `source_sql` are pure; `source`, `schemas`, `spill`,
`topic_log` and `verification` do I/O.
"""
