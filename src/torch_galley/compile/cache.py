"""Executables kept in memory, keyed by named parts.

When there are too many, those that no living plan has used go first, then the least recently used.
Such that nothing uses are not dropped at once: a graph that is captured anew, after a graph break
or for another shape, mostly has clusters that were there before, and compiling takes longer than
keeping. There is no bound by bytes, because XLA says of no executable for the CPU how large it is.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch_galley.core.events import CacheHit, emit
from torch_galley.core.lock import fork_safe_lock

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheKey:
    """What an executable depends on, part by part, so that a miss can be explained.

    Compared whole, never by hash alone: two programs of one hash must not share an executable.
    """

    program: str
    """The cluster's nodes, written with numbers for names."""
    arguments: tuple[object, ...]
    """Shape, dtype and layout of each input."""
    symbols: tuple[tuple[str, object], ...]
    """Values of the shape symbols."""
    settings: tuple[object, ...]
    """Settings that change the executable."""


class ExecutableCache(Generic[Value]):
    """A bounded map from key to executable; each key is made once, also by many threads.

    Example:
        >>> cache = ExecutableCache(2)
        >>> cache.get(CacheKey("p", (), (), ()), lambda: "made")
        'made'
    """

    def __init__(self, size: int):
        self.size = size
        self._entries: OrderedDict[CacheKey, Value] = OrderedDict()
        self._making: dict[CacheKey, threading.Lock] = {}
        self._holders: Counter[CacheKey] = Counter()
        """How many living plans have used each."""
        self._released: deque[Iterable[CacheKey]] = deque()
        self._lock = fork_safe_lock()

    def find(self, key: CacheKey) -> Value | None:
        """Return the entry for `key` if there is one."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            found = self._entries[key]
        emit(CacheHit(key))
        return found

    def get(self, key: CacheKey, make: Callable[[], Value]) -> Value:
        """Return the entry for `key`, making it first if there is none.

        A second thread that asks for a key being made waits; another key does not.
        """
        if (found := self.find(key)) is not None:
            return found
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._entries:
                    return self._entries[key]
            value = make()
            with self._lock:
                self._entries[key] = value
                self._making.pop(key, None)
                self._let_go()
                while len(self._entries) > self.size:
                    self._entries.popitem(last=False)
            return value

    def hold(self, key: CacheKey) -> None:
        """Note that a plan uses an entry."""
        with self._lock:
            self._holders[key] += 1

    def release(self, keys: Iterable[CacheKey]) -> None:
        """Note that a plan is gone; entries that no other uses are the next to go.

        Takes no lock: plans end in garbage collection, which may happen in the midst of a `get`.
        """
        self._released.append(keys)

    def _let_go(self) -> None:
        """Put what was released where the next to go are. The caller holds the lock."""
        while self._released:
            for key in self._released.popleft():
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key]
                    if key in self._entries:
                        self._entries.move_to_end(key, last=False)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
