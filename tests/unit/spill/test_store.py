"""A store partly on disk equals a MemoryStore: order, aborts, freed memory. With real files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.errors import SpillError, SpillFull
from cdcd.model import Control, RowBatch
from cdcd.spill import store as store_module
from cdcd.spill.pieces import HEADER_BYTES
from cdcd.spill.pool import OWN_LIMIT, SpillPool, Usage
from cdcd.spill.settings import SpillSettings
from cdcd.txn.store import MemoryStore
from tests.unit.txn import wire


class Reported:
    """An observer of a pool that counts its reports."""

    def __init__(self) -> None:
        self.transactions = self.size_bytes = 0

    def spill(self, usage: Usage) -> None:
        self.usage = usage

    def spilled(self, *, transactions: int, size_bytes: int) -> None:
        self.transactions += transactions
        self.size_bytes += size_bytes


def new_pool(
    below: Path, disk_bytes: int = 1 << 30, segment_bytes: int = 64 << 20
) -> tuple[SpillPool, Reported]:
    reported = Reported()
    return SpillPool(SpillSettings(below, disk_bytes), reported, segment_bytes=segment_bytes), reported


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SpillPool]:
    made, _ = new_pool(tmp_path)
    yield made
    made.close()


def segments(below: Path) -> list[Path]:
    return sorted(below.glob("cdcd-spill-*/*.spill"))


_XIDS = st.integers(1, 4)
_ITEMS = st.one_of(
    st.builds(lambda xid, values: wire.rows(*values, xid=xid), _XIDS, st.lists(st.text("ab"), min_size=1)),
    st.just(wire.rows("plain")),
    st.builds(lambda xid: wire.truncate(1, xid=xid), _XIDS),
    st.builds(lambda xid, content: wire.message(True, xid, content), _XIDS, st.binary(max_size=40)),
    st.builds(lambda xid: wire.relation("id", xid=xid), _XIDS),
    st.builds(wire.pg_type, _XIDS),
)
_STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), _ITEMS),
    st.tuples(st.just("abort"), st.integers(0, 2), _XIDS),
    st.tuples(st.just("spill"), st.just(0), st.none()),
)


@settings(deadline=None)
@given(st.lists(_STEPS, max_size=60), st.integers(1, 400))
def test_stores_of_one_pool_equal_stores_in_memory_whatever_is_on_disk(
    steps: list[tuple[str, int, RowBatch | Control | int | None]], segment_bytes: int
) -> None:
    """F26, F30: an abort drops only its own rows, in memory and on disk; later rows stay."""
    with tempfile.TemporaryDirectory() as folder:
        pool, _ = new_pool(Path(folder), segment_bytes=segment_bytes)
        stores, models = [pool.new_store() for _ in range(3)], [MemoryStore() for _ in range(3)]
        for what, which, value in steps:
            if what == "spill":
                pool.spill_largest()
            elif isinstance(value, int):
                stores[which].abort_subtransaction(value)
                models[which].abort_subtransaction(value)
            elif value is not None:
                stores[which].append(value)
                models[which].append(value)
            assert pool.usage.memory_bytes == sum(store.memory_bytes for store in stores)
            assert pool.usage.disk_bytes == sum(file.stat().st_size for file in segments(Path(folder)))
            assert pool.usage.files == len(segments(Path(folder)))
        for store, model in zip(stores, models, strict=True):
            assert list(store.replay()) == list(model.replay())
            store.discard()
        assert (pool.usage.memory_bytes, pool.usage.disk_bytes, pool.usage.files) == (0, 0, 0)
        assert segments(Path(folder)) == []
        pool.close()


def test_a_spilled_store_holds_no_memory_and_the_largest_goes_first(pool: SpillPool) -> None:
    small, large = pool.new_store(), pool.new_store()
    small.append(wire.rows("s", xid=1))
    for _ in range(1000):
        large.append(wire.rows("some text", xid=2))
    pool.spill_largest()
    assert large.memory_bytes == 0
    assert pool.usage.memory_bytes == small.memory_bytes > 0


def test_memory_counts_more_than_what_the_lists_and_bytes_really_take(pool: SpillPool) -> None:
    """The budget limits the memory of the process, so the overhead of Python objects counts too."""
    import tracemalloc

    tracemalloc.start()
    try:
        store = pool.new_store()
        for number in range(20_000):
            data = bytes(50 + number % 7)
            store.append(RowBatch(data, 1000 + number, 100_000 + number // 2))
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes * 0.9 < store.memory_bytes < taken_bytes * 2


def test_a_replay_gives_the_disk_back_segment_by_segment(tmp_path: Path) -> None:
    pool, _ = new_pool(tmp_path, segment_bytes=1)
    store = pool.new_store()
    for value in "abc":
        store.append(wire.rows(value, xid=1))
        pool.spill_largest()
    assert len(segments(tmp_path)) == 3
    left = [len(segments(tmp_path)) for _ in store.replay()]
    assert left == [3, 2, 1]
    assert segments(tmp_path) == []
    pool.close()


def test_a_replay_says_when_it_passes_over_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: otherwise other users of the thread wait until the next item is found."""
    monkeypatch.setattr(store_module, "MAX_SKIPPED_PIECES", 10)
    pool, _ = new_pool(tmp_path)
    store = pool.new_store()
    remaining = wire.rows("kept", xid=2)
    for item in (*[wire.rows("gone", xid=1)] * 25, remaining, *[wire.rows("gone", xid=1)] * 9, remaining):
        store.append(item)
    pool.spill_largest()
    store.abort_subtransaction(1)
    assert list(store.replay()) == [None, None, remaining, remaining]
    pool.close()


def test_a_discarded_store_gives_everything_back(tmp_path: Path) -> None:
    pool, reported = new_pool(tmp_path)
    store = pool.new_store()
    store.append(wire.rows("a", xid=1))
    pool.spill_largest()
    store.append(wire.rows("b", xid=1))
    assert (reported.transactions, reported.size_bytes) == (1, segments(tmp_path)[0].stat().st_size)
    store.discard()
    assert segments(tmp_path) == []
    assert (pool.usage.memory_bytes, pool.usage.disk_bytes) == (0, 0)
    pool.close()


def test_beyond_the_disk_budget_nothing_is_written_and_nothing_lost(tmp_path: Path) -> None:
    item = wire.rows("a" * 100, xid=1)
    pool, _ = new_pool(tmp_path, disk_bytes=len(item.frames) + HEADER_BYTES)
    store = pool.new_store()
    store.append(item)
    pool.spill_largest()
    store.append(item)
    with pytest.raises(SpillFull) as caught:
        pool.spill_largest()
    assert caught.value.context["cause"] == OWN_LIMIT
    assert list(store.replay()) == [item, item]
    pool.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda data: data[:-1], "does not contain the bytes that were written"),
        (lambda data: data[: HEADER_BYTES - 1], "inside a header"),
        (lambda data: b"x" + data[1:], "unknown kind"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "does not contain the bytes that were written"),
    ],
)
def test_a_damaged_segment_is_an_error_that_shows_no_row(tmp_path: Path, damage: object, named: str) -> None:
    pool, _ = new_pool(tmp_path)
    store = pool.new_store()
    store.append(wire.rows("secret", xid=1))
    pool.spill_largest()
    (file,) = segments(tmp_path)
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(SpillError, match=named) as caught:
        list(store.replay())
    assert "secret" not in str(caught.value)
    pool.close()
