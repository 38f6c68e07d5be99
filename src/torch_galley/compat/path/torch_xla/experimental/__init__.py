"""`torch_xla.experimental`: its eager mode, which is torch_galley's setting `mode`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch_galley
from torch_galley.compat.finder import submodule
from torch_galley.core.config import setting


def eager_mode(enable: bool) -> None:
    """Run each operation at once, in the whole process, or go back to recording."""
    os.environ["GALLEY_MODE"] = "eager" if enable else "lazy"


def is_eager_mode() -> bool:
    """Whether operations run at once."""
    return setting("mode") != "lazy"


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Run each operation of the block at once, or record them."""
    with torch_galley.config(mode="eager" if enable else "lazy"):
        yield


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
