"""Reading from libpq and dividing into items, by extension and fallback: limits, freed memory, equal results."""

from __future__ import annotations

import resource
import struct
from collections.abc import Sequence
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import MessageUnknown, ProtocolError
from cdcd.model import Control, Keepalive, RowBatch, TransactionBatch
from cdcd.source import batch as fallback
from tests.support.copydata import begin, commit, keepalive, mutated, session, xlog
from tests.support.implementations import READING, implementations, is_wanted, loaded
from tests.support.played import Played
from tests.support.transaction_batch import gathered_back, without_needless

ROW = xlog(b"I\0\0\0\1N")


@pytest.fixture(params=implementations(*READING))
def reading(request: pytest.FixtureRequest) -> ModuleType:
    return loaded(request.param)


def frame(message: bytes) -> bytes:
    return struct.pack(">I", len(message) - 25) + message[1:9] + message[25:]


# --- reading ---------------------------------------------------------------------------------------------------


def test_reading_ends_with_the_second_look_in_a_row_that_brings_nothing(reading: ModuleType) -> None:
    played = Played(ROW, 0, ROW, ROW, 0, 0, ROW)
    batch = reading.Batch(False, False)
    assert batch.read(reading.Libpq(*played.functions), 1, 1_000_000) == reading.LATER
    assert (batch.messages, batch.size_bytes, played.looks) == (3, 3 * len(ROW), 2)
    assert batch.finish() == ([RowBatch(frame(ROW) * 3, 3)], False)
    assert not played.given


def test_reading_ends_with_the_message_that_reaches_the_limit(reading: ModuleType) -> None:
    played = Played(*[ROW] * 5)
    libpq, batch = reading.Libpq(*played.functions), reading.Batch(False, False)
    assert batch.read(libpq, 1, len(ROW) + 1) == reading.LATER
    assert (batch.messages, played.looks) == (2, 0)
    rest = reading.Batch(False, False)
    rest.read(libpq, 1, 1_000_000)
    assert rest.messages == 3


@pytest.mark.parametrize("answer", [-1, -2])
def test_what_was_read_before_the_copy_ended_is_there(reading: ModuleType, answer: int) -> None:
    played = Played(ROW, answer)
    batch = reading.Batch(False, False)
    assert batch.read(reading.Libpq(*played.functions), 1, 1_000_000) == answer
    assert answer in (reading.COPY_ENDED, reading.COPY_FAILED)
    assert batch.finish() == ([RowBatch(frame(ROW), 1)], False)


def test_what_a_broken_connection_has_left_is_read_whatever_its_size(reading: ModuleType) -> None:
    played = Played(ROW, 0, ROW, ROW, -1, broken_at=1)
    libpq, batch = reading.Libpq(*played.functions), reading.Batch(False, False)
    assert batch.read(libpq, 1, len(ROW) + 1) == reading.BROKEN
    assert batch.read_rest(libpq, 1) == reading.COPY_ENDED
    assert (batch.messages, played.given) == (3, set())


def test_messages_behind_one_that_is_refused_are_taken_out_of_libpq_and_freed(reading: ModuleType) -> None:
    played = Played(ROW, b"x", ROW, xlog(b"S"), 0, 0)
    batch = reading.Batch(False, True)
    assert batch.read(reading.Libpq(*played.functions), 1, 1_000_000) == reading.LATER
    assert (batch.messages, played.freed, played.given) == (4, 4, set())
    with pytest.raises(MessageUnknown, match="0x78"):
        batch.finish()


def test_a_message_that_there_is_no_memory_for_is_freed(reading: ModuleType) -> None:
    played = Played(ROW, xlog(b"I" + bytes(300_000_000)))
    libpq, batch = reading.Libpq(*played.functions), reading.Batch(False, False)
    with memory_of(400_000_000), pytest.raises(MemoryError):
        batch.read(libpq, 1, 1_000_000)
    assert (played.freed, played.given) == (2, set())


class memory_of:  # noqa: N801 - used like a function
    """Limit the address space to `more_bytes` above its current size."""

    def __init__(self, more_bytes: int) -> None:
        self._more_bytes = more_bytes

    def __enter__(self) -> None:
        with open("/proc/self/statm") as statm:
            now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now_bytes + self._more_bytes, self._before[1]))

    def __exit__(self, *_exc: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)


def test_a_function_without_an_address_is_refused() -> None:
    if is_wanted(READING[1]):
        played = Played()
        with pytest.raises(ValueError, match="without an address"):
            loaded(READING[1]).Libpq(*played.functions[:2], 0)


