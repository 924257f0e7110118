"""The cache keeps entries that are used and evicts those that are not."""

from __future__ import annotations

from cdcd.lru_cache import LruCache


def test_the_one_not_used_for_longest_goes() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_what_is_put_again_takes_no_more_room() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    assert len(cache) == 2
    cache.put("c", 4)
    assert [cache.get(key) for key in "abc"] == [3, None, 4]
    cache.clear()
    assert len(cache) == 0


def test_the_newest_value_is_the_one_used_last() -> None:
    cache: LruCache[int, str] = LruCache(2)
    assert cache.newest() is None
    cache.put(1, "one")
    cache.put(2, "two")
    assert cache.newest() == "two"
    cache.get(1)
    assert cache.newest() == "one"
