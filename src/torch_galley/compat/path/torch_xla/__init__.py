"""`torch_xla`: its top level."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_galley
from torch_galley.compat import step as _step
from torch_galley.compat.finder import install as _install
from torch_galley.compat.finder import submodule as _submodule
from torch_galley.compat.step import one_graph as _one_graph

__galley__ = True
__version__ = f"2.9.0+galley{torch_galley.__version__}"

_install()  # in a process that was spawned, this is the first of ours to be imported


def device(index: int | None = None) -> torch.device:
    """Return the xla device."""
    return torch_galley.device(index or 0)


def devices() -> list[torch.device]:
    """Return all devices: the one there is."""
    return [torch_galley.device()]


def real_devices() -> list[str]:
    """Return the names of what computes behind the devices."""
    return ["CPU:0"]


def device_count() -> int:
    """Return 1."""
    return 1


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run what was recorded, then the step closures."""
    _step.mark_step()


@contextlib.contextmanager
def step() -> Iterator[None]:
    """Make what is recorded inside one graph: run what was recorded before, and it at its end."""
    _step.mark_step()
    try:
        yield
    finally:
        _step.mark_step()


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    num_different_graphs_allowed: int | None = None,
) -> Any:
    """Make a function's calls graphs of their own; without a function, a context manager.

    Raises:
        RuntimeError: under `full_graph`, something in it read a value; or it became more than
            `max_different_graphs` graphs.
    """
    limit = max_different_graphs or num_different_graphs_allowed
    label = name or getattr(f, "__name__", "the block")
    bound = _one_graph(label, bool(full_graph), limit)
    if f is None:
        return bound()
    inner = f

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch_galley.config(mode="lazy"), bound():
            return inner(*args, **kwargs)

    return call


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed torch's generator, from which the xla device draws."""
    torch.manual_seed(seed)


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call `fn(0, *args)` in this process: there is one device."""
    fn(0, *args)


def __getattr__(name: str) -> Any:
    return _submodule(__name__, name)