# --- dividing into items ---------------------------------------------------------------------------------------


def cut(reading: ModuleType, messages: Sequence[bytes], in_stream: bool, gathers: bool) -> Any:
    """Return the items and the stream bit, or the error's type, text and context."""
    batch = reading.Batch(in_stream, gathers)
    for message in messages:
        batch.feed(message)
    assert (batch.messages, batch.size_bytes) == (len(messages), sum(map(len, messages)))
    try:
        return batch.finish()
    except ProtocolError as error:
        return type(error), str(error), error.context


def whole(lsn: int, *rows: bytes) -> list[bytes]:
    return [xlog(begin(lsn), 1), *rows, xlog(commit(lsn), 2)]


def test_whole_transactions_are_one_item(reading: ModuleType) -> None:
    messages = [*whole(100, ROW, ROW), *whole(200), *whole(300, ROW)]
    items = [TransactionBatch(b"".join(map(frame, messages)), 3)]
    assert cut(reading, messages, False, True) == (items, False)


BEGIN, COMMIT = Control(1, begin(100), 77), Control(2, commit(100), 77)
RUN = RowBatch(frame(ROW), 1)
TWO = TransactionBatch(frame(xlog(begin(100), 1)) + frame(ROW) + frame(xlog(commit(100), 2)), 1)


@pytest.mark.parametrize(
    ("messages", "items"),
    [
        (whole(100, ROW)[:-1], [BEGIN, RUN]),
        (whole(100, ROW)[1:], [RUN, COMMIT]),
        (whole(100, ROW, keepalive(9)), [BEGIN, RUN, Keepalive(9, -5, False), COMMIT]),
        ([*whole(100, ROW), ROW], [TWO, RUN]),
        ([ROW, *whole(100, ROW)], [RUN, TWO]),
        ([xlog(begin(100), 1), *whole(100, ROW)], [BEGIN, TWO]),
        ([*whole(100, ROW), *whole(100, ROW)[:-1]], [TWO, BEGIN, RUN]),
        ([xlog(begin(100), 1), xlog(commit(101), 2)], [BEGIN, Control(2, commit(101), 77)]),
        ([xlog(begin(100), 1), xlog(commit(100, 1), 2)], [BEGIN, Control(2, commit(100, 1), 77)]),
        ([xlog(begin(100) + b"x", 1), xlog(commit(100), 2)], [Control(1, begin(100) + b"x", 77), COMMIT]),
        ([xlog(begin(100), 1), xlog(commit(100) + b"x", 2)], [BEGIN, Control(2, commit(100) + b"x", 77)]),
    ],
)
def test_what_is_not_exactly_a_whole_transaction_stays_as_it_is(
    reading: ModuleType, messages: list[bytes], items: list[object]
) -> None:
    assert cut(reading, messages, False, True) == (items, False)


@pytest.mark.parametrize(
    ("between", "items"),
    [
        ([keepalive(100)], []),
        ([keepalive(200)], []),
        ([keepalive(201)], [Keepalive(201, -5, False)]),  # ahead of the following transaction
        ([keepalive(100, reply=1)], [Keepalive(100, -5, True)]),
        ([keepalive(100), keepalive(100), keepalive(150)], []),
        ([keepalive(150), keepalive(100)], [Keepalive(150, -5, False), Keepalive(100, -5, False)]),
        ([keepalive(100), keepalive(100, reply=1)], [Keepalive(100, -5, False), Keepalive(100, -5, True)]),
        ([keepalive(100), keepalive(201)], [Keepalive(201, -5, False)]),
        ([keepalive(100), xlog(b"R", 1)], [Keepalive(100, -5, False), Control(1, b"R", 77)]),
        ([keepalive(100), ROW], [Keepalive(100, -5, False), RUN]),
        ([keepalive(100), xlog(begin(150), 1)], [Keepalive(100, -5, False), Control(1, begin(150), 77)]),
    ],
)
def test_a_keepalive_before_a_transaction_behind_its_position_is_needless(
    reading: ModuleType, between: list[bytes], items: list[object]
) -> None:
    """F11: an idle walsender sends keepalives after each transaction; the next commit confirms more."""
    one, other = whole(100, ROW), whole(200, ROW)
    alone = [TransactionBatch(b"".join(map(frame, each)), 1) for each in (one, other)]
    together = [TransactionBatch(alone[0].frames + alone[1].frames, 2)]
    found, _ = cut(reading, [*one, *between, *other], False, True)
    assert found == ([alone[0], *items, alone[1]] if items else together)


