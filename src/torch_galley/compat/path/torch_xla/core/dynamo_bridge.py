"""`torch_xla.core.dynamo_bridge`: what torch's own backend "openxla" would call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_galley.compat.finder import missing
from torch_galley.compat.step import mark_step


def extract_compiled_graph(model: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """Return a function that records the model's operations and runs them as one graph."""

    def call(*args: Any) -> Any:
        result = model(*args)
        mark_step()
        return result

    return call


def __getattr__(name: str) -> Any:
    missing(__name__, name)
