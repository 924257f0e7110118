"""The cache keeps entries that are used and evicts those that are not."""

from __future__ import annotations

from cdcd.lru_cache import LruCache


def test_the_one_not_used_for_longest_goes() -> None:
    kept: LruCache[str, int] = LruCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]


def test_what_is_put_again_takes_no_more_room() -> None:
    kept: LruCache[str, int] = LruCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    kept.put("a", 3)
    assert len(kept) == 2
    kept.put("c", 4)
    assert [kept.get(key) for key in "abc"] == [3, None, 4]
    kept.clear()
    assert len(kept) == 0