def test_a_keepalive_stays_where_no_complete_transaction_follows(reading: ModuleType) -> None:
    one, other = whole(100, ROW), whole(200, ROW)
    idle = Keepalive(150, -5, False)
    for rest, items in (([], []), (other[:2], [Control(1, begin(200), 77), RUN])):
        found, _ = cut(reading, [*one, keepalive(150), *rest], False, True)
        assert found == [TransactionBatch(b"".join(map(frame, one)), 1), idle, *items]
    found, _ = cut(reading, [keepalive(150), *other], False, True)
    assert found == [idle, TransactionBatch(b"".join(map(frame, other)), 1)]
    assert cut(reading, [keepalive(150), *one, keepalive(160), *other], False, False)[0].count(idle) == 1


def test_rows_of_a_stream_are_in_no_whole_transaction(reading: ModuleType) -> None:
    row = xlog(b"I\0\0\0\7....")
    items, _ = cut(reading, [*whole(100), row, *whole(100, row)], True, True)
    assert [type(item) for item in items] == [TransactionBatch, RowBatch, Control, RowBatch, Control]
    assert [item.xid for item in items if type(item) is RowBatch] == [7, 7]


def test_a_large_batch_does_not_disturb_the_next(reading: ModuleType) -> None:
    """The next batch reuses the memory of the previous one, but none of its content."""
    large = xlog(b"I" + b"x" * 6_000_000)
    for _ in range(2):
        assert cut(reading, [large, ROW], False, True) == ([RowBatch(frame(large) + frame(ROW), 2)], False)
        assert cut(reading, [ROW], False, True) == ([RUN], False)
        assert cut(reading, [], True, True) == ([], True)


def test_two_batches_at_a_time_do_not_share_a_buffer(reading: ModuleType) -> None:
    one, other = reading.Batch(False, False), reading.Batch(False, False)
    one.feed(ROW)
    other.feed(xlog(b"D\0\0\0\2K"))
    one.feed(ROW)
    assert one.finish()[0] == [RowBatch(frame(ROW) * 2, 2)]
    assert other.finish()[0] == [RowBatch(frame(xlog(b"D\0\0\0\2K")), 1)]


# --- the implementations against each other ---------------------------------------------------------------------

both = pytest.mark.parametrize(
    "extension", [name for name in implementations(*READING) if name != READING[0]]
)


def assert_equal(extension: ModuleType, messages: Sequence[bytes], in_stream: bool, gathers: bool) -> Any:
    expected = cut(fallback, messages, in_stream, gathers)
    found = cut(extension, messages, in_stream, gathers)
    assert repr(found) == repr(expected)
    assert found == expected
    return expected


@both
def test_sessions_are_cut_alike_and_gathering_takes_nothing_away(extension: str) -> None:
    needless, kinds = 0, set[type]()
    for seed in range(300):
        messages = list(session(Random(seed), 20))
        plain = assert_equal(loaded(extension), messages, False, False)
        found = assert_equal(loaded(extension), messages, False, True)
        kinds |= set(map(type, found[0]))
        batched, all_items = gathered_back(found[0]), gathered_back(plain[0])
        assert batched == without_needless(all_items, batched)
        needless += len(all_items) - len(batched)
    assert needless > 100
    assert kinds == {RowBatch, TransactionBatch, Control, Keepalive}


@both
def test_mutated_sessions_are_cut_alike_or_refused_alike(extension: str) -> None:
    errors = 0
    for seed in range(1_500):
        random = Random(seed)
        messages = mutated(list(session(random, 4)), random)
        found = assert_equal(loaded(extension), messages, random.random() < 0.3, random.random() < 0.7)
        errors += isinstance(found[0], type)
    assert errors > 100


_payload = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda kind, rest: kind + rest, st.sampled_from([b"I", b"U", b"D"]), st.binary(max_size=12)),
    st.builds(begin, st.integers(1, 3)),
    st.builds(commit, st.integers(1, 3), st.integers(0, 1)),
    st.sampled_from([b"S", b"E", b"R", b"Y"]),
)
_message = st.one_of(
    st.builds(xlog, _payload, st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)),
    st.builds(keepalive, st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2)),
    st.binary(max_size=40),
)


@both
@given(messages=st.lists(_message, max_size=12), in_stream=st.booleans(), gathers=st.booleans())
def test_any_messages_are_cut_alike_or_refused_alike(
    extension: str, messages: list[bytes], in_stream: bool, gathers: bool
) -> None:
    assert_equal(loaded(extension), messages, in_stream, gathers)
