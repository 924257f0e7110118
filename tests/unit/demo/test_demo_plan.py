"""The seed alone determines the workload, which has each kind of change that a change stream can get wrong."""

from __future__ import annotations

import io
import itertools
from random import Random

from cdcd.demo import rows
from cdcd.demo.copy_text import CopyFile, copy_line
from cdcd.demo.keys import LiveKeys
from cdcd.demo.load import table_rows
from cdcd.demo.plan import BULK_CHANGES, LoadedRows, Transaction, Writer, bulk_steps

LOADED = LoadedRows.of(3_000)


def planned(seed: int, number: int, count: int = 400) -> list[Transaction]:
    return list(itertools.islice(Writer(seed, number, 3, LOADED).transactions(), count))


def test_the_same_seed_gives_the_same_transactions() -> None:
    assert planned(7, 1) == planned(7, 1)
    assert planned(7, 1) != planned(8, 1)
    assert planned(7, 1) != planned(7, 2)


def test_the_same_seed_loads_the_same_rows() -> None:
    for table in rows.TABLES:
        assert list(table_rows(table, LOADED, 5)) == list(table_rows(table, LOADED, 5))
        assert all(len(row) == len(rows.COLUMNS[table]) for row in table_rows(table, LOADED, 5))


def test_every_kind_of_change_is_planned() -> None:
    transactions = [transaction for number in range(3) for transaction in planned(1, number, 1_000)]
    sqls = {step.sql for transaction in transactions for step in transaction.steps}
    for table in rows.TABLES:
        assert any(sql.startswith(f"INSERT INTO {table} ") for sql in sqls), table
        assert any(sql.startswith(f"UPDATE {table} ") for sql in sqls), table
        assert any(sql.startswith(f"DELETE FROM {table} ") for sql in sqls), table
    for begin in (
        *("TRUNCATE coupons", "SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT"),
        *("SELECT pg_logical_emit_message", "UPDATE customers SET customer_id", "UPDATE coupons SET code"),
        *("UPDATE products SET stock", "UPDATE products SET product_id", "UPDATE events SET happened_at"),
    ):
        assert any(sql.startswith(begin) for sql in sqls), begin
    assert {transaction.is_committed for transaction in transactions} == {True, False}


def test_only_one_writer_touches_the_truncated_table() -> None:
    for number in (1, 2):
        assert not any("coupons" in step.sql for t in planned(1, number) for step in t.steps)


def test_the_large_transaction_has_its_hundred_thousand_rows() -> None:
    assert sum(step.rows or 0 for step in bulk_steps()) == BULK_CHANGES == 100_000


def test_a_rollback_takes_keys_back() -> None:
    keys = LiveKeys(iter(range(5)))
    keys.forget()
    mark = keys.mark()
    keys.remove(2)
    keys.add(9)
    keys.clear()
    keys.add(1)
    keys.rollback(mark)
    random = Random(1)
    assert {keys.pick(random) for _ in range(200)} == {0, 1, 2, 3, 4}
    assert len(keys) == 5


def test_copy_text_escapes_what_copy_would_read_as_something_else() -> None:
    assert copy_line((None, "", "\\N", "a\tb\nc\rd\\")) == "\\N\t\t\\\\N\ta\\tb\\nc\\rd\\\\\n"


def test_a_copy_file_gives_every_byte_at_any_block_size() -> None:
    content = [("Zürich", None), ("x" * 1_000, "y")] * 20
    whole = "".join(map(copy_line, content)).encode()
    for size in (1, 7, 8_192):
        file = CopyFile(content)
        assert b"".join(iter(lambda file=file, size=size: file.read(size), b"")) == whole
    assert CopyFile(content).read() == whole
    assert isinstance(CopyFile([]), io.RawIOBase)
