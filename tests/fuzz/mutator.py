"""A mutator without coverage, for platforms without atheris, and for the short run of the test suite.

In: a corpus and a seeded `random.Random`.  Out: inputs with bytes flipped, cut, doubled or joined, and with numbers
that break lengths and counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.fuzz.targets import MAX_INPUT_BYTES

NUMBERS = (0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)


def inputs(corpus: list[bytes], random: Random) -> Iterator[bytes]:
    """Yield an endless sequence of inputs, those of the corpus first."""
    yield from corpus
    while True:
        data = bytearray(random.choice(corpus))
        for _ in range(random.choice([1, 1, 2, 4, 8])):
            mutate(data, corpus, random)
        yield bytes(data[:MAX_INPUT_BYTES])


def mutate(data: bytearray, corpus: list[bytes], random: Random) -> None:
    """Change one thing in `data`."""
    at = random.randrange(len(data) + 1)
    kind = random.randrange(6)
    if kind == 0 and at < len(data):
        data[at] = random.randrange(256)
    elif kind == 1 and at < len(data):
        data[at] ^= 1 << random.randrange(8)
    elif kind == 2:
        del data[at : at + random.choice([1, 2, 4, len(data)])]
    elif kind == 3:
        size = random.choice([1, 2, 4])
        data[at : at + size] = (random.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "big")
    elif kind == 4:
        other = random.choice(corpus)
        begin = random.randrange(len(other) + 1)
        data[at:at] = other[begin : begin + random.randrange(64)]
    else:
        data[at:at] = data[at : at + random.randrange(64)]
