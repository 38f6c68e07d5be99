"""The end of a step: running what was recorded, and what was put off until then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch_galley
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import Event, Flushed, GraphBuilt, listen

_closures: list[Callable[[], Any]] = []


def mark_step() -> None:
    """Run what was recorded, then the closures that waited for it, in their order."""
    torch_galley.sync()
    waiting = list(_closures)
    _closures.clear()
    for closure in waiting:
        closure()


def add_closure(closure: Callable[..., Any], args: Sequence[Any] = ()) -> None:
    """Call `closure(*args)` at the end of the step, when the values of tensors are at hand.

    Example: `add_closure(lambda loss: print(loss.item()), (loss,))`
    """
    _closures.append(lambda: closure(*args))


def one_graph(
    name: str, whole: bool, limit: int | None
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context manager whose block is recorded apart from what is around it.

    Args:
        name: what to call it in an error.
        whole: whether a read in the block, which would cut the graph, is an error.
        limit: how many different graphs all its uses may become; None for any number.

    Raises:
        CaptureError: there was a read under `whole`, or there are more graphs than `limit`.
    """
    graphs = 0

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        nonlocal graphs
        mark_step()
        seen: list[Event] = []
        stop = listen(seen.append)
        try:
            yield
            reads = [event for event in seen if isinstance(event, Flushed)]
            if whole and reads:
                raise CaptureError(
                    f"{name} is more than one graph: a value was needed ({reads[0].cause})",
                    site=reads[0].site,
                    hint="move the read out of it, or leave full_graph out",
                )
            mark_step()
        finally:
            stop()
        graphs += sum(isinstance(event, GraphBuilt) for event in seen)
        if limit is not None and graphs > limit:
            raise CaptureError(
                f"{name} became {graphs} different graphs, {limit} allowed",
                hint="keep shapes and Python values the same, or allow more",
            )

    return block
