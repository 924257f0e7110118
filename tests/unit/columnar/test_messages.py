"""`Messages` with a scripted queue: what is refused, and that each message is destroyed once.

The target `messages` of the fuzz tests compares its rows with the Python fallback.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdcd.columnar.record_schema import RAW_SCHEMA
from tests.support.implementations import is_wanted, loaded
from tests.support.played_queue import Played, PlayedQueue

EXTENSION = "cdcd.columnar._arrow"
compiled = pytest.mark.parametrize("module", [loaded(EXTENSION)] if is_wanted(EXTENSION) else [])
PLACES = [(b"shop.items", 0, 100), (b"shop.orders", 0, 100)]


def messages(module: Any, queue: PlayedQueue, *, places: Any = PLACES, rows: int = 4, size: int = 100) -> Any:
    return module.Messages(module.Librdkafka(*queue.functions), 1, places, RAW_SCHEMA, rows, size)


def records(count: int, size: int = 1) -> list[Played]:
    return [Played("shop.items", 0, offset, value=bytes(size)) for offset in range(count)]


@compiled
def test_a_range_is_left_until_its_end_is_reached(module: Any) -> None:
    queue = PlayedQueue([Played("shop.items", 0, 99), Played("shop.orders", 0, 99, code=-191)])
    found = messages(module, queue)
    batch, finished, errors = found.read(0, 1000)
    assert (batch.num_rows, finished, errors, found.left, found.arrived) == (1, [0], [], 1, 2)
    queue.left.append(Played("shop.orders", 0, 100, code=-191))
    assert found.read(0, 1000) == (None, [1], [])
    assert found.left == 0


@compiled
def test_what_a_batch_has_no_room_for_is_in_the_next_one(module: Any) -> None:
    queue = PlayedQueue(records(7, size=40))
    found = messages(module, queue)
    assert [found.read(0, 1000)[0].num_rows for _ in range(4)] == [2, 2, 2, 1]
    assert (queue.freed, queue.given) == (7, {})
    assert found.read(0, 1000) == (None, [], [])


@compiled
def test_messages_that_are_in_no_batch_are_destroyed_too(module: Any) -> None:
    queue = PlayedQueue(records(4, size=60))
    found = messages(module, queue)
    found.read(0, 1000)
    assert queue.given
    found.close()
    found.close()
    assert (queue.freed, queue.given) == (4 - len(queue.left), {})
    assert found.read(0, 0) == (None, [], []), "a closed queue is not read"


@compiled
def test_errors_have_their_topic_and_the_other_rows_are_returned(module: Any) -> None:
    errors = [Played("shop.items", 0, 5, code=-195), Played(None, -1, -1001, code=29)]
    batch, _, found = messages(module, PlayedQueue([*records(1), *errors])).read(0, 1000)
    assert batch.num_rows == 1
    assert found == [(-195, "shop.items", 0), (29, None, -1)]


@compiled
def test_a_queue_that_librdkafka_does_not_read_is_an_error(module: Any) -> None:
    queue = PlayedQueue(records(2), is_broken=True)
    found = messages(module, queue)
    with pytest.raises(RuntimeError, match="does not return"):
        found.read(0, 1000)
    found.close()
    assert (queue.freed, queue.given) == (2, {})


@compiled
def test_a_batch_outlives_its_messages(module: Any) -> None:
    queue = PlayedQueue(
        [Played("shop.items", 0, 0, timestamp_ms=1, key=b"k", value=b""), Played("shop.items", 0, 1)]
    )
    found = messages(module, queue)
    batch, _, _ = found.read(0, 1000)
    found.close()
    del found, queue
    batch.validate(full=True)
    assert batch.schema == RAW_SCHEMA
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1000, None]
    assert batch.select(["topic", "partition", "offset", "key", "value"]).to_pylist() == [
        {"topic": "shop.items", "partition": 0, "offset": 0, "key": b"k", "value": b""},
        {"topic": "shop.items", "partition": 0, "offset": 1, "key": None, "value": None},
    ]


@compiled
@pytest.mark.parametrize(
    "wrong", [{"places": PLACES[::-1]}, {"rows": 0}, {"size": 0}, {"rows": 1 << 30}, {"size": 1 << 40}]
)
def test_arguments_out_of_range_are_refused(module: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not sorted|out of range"):
        messages(module, PlayedQueue([]), **wrong)
