"""The texts of chunk statements. tests/integration/test_snapshot_chunks.py has PostgreSQL's answers to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import ProtocolError
from cdcd.snapshot.chunk_sql import key_of_line, rows_after, rows_of_blocks, rows_of_keys
from cdcd.snapshot.key_sql import KeyColumn, key_columns
from cdcd.snapshot.table import CopiedTable

TABLE = CopiedTable(5, "s", 't"t', ("note", "a", "b"), None, is_partitioned=False)
OPERATORS = [["pg_catalog", name] for name in ("<", "<=", "=", ">=", ">")]
A = ("a", "pg_catalog", "int4", None, None, OPERATORS)
B = ("b", "pg_catalog", "text", "pg_catalog", "C", OPERATORS)
CITEXT = (
    "b",
    "ext",
    "citext",
    "pg_catalog",
    "default",
    [["ext", name] for name in ("<", "<=", "=", ">=", ">")],
)


def key(*rows: object) -> tuple[KeyColumn, ...]:
    return key_columns(rows)  # type: ignore[arg-type]


def test_the_first_rows_and_the_rows_after_a_key() -> None:
    assert rows_after(TABLE, key(A), None, 10) == (
        'COPY (SELECT "note", "a", "b" FROM ONLY "s"."t""t" ORDER BY "a" USING OPERATOR("pg_catalog".<) LIMIT 10)'
        " TO STDOUT"
    )
    assert (
        """WHERE (ROW("a", "b" COLLATE "pg_catalog"."C") OPERATOR("pg_catalog".>) ROW('7'::"pg_catalog"."int4", """
        """E'\\\\''x'::"pg_catalog"."text" COLLATE "pg_catalog"."C")) ORDER BY"""
    ) in rows_after(TABLE, key(A, B), ("7", "\\'x"), 10)


def test_the_rows_after_all_rows_with_a_value_of_the_first_column() -> None:
    statement = rows_after(TABLE, key(A, B), ("7",), 10)
    assert """WHERE ("a" OPERATOR("pg_catalog".>) '7'::"pg_catalog"."int4") ORDER BY "a" USING""" in statement
    assert statement == rows_after(TABLE, key(A, CITEXT), ("7",), 10).replace(
        '"ext"', '"pg_catalog"'
    ).replace('"default"', '"C"')


def test_operators_of_several_schemas_are_compared_column_by_column() -> None:
    statement = rows_after(TABLE, key(A, CITEXT), ("7", "x"), 10)
    assert 'OPERATOR("ext".>)' in statement
    assert """WHERE ("a" OPERATOR("pg_catalog".>=) '7'::"pg_catalog"."int4" AND (""" in statement
    assert "ROW(" not in statement


def test_the_filter_of_the_publication_is_in_parentheses() -> None:
    """F41: it may have an OR."""
    table = replace(TABLE, row_filter="(a = 1) OR (b = '2')", is_partitioned=True)
    statement = rows_of_keys(table, key(A), [("1",), ("2",)])
    assert 'FROM "s"."t""t" AS "t""t" WHERE ((a = 1) OR (b = \'2\')) AND ((' in statement
    assert statement.count("::") == 2


def test_ranges_of_blocks() -> None:
    first = rows_of_blocks(TABLE, 3, 9)
    assert (
        "(ctid OPERATOR(pg_catalog.>=) '(3,0)'::pg_catalog.tid) AND (ctid OPERATOR(pg_catalog.<) '(9,0)'"
        in first
    )
    assert "<" not in rows_of_blocks(TABLE, 9, None)
    with pytest.raises(ValueError, match="partitioned"):
        rows_of_blocks(replace(TABLE, is_partitioned=True), 0, 1)


def test_the_blocks_of_a_partition_are_read_under_the_name_of_the_table() -> None:
    """A condition may name columns by it."""
    statement = rows_of_blocks(replace(TABLE, is_partitioned=True), 0, 1, ("p", "leaf"))
    assert 'FROM ONLY "p"."leaf" AS "t""t" WHERE' in statement


def test_a_chunk_by_keys_has_keys() -> None:
    with pytest.raises(ValueError, match="key"):
        rows_of_keys(TABLE, key(A), [])


def test_the_key_of_a_line_is_in_the_order_of_the_key() -> None:
    assert key_of_line(TABLE, key(B, A), b"\\N\t7\ta\\tb\\\\N") == ("a\tb\\N", "7")


@pytest.mark.parametrize("line", [b"x\t\\N\ty", b"x\t7", b"x\t7\ty\tz", b"x\t\\q\ty", b"x\t7\t\xff"])
def test_a_line_without_a_key_is_an_error_without_its_values(line: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        key_of_line(TABLE, key(A, B), line)
    assert "7" not in str(caught.value)
