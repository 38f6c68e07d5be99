"""The executable cache: bounded, and each key made once."""

from __future__ import annotations

import threading
import time

import pytest

from torch_galley.compile.cache import CacheKey, ExecutableCache


def key(name: str) -> CacheKey:
    return CacheKey(name, (), (), ())


def test_the_least_recently_used_goes_first():
    cache: ExecutableCache[str] = ExecutableCache(2)
    made = []

    def get(name: str) -> str:
        return cache.get(key(name), lambda: made.append(name) or name)

    for name in ["a", "b", "a", "c", "a", "b"]:
        get(name)
    assert made == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_many_threads_make_a_key_once():
    cache: ExecutableCache[int] = ExecutableCache(9)
    made = []

    def make() -> int:
        time.sleep(0.02)
        made.append(1)
        return 7

    threads = [threading.Thread(target=lambda: cache.get(key("k"), make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_failure_is_not_kept():
    cache: ExecutableCache[int] = ExecutableCache(9)

    def fail() -> int:
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        cache.get(key("k"), fail)
    assert cache.get(key("k"), lambda: 3) == 3


def test_what_no_plan_uses_goes_first():
    cache: ExecutableCache[str] = ExecutableCache(3)
    plans = {"old": ["a", "b"], "new": ["b", "c"]}
    for plan in plans.values():
        for name in plan:
            cache.get(key(name), lambda name=name: name)
            cache.hold(key(name))
    cache.release([key("b"), key("c")])  # "new" ends; b is still used
    cache.get(key("a"), str)
    cache.get(key("d"), lambda: "d")
    assert [cache.find(key(name)) for name in "abcd"] == ["a", "b", None, "d"]
    cache.release([key("a"), key("b")])
    cache.get(key("e"), lambda: "e")
    cache.get(key("f"), lambda: "f")
    assert [cache.find(key(name)) for name in "abdef"] == [None, None, "d", "e", "f"]
