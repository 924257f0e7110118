"""Table definitions with a possible key: the statements, the changes of rows, and the expected key of the records.

In: nothing.  Out: `CASES`; `$t` stands for the table in each statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STEPS = (
    # with an immediate constraint, exchanging two keys takes three steps
    "BEGIN; UPDATE $t SET id = -1 WHERE id = 1; UPDATE $t SET id = 1 WHERE id = 2;"
    "UPDATE $t SET id = 2 WHERE id = -1; COMMIT",
    "BEGIN; DELETE FROM $t WHERE id = 3; INSERT INTO $t (id, v) VALUES (3, 'new'); COMMIT",
    "UPDATE $t SET v = v || '+'",
    "BEGIN; DELETE FROM $t WHERE id = 4; UPDATE $t SET id = 4 WHERE id = 1; COMMIT",
    "UPDATE $t SET id = id + 100",
    "DELETE FROM $t WHERE id = 103",
)
ROWS = "INSERT INTO $t (id, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')"


@dataclass(frozen=True)
class Case:
    """`define`: statements; `key`: column names, empty for none; `since`: the first major version that has it."""

    name: str
    define: str
    key: str
    steps: tuple[str, ...] = STEPS
    rows: str = ROWS
    since: int = 14
    override: Mapping[str, object] = field(default_factory=dict)


def equal(name: str, kind: str, one: str, other: str) -> Case:
    """Two texts that PostgreSQL considers equal although their keys may differ in bytes."""
    steps = (
        f"UPDATE $t SET k = {other} WHERE k = {one}",
        f"UPDATE $t SET v = 'x' WHERE k = {one}",
        f"BEGIN; DELETE FROM $t WHERE k = {one}; INSERT INTO $t VALUES ({one}, 'y'); COMMIT",
        f"UPDATE $t SET k = {other} WHERE k = {one}",
    )
    rows = f"INSERT INTO $t VALUES ({one}, 'a')"
    return Case(name, f"CREATE TABLE $t (k {kind} PRIMARY KEY, v text)", "k", steps, rows)


# Changes that only a constraint checked at the end of the statement, or at commit, allows.
ROTATIONS = (
    "UPDATE $t SET id = 3 - id WHERE id < 3",
    "UPDATE $t SET id = id % 3 + 1, v = v || '>' WHERE id < 4",
)
DUPLICATES = (
    *ROTATIONS,
    "BEGIN; INSERT INTO $t (id, v) VALUES (1, 'twice'); DELETE FROM $t WHERE id = 1 AND v <> 'twice'; COMMIT",
    "DELETE FROM $t WHERE id = 4",
)
# Two rows with the same value in the column; then one of them is deleted.
SHARED = (
    "INSERT INTO $t (id, v) VALUES (1, 'shared')",
    "UPDATE $t SET v = v || '+'",
    "DELETE FROM $t WHERE v = 'shared+'",
)
PLAIN = "CREATE TABLE $t (id int PRIMARY KEY, v text)"
FULL = "ALTER TABLE $t REPLICA IDENTITY FULL"
BARE = "CREATE TABLE $t (id int NOT NULL, v text)"
UNIQUE = "CREATE TABLE $t (id int NOT NULL UNIQUE, v text)"
BY_INDEX = "ALTER TABLE $t REPLICA IDENTITY USING INDEX $t_id_key"
INCLUDING = "CREATE TABLE $t (id int, v text, w int, PRIMARY KEY (id) INCLUDE (w))"
CASE_BLIND = (
    "CREATE COLLATION $t_c (provider = icu, locale = 'und-u-ks-level2', deterministic = false); "
    "CREATE TABLE $t (k text COLLATE $t_c PRIMARY KEY, v text)"
)
CASE_STEPS = (
    "UPDATE $t SET k = 'A' WHERE k = 'a'",
    "UPDATE $t SET k = 'a', v = 'back' WHERE k = 'A'",
    "BEGIN; DELETE FROM $t WHERE k = 'a'; INSERT INTO $t VALUES ('A', 'again'); COMMIT",
    "UPDATE $t SET k = upper(k)",
    "DELETE FROM $t WHERE k = 'c'",
)
CASE_ROWS = "INSERT INTO $t VALUES ('a', '1'), ('b', '2'), ('c', '3')"
OVERLAPS = "CREATE TABLE $t (r int4range, at int4range, v text, PRIMARY KEY (r, at WITHOUT OVERLAPS)"
OVERLAPS_ROWS = (
    "INSERT INTO $t VALUES ('[1,2)', '[1,9)', 'a'), ('[1,2)', '[9,20)', 'b'), ('[2,3)', '[1,9)', 'c')"
)
OVERLAPS_STEPS = (
    "UPDATE $t SET v = v || '+'",
    "UPDATE $t SET at = '[3,6)' WHERE v = 'a+'",
    "BEGIN; DELETE FROM $t WHERE v = 'b+'; INSERT INTO $t VALUES ('[1,2)', '[6,30)', 'd'); COMMIT",
    "DELETE FROM $t WHERE v = 'c+'",
)
ROOT = (
    "CREATE TABLE $t (id int NOT NULL, v text) PARTITION BY RANGE (id); "
    "CREATE TABLE $t_low PARTITION OF $t FOR VALUES FROM (-9) TO (3); "
    "CREATE TABLE $t_high PARTITION OF $t FOR VALUES FROM (3) TO (999)"
)
LEAVES_FULL = "ALTER TABLE $t_low REPLICA IDENTITY FULL; ALTER TABLE $t_high REPLICA IDENTITY FULL"
KEYED_ROOT = f"{ROOT}; ALTER TABLE $t ADD PRIMARY KEY (id)"
ONLY_ROOT = f"{ROOT}; ALTER TABLE ONLY $t ADD PRIMARY KEY (id); {LEAVES_FULL}"


def deferrable_leaves(unique: str) -> str:
    """A root table with an immediate constraint and partitions with DEFERRABLE ones."""
    return (
        "CREATE TABLE $t (id int NOT NULL, v text) PARTITION BY RANGE (id); "
        f"CREATE TABLE $t_low (id int NOT NULL, v text, {unique} DEFERRABLE); "
        f"CREATE TABLE $t_high (v text, id int NOT NULL, {unique} DEFERRABLE); "
        f"ALTER TABLE $t ADD {unique}; "
        "ALTER TABLE $t ATTACH PARTITION $t_low FOR VALUES FROM (-9) TO (5); "
        f"ALTER TABLE $t ATTACH PARTITION $t_high FOR VALUES FROM (5) TO (999); {LEAVES_FULL}"
    )


CASES = (
    Case("plain", PLAIN, "id"),
    Case("full", f"{PLAIN}; {FULL}", "id"),
    Case("pair", f"CREATE TABLE $t (v text, id int, b int DEFAULT 7, PRIMARY KEY (b, id)); {FULL}", "b id"),
    Case("dropped", "CREATE TABLE $t (x int, id int PRIMARY KEY, v text); ALTER TABLE $t DROP x", "id"),
    Case("include", INCLUDING, "id"),
    Case("include_full", f"{INCLUDING}; {FULL}", "id"),
    Case("by_index", f"{UNIQUE}; {BY_INDEX}", "id"),
    Case(
        "by_index_include",
        "CREATE TABLE $t (id int NOT NULL, v text, w int, UNIQUE (id) INCLUDE (w)); "
        "ALTER TABLE $t REPLICA IDENTITY USING INDEX $t_id_w_key",
        "id",
    ),
    Case(
        "by_index_not_primary",
        f"CREATE TABLE $t (p serial PRIMARY KEY DEFERRABLE, id int NOT NULL UNIQUE, v text); {BY_INDEX}",
        "id",
    ),
    # unique only at the end of the statement, or at commit
    Case("deferred", f"{PLAIN.replace('KEY', 'KEY DEFERRABLE INITIALLY DEFERRED')}; {FULL}", "", DUPLICATES),
    Case("at_the_end", f"{PLAIN.replace('KEY', 'KEY DEFERRABLE')}; {FULL}", "", ROTATIONS),
    Case("at_the_end_default", PLAIN.replace("KEY", "KEY DEFERRABLE"), "", ()),
    Case("at_the_end_unique", f"{UNIQUE.replace('UNIQUE', 'UNIQUE DEFERRABLE')}; {FULL}", "", ROTATIONS),
    # not the key of a table
    Case("unique", f"{UNIQUE}; {FULL}", ""),
    Case("partial", f"{BARE}; CREATE UNIQUE INDEX ON $t (id) WHERE id > 9; {FULL}", "", SHARED),
    Case("expression", f"{BARE}; CREATE UNIQUE INDEX ON $t ((id || v)); {FULL}", "", SHARED),
    Case("not_distinct", f"{UNIQUE.replace('UNIQUE', 'UNIQUE NULLS NOT DISTINCT')}; {FULL}", "", since=15),
    Case(
        "not_distinct_index",
        f"{UNIQUE.replace('UNIQUE', 'UNIQUE NULLS NOT DISTINCT')}; {BY_INDEX}",
        "id",
        since=15,
    ),
    Case(
        "not_valid",
        f"{BARE}; INSERT INTO $t VALUES (1, 'x'), (1, 'y'); CREATE UNIQUE INDEX CONCURRENTLY ON $t (id); {FULL}",
        "",
        SHARED,
    ),
    Case(
        "exclusion",
        f"CREATE TABLE $t (id int, r int4range DEFAULT 'empty', v text, EXCLUDE USING gist (r WITH &&)); {FULL}",
        "",
        SHARED,
    ),
    Case("overlaps", f"{OVERLAPS})", "r at", OVERLAPS_STEPS, OVERLAPS_ROWS, 18),
    Case("overlaps_full", f"{OVERLAPS}); {FULL}", "r at", OVERLAPS_STEPS, OVERLAPS_ROWS, 18),
    Case("overlaps_at_the_end", f"{OVERLAPS} DEFERRABLE); {FULL}", "", OVERLAPS_STEPS, OVERLAPS_ROWS, 18),
    # values equal for PostgreSQL, with different bytes
    Case("case_blind", CASE_BLIND, "k", CASE_STEPS, CASE_ROWS),
    Case("case_blind_full", f"{CASE_BLIND}; {FULL}", "k", CASE_STEPS, CASE_ROWS),
    equal("scale", "numeric", "1.0", "1.00"),
    equal("scale_of_ten", "numeric(10, 3)", "1.0", "1.00"),
    equal("zero", "float8", "0.0", "'-0'::float8"),
    equal("interval", "interval", "'1 day'", "'24 hours'"),
    equal("padded", "char(5)", "'a'", "'a '"),
    equal("scaled_range", "numrange", "'[1.0,2)'", "'[1.00,2)'"),
    # chosen by the configuration
    Case("chosen", f"{UNIQUE}; {FULL}", "id", override={"key_columns": ["id"]}),
    Case("chosen_wider", f"{UNIQUE}; {FULL}", "v id", override={"key_columns": ["v", "id"]}),
    Case("whole_row", f"{UNIQUE}; {FULL}", "id v", override={"keyless": "row"}),
    # partitions
    Case("root", KEYED_ROOT, "id"),
    Case("root_full", f"{KEYED_ROOT}; {FULL}; {LEAVES_FULL}", "id"),
    Case("root_without", f"{ROOT}; ALTER TABLE $t_low ADD PRIMARY KEY (id); {FULL}; {LEAVES_FULL}", ""),
    Case("root_not_valid", ONLY_ROOT, "", SHARED),
    Case("root_not_valid_full", f"{ONLY_ROOT}; {FULL}", "", SHARED),
    Case("leaf_at_the_end", deferrable_leaves("PRIMARY KEY (id)"), "", ROTATIONS),
    Case("leaf_at_the_end_full", f"{deferrable_leaves('PRIMARY KEY (id)')}; {FULL}", "", ROTATIONS),
    Case("leaf_at_the_end_index", f"{deferrable_leaves('UNIQUE (id)')}; {BY_INDEX}", "", ROTATIONS),
)
