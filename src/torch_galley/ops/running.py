"""Which users' operators this thread is in the middle of running."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch._ops import OpOverload

from torch_galley.core.errors import RunError

DEEPEST = 16
"""Programs of XLA that a thread may be inside of. Each is in flight until its call returns, and a
client of XLA's has room for 32: the next one would wait for ever for those that wait for it."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.operators: list[OpOverload] = []
        self.programs = 0


_thread = _Thread()


def innermost() -> OpOverload | None:
    """Return the operator whose function this thread is running, the innermost one."""
    return _thread.operators[-1] if _thread.operators else None


@contextlib.contextmanager
def running(overload: OpOverload, *, by_xla: bool = False) -> Iterator[None]:
    """Note that a function of a user's stands for an operator meanwhile.

    Raises:
        RunError: XLA calls it from inside a program, in a call of a program, and so on.
    """
    if by_xla and _thread.programs >= DEEPEST:
        raise RunError(
            f"{overload} was called by XLA from a compiled function that its own calls run, "
            f"{DEEPEST} levels deep",
            hint="let what a custom call runs be eager, or end its recursion earlier",
        )
    _thread.programs += by_xla
    _thread.operators.append(overload)
    try:
        yield
    finally:
        _thread.operators.pop()
        _thread.programs -= by_xla
