"""`torch_xla.utils.utils`, usually imported as `xu`: what examples use of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch_galley.compat.finder import missing


class SampleGenerator:
    """Yields the same batch so many times, in place of a real loader.

    Args:
        data: the batch.
        sample_count: how often.
    """

    def __init__(self, data: Any, sample_count: int):
        self._data, self._count = data, sample_count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield self._data

    def __len__(self) -> int:
        return self._count


def getenv_as(name: str, type: Any, defval: Any = None) -> Any:
    """Return an environment variable as a type, or `defval` if it is not set."""
    text = os.environ.get(name, "")
    if text == "":
        return defval
    return bool(int(text)) if type is bool else type(text)


def __getattr__(name: str) -> Any:
    missing(__name__, name)
