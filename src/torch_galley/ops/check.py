"""What XLA would clamp silently and eager raises: collected while lowering, read after a run.

A lowering calls `require(...)` on the values it depends on. The driver opens a `Checks` scope
around the trace and makes what was collected one small extra output of the executable; the run
stage raises if a count is not zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


class OutOfRange(IndexError, RuntimeError):
    """An index outside its dimension. Eager raises one class or the other, by operator and even
    by shape (index_add: RuntimeError, or IndexError in one dimension); this is both."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold for every element."""

    error: type[Exception]
    """What eager raises."""
    message: str
    """The sentence; "{value}" stands for the first offending value."""
    node: str
    """Name of the graph node that asked."""


@dataclass
class Checks:
    """The checks of one trace, with their traced verdicts."""

    entries: list[Check] = field(default_factory=list)
    verdicts: list[Any] = field(default_factory=list)
    """For each check an int64[2]: how many elements offend, and the first that does."""
    node: str = ""
    """The node being lowered, set by the driver."""
    op: str = ""
    """Its operator, such as "gather", for the message."""

    def table(self) -> jax.Array:
        """Return the verdicts as one int64[len(entries), 2]."""
        return jnp.stack(self.verdicts) if self.verdicts else jnp.zeros((0, 2), jnp.int64)


_current: ContextVar[Checks | None] = ContextVar("galley_checks", default=None)


@contextlib.contextmanager
def collecting(checks: Checks | None) -> Iterator[None]:
    """Collect into `checks` inside the block; None switches checking off."""
    token = _current.set(checks)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Checks | None:
    """Return where checks are collected now, None if nowhere."""
    return _current.get()


def apart(function: Callable[..., Any], *args: Any) -> tuple[Any, list[Check], jax.Array]:
    """Return a function's results, what it asked for, and a table of the verdicts.

    For a part of a program that jax traces by itself: its verdicts must leave it as results.
    """
    checks = Checks()
    with collecting(checks if current() is not None else None):
        results = function(*args)
    return results, checks.entries, checks.table()


def ask(entries: Iterable[Check], table: jax.Array) -> None:
    """Ask for what was asked for apart, given the verdicts in a row each."""
    checks = current()
    if checks is not None:
        checks.entries += entries
        checks.verdicts += list(table)


def require(good: jax.Array, value: jax.Array, error: type[Exception], message: str) -> None:
    """Ask that `good` holds everywhere; otherwise the run raises `error`.

    Args:
        good: bool, any shape; True where all is well.
        value: integers of the same shape, what to show of the first offender.
        error: the exception class that eager raises.
        message: the sentence, "{value}" for the offending value. The operator is put before it.
    """
    checks = _current.get()
    if checks is None or good.size == 0:
        return
    bad = jnp.logical_not(good)
    # What is paid where all is well is `any`, which XLA:CPU runs some seven times faster than a
    # count and a search.
    verdict = lax.cond(jnp.any(bad), _offenders, lambda *_: jnp.zeros(2, jnp.int64), bad, value)
    checks.entries.append(Check(error, f"{checks.op}: {message}", checks.node))
    checks.verdicts.append(verdict)


def _offenders(bad: jax.Array, value: jax.Array) -> jax.Array:
    first = jnp.argmax(bad.ravel())
    shown = jnp.broadcast_to(value, bad.shape).ravel()[first].astype(jnp.int64)
    return jnp.stack([jnp.sum(bad, dtype=jnp.int64), shown])


def in_range(index: jax.Array, size: int, dim: int, negative: bool = True) -> jax.Array:
    """Return `index` with negative entries wrapped once, and require it within [-size, size).

    Example: an index of 9 into dimension 1 of size 5 raises
    "gather: index 9 is out of bounds for dimension 1 with size 5".

    Args:
        index: integers, any shape.
        size: of the dimension that is indexed.
        dim: the dimension's number, for the message.
        negative: False for an operator that takes no negative index (gather, scatter).
    """
    require(
        (index >= (-size if negative else 0)) & (index < size),
        index,
        OutOfRange,
        f"index {{value}} is out of bounds for dimension {dim} with size {size}",
    )
    return jnp.where(index < 0, index + size, index) if negative else index
