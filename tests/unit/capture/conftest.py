"""What the tests of the lazy device share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_galley
from torch_galley.core.events import Flushed, listen


@pytest.fixture
def xla() -> torch.device:
    """The device, with nothing pending from an earlier test."""
    torch_galley.sync()
    return torch_galley.device()


@pytest.fixture
def flushes(xla: torch.device) -> Iterator[list[Flushed]]:
    """The flushes as they happen."""
    seen: list[Flushed] = []
    stop = listen(lambda event: seen.append(event) if isinstance(event, Flushed) else None)
    yield seen
    stop()
