"""Which files may have a key: none that has it is left out, and the memory is bounded."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdcd.spark.formats import file_keys, open_tables
from cdcd.spark.formats.file_keys import HASH_BYTES, FileKeys, hashed
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.table_files import possible_keys
from cdcd.spark.target.versions import BucketFile, TableFormat
from tests.spark.batches import Batches
from tests.spark.unit.test_open_tables import BODY, ID, apply, mirrored, newest, of_both, row


def keys(numbers: range) -> pa.Array:
    return pa.array([b"%d" % one for one in numbers], pa.binary())


@pytest.mark.parametrize("seed", range(20))
def test_a_file_is_asked_for_the_keys_that_it_has(seed: int) -> None:
    dice = random.Random(seed)
    wanted, held = ({b"%d" % dice.randrange(1000) for _ in range(dice.randrange(300))} for _ in range(2))
    found = FileKeys()
    found.add("a", pa.chunked_array([pa.array(sorted(held), pa.binary())]))
    asked = found.asked("a", hashed(pa.array(sorted(wanted), pa.binary())))
    assert sorted(asked.to_pylist()) == sorted(wanted & held)


def test_keys_with_one_hash_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash says that a key may be there; the file says whether it is."""
    monkeypatch.setattr(file_keys, "hashes", lambda keys: pc.binary_length(keys).to_numpy().astype("int64"))
    found = FileKeys()
    found.add("a", keys(range(5)))
    assert found.asked("a", hashed(keys(range(8, 12)))).to_pylist() == [b"8", b"9"]


def test_a_file_of_which_nothing_is_known_is_asked_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_keys, "MOST_BYTES", 10 * HASH_BYTES)
    found, wanted = FileKeys(), hashed(keys(range(100, 103)))
    found.add("a", keys(range(6)))
    found.add("b", keys(range(6)))  # no room
    assert [len(found.asked(path, wanted)) for path in ("a", "b", "c")] == [0, 3, 3]
    found.remove(["a", "never added"])
    found.add("b", keys(range(10)))
    assert [len(found.asked(path, wanted)) for path in ("a", "b", "c")] == [3, 0, 3]


@of_both
def test_new_rows_read_no_file(
    tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start one batch reads the keys of the files that there are; then a file is read if it has a key."""
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    items.run([items.change("r", 10, n, after=row(n, "x")) for n in range(1, 9)], loading=False)
    asked: list[str] = []

    def noted(target: Storage, file: BucketFile, *wanted: pa.Array) -> pa.ChunkedArray:
        asked.append(file.path)
        return possible_keys(target, file, *wanted)

    monkeypatch.setattr(open_tables, "possible_keys", noted)
    with items.mirror() as mirror:
        for number in range(5):
            assert apply(mirror, [items.change("c", 20 + number, 1, after=row(100 + number, "new"))]) == ""
        assert len(asked) == 1
        assert apply(mirror, [items.change("u", 30, 1, after=row(102, "changed"))]) == ""
        assert len(asked) == 2
        assert apply(mirror, [items.change("d", 40, 1, before=row(102, ""))]) == ""
        assert len(asked) == 3
        assert apply(mirror, [items.change("c", 50, 1, after=row(102, "again"))]) == ""
        assert len(asked) == 3
    assert newest(items) == mirrored(items.target)
    assert len(newest(items)) == 8 + 5
