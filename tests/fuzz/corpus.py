"""The initial inputs: the golden messages and frames, and sessions of the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from cdcd.source.settings import StreamOptions
from tests.fuzz.messages import some_messages
from tests.fuzz.targets import MAX_INPUT_BYTES, TABLES, joined, session_byte
from tests.simulator.judge import WAYS
from tests.simulator.walsender import Walsender
from tests.simulator.workload import Generator
from tests.support.copydata import session
from tests.support.some_avro import SomeAvro
from tests.support.some_rows import Table, row_batch_of, transactions_of
from tests.unit.pgoutput.golden import GOLDEN
from tests.unit.source.test_copyboth import GOLDEN as GOLDEN_FRAMES


def corpus(target: str) -> list[bytes]:
    """Return valid inputs of a target."""
    if target == "frames":
        return [data for _, data in GOLDEN_FRAMES.values()]
    if target == "decoder":
        return [bytes((session_byte(**one.session),)) + one.payload for one in GOLDEN]
    if target == "reading":
        made = (joined(seed % 8, list(session(Random(seed), 5))) for seed in range(120))
        return [data for data in made if len(data) <= MAX_INPUT_BYTES]
    if target == "messages":
        return [some_messages(Random(seed)) for seed in range(120)]
    if target == "rows":
        return list(_runs())
    if target == "transactions":
        return list(_whole())
    if target == "columns":
        return list(_records())
    return list(_sessions())


def _records() -> Iterator[bytes]:
    for seed in range(TABLES):
        some = SomeAvro(Random(seed))
        for records in (1, 2, 8):
            data = joined(seed, [some.framed() for _ in range(records)])
            if len(data) <= MAX_INPUT_BYTES:
                yield data


def _runs() -> Iterator[bytes]:
    for seed in range(TABLES):
        chance = Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        for _ in range(4):
            run = row_batch_of(tables, chance)
            data = bytes((seed, run.count | (run.xid is not None) << 7)) + run.frames
            if len(data) <= MAX_INPUT_BYTES:
                yield data


def _whole() -> Iterator[bytes]:
    for seed in range(TABLES):
        chance = Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        for _ in range(4):
            whole = transactions_of(tables, chance)
            written = chance.choice((0, 1500, 2500)).to_bytes(2, "big")
            data = bytes((seed,)) + written + bytes((whole.count,)) + whole.frames
            if len(data) <= MAX_INPUT_BYTES:
                yield data


def _sessions() -> Iterator[bytes]:
    for seed in range(60):
        random = Random(seed)
        version, streaming = random.choice(WAYS)
        work = Generator(random).work(random.choice([5, 20, 60]))
        two_phase = version >= 3 and seed % 2 == 0
        options = StreamOptions(version, streaming, messages=True, two_phase=two_phase)
        payloads = itertools.islice(Walsender(work.wal, options, 0, random).payloads(), 60)
        first = session_byte(
            protocol_version=version, streaming_parallel=streaming == "parallel", two_phase=two_phase
        )
        data = joined(first, list(payloads))
        if len(data) <= MAX_INPUT_BYTES:
            yield data
