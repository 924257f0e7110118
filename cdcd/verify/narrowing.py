"""The rows that differ within the parts of the keys whose sums differ, one file of keys after another.

In: the entries of the topics and the rows of the source, in files by key.  Out: differences.
Invariant: memory is that of one file's keys. The values of a key that the source has twice are not compared: which of
its rows the topics have is no question that has an answer.
Must not: read from a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from cdcd.verify.fold import REPEATED, Difference, Fold, bucket_of, compare_rows, hashes_of
from cdcd.verify.records import KEY_BYTES
from cdcd.verify.spill import SpillFolder

__all__ = ["differences", "in_file"]


def differences(
    topics: SpillFolder, fold: Fold, wrong: Set[int], source: SpillFolder, *, is_covered: bool
) -> Iterator[Difference]:
    """Yield the differences of the rows of some buckets."""
    for number in source.files:
        theirs, repeated = _by_key(source.read(number))
        yield from (Difference(REPEATED, key) for key in repeated)
        ours = fold.rows(topics.sorted(in_file(topics, source, number, wrong)))
        for one in compare_rows(ours, theirs, is_copied=is_covered):
            if one.kind != "different" or one.key not in repeated:
                yield one


def _by_key(rows: Iterable[bytes]) -> tuple[dict[bytes, tuple[int, ...]], set[bytes]]:
    """Return the hashes of the source's rows by key, and the keys of several rows."""
    found: dict[bytes, tuple[int, ...]] = {}
    repeated: set[bytes] = set()
    for row in rows:
        key = row[:KEY_BYTES]
        if key in found:
            repeated.add(key)
        found[key] = hashes_of(row, KEY_BYTES)
    return found, repeated


def in_file(topics: SpillFolder, source: SpillFolder, number: int, buckets: Set[int]) -> Iterator[bytes]:
    """Yield the topics' entries of some buckets that have keys of one file of the source, which has more files."""
    for entry in topics.read(number >> (source.bits - topics.bits)):
        if source.file_of(entry) == number and bucket_of(entry) in buckets:
            yield entry
