"""Generate CopyData payloads as a walsender sends them, from a seeded random generator.

In: a `random.Random`.  Out: payloads.
Must not: know how cdcd divides them into items.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from random import Random

from tests.fuzz.mutator import mutate


def xlog(payload: bytes, lsn: int = 0x1_0000_0002, sent_at_pg_us: int = 77) -> bytes:
    """Return an XLogData message."""
    return b"w" + struct.pack(">QQq", lsn, lsn, sent_at_pg_us) + payload


def keepalive(wal_end_lsn: int, sent_at_pg_us: int = -5, reply: int = 0) -> bytes:
    """Return a Primary keepalive message."""
    return b"k" + struct.pack(">QqB", wal_end_lsn, sent_at_pg_us, reply)


def begin(commit_lsn: int, xid: int = 700) -> bytes:
    """Return the payload of a Begin message."""
    return b"B" + struct.pack(">QqI", commit_lsn, 1_000, xid)


def commit(commit_lsn: int, flags: int = 0) -> bytes:
    """Return the payload of a Commit message."""
    return b"C" + struct.pack(">BQQq", flags, commit_lsn, commit_lsn + 8, 1_000)


def session(random: Random, transactions: int) -> Iterator[bytes]:
    """Yield the messages of `transactions`, most of them small and complete, with keepalives and other messages."""
    lsn = random.randrange(1 << 40)
    for _ in range(transactions):
        lsn += random.randrange(1, 1 << 20)
        yield from (_stream if random.random() < 0.2 else _transaction)(random, lsn)
        for _ in range(random.choice([0, 0, 1, 2])):
            at = lsn + random.randrange(9)
            yield keepalive(at, random.randrange(-(1 << 40), 1 << 40), int(random.random() < 0.2))


def _transaction(random: Random, lsn: int) -> Iterator[bytes]:
    yield xlog(begin(lsn), lsn, random.randrange(1 << 50))
    for _ in range(random.choice([0, 1, 1, 2, 30])):
        if random.random() < 0.1:
            yield random.choice(
                [xlog(_described(random)), keepalive(lsn), xlog(b"S\0\0\0\1\1"), xlog(begin(lsn))]
            )
        yield xlog(_row(random), lsn + random.randrange(9))
    if random.random() < 0.95:
        named = lsn if random.random() < 0.95 else lsn + 1
        yield xlog(commit(named, random.random() < 0.05), named + 8, random.randrange(1 << 50))


def _stream(random: Random, lsn: int) -> Iterator[bytes]:
    xid = random.randrange(1 << 32)
    for segment in range(random.choice([1, 2])):
        yield xlog(b"S" + struct.pack(">IB", xid, segment == 0), lsn)
        for _ in range(random.choice([0, 1, 3, 20])):
            of = xid.to_bytes(4, "big") if random.random() < 0.7 else random.randbytes(4)
            row = _row(random)
            yield xlog(row[:1] + of + row[1:], lsn)
            if random.random() < 0.1:
                yield random.choice([xlog(begin(lsn)), keepalive(lsn)])
        yield xlog(b"E", lsn)
    yield xlog(b"c" + struct.pack(">IBQQq", xid, 0, lsn, lsn + 8, 1_000))


def _row(random: Random) -> bytes:
    return random.choice([b"I", b"U", b"D"]) + random.randbytes(random.choice([4, 5, 40, 300]))


def _described(random: Random) -> bytes:
    return random.choice([b"R", b"Y", b"O", b"T", b"M"]) + random.randbytes(random.randrange(60))


def mutated(messages: Sequence[bytes], random: Random) -> list[bytes]:
    """Return the messages with some of them changed, repeated, removed or swapped."""
    found = list(messages)
    for _ in range(random.choice([1, 2, 5, 10])):
        at, kind = random.randrange(len(found)), random.randrange(4)
        if kind == 0:
            changed = bytearray(found[at])
            mutate(changed, found, random)
            found[at] = bytes(changed)
        elif kind == 1:
            found.insert(random.randrange(len(found) + 1), found[at])
        elif kind == 2:
            found[at : at + 2] = reversed(found[at : at + 2])
        elif len(found) > 1:
            del found[at]
    return found
