"""Executables kept in memory, keyed by named parts, the least recently used going first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch_galley.core.events import CacheHit, emit

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
        self._lock = threading.Lock()

    def get(self, key: CacheKey, make: Callable[[], Value]) -> Value:
        """Return the entry for `key`, making it first if there is none.

        A second thread that asks for a key being made waits; another key does not.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                emit(CacheHit(key))
                return self._entries[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._entries:
                    return self._entries[key]
            value = make()
            with self._lock:
                self._entries[key] = value
                self._making.pop(key, None)
                while len(self._entries) > self.size:
                    self._entries.popitem(last=False)
            return value

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
