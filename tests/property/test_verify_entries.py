"""The C extension of `cdcd verify` makes the same entries and sums as its specification, for any bytes."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from cdcd.avro.encode import encode_batch
from cdcd.errors import CdcdError
from cdcd.extensions import extension
from cdcd.sink.topic_records import TopicRecord
from cdcd.snapshot.visibility import Snapshot
from cdcd.verify.columns import compared_column
from cdcd.verify.fold import Barriers, Fold
from cdcd.verify.hashes import MISSING, UNCHANGED, key_id
from cdcd.verify.records import (
    COPIED,
    DELETED,
    POSITION,
    ROW,
    UNKNOWN,
    UPDATED,
    ComparedTable,
    Place,
    Records,
)
from cdcd.verify.sorting import entries_of, sorted_blocks, sorted_in_python
from cdcd.verify.spill import distribute_in_python
from cdcd.verify.visible import View
from tests.support.nightly import nightly_except
from tests.support.some_rows import TYPES, Table, context, mutated, outcome, row_batch_of

ENTRIES = extension("cdcd.verify._entries")
needs_extension = pytest.mark.skipif(ENTRIES is None, reason="the Python fallbacks were asked for")
FAULTS = (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error)
NUMBERS = {"shop.public.t7": 0, "shop.public.t7.v2": 1}


def written(table: Table, chance: random.Random) -> list[TopicRecord]:
    """Return the records of some batches of the table, a few of them damaged."""
    made: list[TopicRecord] = []
    is_copied = False
    for _ in range(30):
        is_copied = chance.random() < 0.2
        tx = context(chance, snapshot=is_copied, has_block=chance.random() < 0.2)
        found = outcome(encode_batch, row_batch_of([table], chance), {table.relid: table.plan}, tx)
        for record in found if isinstance(found, list) else ():
            key, value = record.key, record.value
            if chance.random() < 0.03:
                value = None if value is None else mutated(value, chance)
            if chance.random() < 0.02:
                key = chance.choice((None, b"", key and mutated(key, chance)))
            topic = "shop.public.t7" if len(made) < 40 else "shop.public.t7.v2"
            made.append(TopicRecord(topic, record.partition, len(made), key, value))
    return made


def compared(table: Table, chance: random.Random) -> ComparedTable:
    """Return the table as its catalog may have it: a column may have another type or number than its records."""
    columns = tuple(
        compared_column(
            column.name, number + 20 * (chance.random() < 0.05), column.type_oid, column.typmod, TYPES
        )
        for number, column in enumerate(table.relation.columns, 1)
    )
    key = tuple(number for number, column in enumerate(columns) if column.name in (table.key or ()))
    codec = chance.choice(("utf-8", "utf-8", "utf-8", "iso8859-1"))
    return ComparedTable(
        7, "public", "t7", columns, key, TYPES, codec, chance.choice((1 << 16, 9000)), 60_000
    )


def read(records: Records, batch: list[TopicRecord]) -> tuple[list[Any], int]:
    """Return the entries or errors of the records, and how many records `entry` has read."""
    at, found, slow = 0, list[Any](), 0
    size = records._table.entry_bytes
    while at < len(batch):
        at, made = records.read(batch, at, NUMBERS)
        found += entries_of(made, size)
        if at < len(batch):
            topic, partition, offset, key, value = batch[at]
            slow += 1
            try:
                entry = records.entry(Place(NUMBERS[topic], partition, offset), key, value)
            except FAULTS as error:
                found.append((offset, type(error)))
            else:
                found += [] if entry is None else [entry]
            at += 1
    return found, slow


@needs_extension
@pytest.mark.parametrize("first", nightly_except(range(0, 2000, 200), 0))
def test_records_become_the_same_entries_or_are_left_to_the_specification(first: int) -> None:
    records = slow = entries = 0
    for seed in range(first, first + 200):
        chance = random.Random(seed)
        table = Table(chance)
        if not table.is_keyed:
            continue
        batch, described = written(table, chance), compared(table, chance)
        known = {11: table.schemas.key, 12: table.schemas.value}
        one, other = Records(described, known.__getitem__), Records(described, known.__getitem__)
        other._reader = None
        (found, left), (wanted, _) = read(one, batch), read(other, batch)
        assert found == wanted, seed
        assert one.found == other.found, seed
        if not one.found.is_flat:
            records, slow, entries = records + len(batch), slow + left, entries + len(found)
    assert entries > 1500
    assert slow < records / 3


KINDS = (ROW, ROW, UPDATED, UPDATED, DELETED, COPIED, UNKNOWN)


def some_entries(chance: random.Random, width: int) -> list[bytes]:
    """Return entries of a few keys, in order."""
    place = struct.Struct(">BIBIQ")
    made = []
    for number in range(chance.randrange(1, 200)):
        kind = chance.choice(KINDS)
        lsn, xid = chance.choice((chance.randrange(1000), (1 << 40) - 500 + chance.randrange(1000))), 0
        if kind != COPIED:
            xid = 90 + chance.randrange(20)
        hashes = [chance.choice((MISSING, UNCHANGED, 0, chance.getrandbits(64))) for _ in range(width)]
        made.append(
            key_id(b"%d" % chance.randrange(12))
            + POSITION.pack(chance.choice((1, 1, 2)), lsn, kind != COPIED, number)
            + place.pack(kind, xid, 0, 0, number)
            + struct.pack(f">{width}Q", *hashes)
        )
    return sorted(made)


@needs_extension
def test_entries_have_the_same_sums() -> None:
    unknown = 0
    for seed in range(400):
        chance = random.Random(seed)
        width = chance.randrange(1, 4)
        entries = some_entries(chance, width)
        view = View(Snapshot(95, 103, frozenset({96, 99})), chance.choice((500, 1 << 40)))
        emptied, hidden = (
            chance.choice((b"", POSITION.pack(1, chance.randrange(1000), 1, 5))) for _ in range(2)
        )
        one, other = (Fold(Barriers(emptied, hidden, frozenset()), view) for _ in range(2))
        cut = chance.randrange(len(entries) + 1)
        blocks = [b"".join(entries[:cut]), b"".join(entries[cut:])]
        found, wanted = one.sums(blocks, width), other.sums_in_python(blocks, width)
        for bucket in wanted.values():
            bucket.sums = [sum_ % (1 << 64) for sum_ in bucket.sums]
            unknown += bucket.unknown
        assert found == wanted, seed
        assert (one.skipped_copies, one.incomplete) == (other.skipped_copies, other.incomplete), seed
    assert unknown > 40


@needs_extension
def test_an_xid_that_the_server_has_not_assigned_is_an_error_in_both() -> None:
    entry = key_id(b"1") + POSITION.pack(1, 10, 1, 1) + struct.pack(">BIBIQ", ROW, 2, 0, 0, 0) + bytes(8)
    for name in ("sums", "sums_in_python"):
        fold = Fold(Barriers(b"", b"", frozenset()), View(Snapshot(95, 103, frozenset()), 500))
        with pytest.raises(CdcdError, match="xid"):
            getattr(fold, name)([entry], 1)


@needs_extension
def test_entries_are_sorted_and_distributed_as_by_python() -> None:
    chance = random.Random(7)
    for size in (8, 9, 63):
        block = b"".join(
            chance.choice((b"\x00", b"\xff", b"\x80")) * 8 + chance.randbytes(size - 8) for _ in range(500)
        )
        assert ENTRIES is not None
        assert ENTRIES.sorted_entries(block, size) == sorted_in_python(block, size)
        for bits in (0, 3, 12):
            found: dict[int, bytearray] = {1: bytearray(b"x")}
            wanted: dict[int, bytearray] = {1: bytearray(b"x")}
            ENTRIES.distribute(block, size, bits, found)
            distribute_in_python(block, size, bits, wanted)
            assert found == wanted


def test_many_entries_are_sorted_with_the_memory_of_a_piece(tmp_path: Path) -> None:
    chance = random.Random(7)
    blocks = [b"".join(chance.randbytes(9) for _ in range(chance.randrange(9))) for _ in range(3000)]
    found = [*sorted_blocks(blocks, 9, tmp_path, piece_bytes=900)]  # more files than a level has
    assert b"".join(found) == sorted_in_python(b"".join(blocks), 9)
    assert max(map(len, found)) <= 9 * 2000
    assert list(tmp_path.iterdir()) == []
