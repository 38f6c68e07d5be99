"""One call of a function under torch.compile, its graphs kept and run natively.

Note [What watching does to a program]. The function is called once, so whatever a call does
happens: batch norms update their statistics, random numbers are drawn, prints print. Nothing else
does: the backward graphs are captured, but not run; XLA is not asked to run anything; what was
compiled with torch.compile before stays so, since our captures live in a region of their own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import graph_break_reasons
from torch._functorch import config as functorch_config

from torch_galley.capture.functional import capture
from torch_galley.capture.fx import Captured
from torch_galley.core.config import current
from torch_galley.core.errors import ToolError
from torch_galley.core.site import Site
from torch_galley.run.draw import without_xla


@dataclass(frozen=True)
class Break:
    """A place where Dynamo ended one graph and began another."""

    reason: str
    """Dynamo's text, several lines."""
    site: Site | None

    @property
    def headline(self) -> str:
        """The first line of the reason, with the explanation if Dynamo gives one."""
        lines = [line.strip() for line in self.reason.splitlines() if line.strip()]
        more = [x for x in lines if x.startswith("Explanation: ")]
        return more[0].removeprefix("Explanation: ") if more else lines[0] if lines else ""


@dataclass(frozen=True)
class Watched:
    """What one call was captured as."""

    name: str
    """Of the function or module."""
    graphs: tuple[Captured, ...]
    """In the order of the call; a backward graph follows its forward graph."""
    breaks: tuple[Break, ...]


def watch(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None,
) -> Watched:
    """Call `function` once and return the graphs that torch.compile would give us.

    Raises:
        ConfigError: an unknown option.
        ToolError: `function` can't be called.
    """
    if not callable(function):
        what = type(function).__name__
        raise ToolError(f"a {what} can't be explained", hint="give a function or an nn.Module")
    config = current(options)
    function = _plain(function)
    parts: list[list[Captured]] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        mine: list[Captured] = []
        parts.append(mine)

        def execute(captured: Captured) -> Callable[[list[Any]], Sequence[Any]]:
            mine.append(captured)

            def run(values: list[Any]) -> Sequence[Any]:
                with without_xla():
                    return captured.graph(*values)

            return run

        # Else the backward graph would be made only when a backward is run.
        with functorch_config.patch(force_non_lazy_backward_lowering=True):
            return capture(graph, inputs, config, execute)

    # Since torch 2.13: captures of ours don't count against the recompiles of the user's own.
    apart = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    region: dict[str, Any] = {"isolate_recompiles": True} if apart else {}
    compiled = torch.compile(function, backend=backend, **region)
    known = len(graph_break_reasons)
    with _quiet():
        compiled(*args, **kwargs)
    broken = graph_break_reasons[known:]
    graphs = [graph for mine in parts for graph in sorted(mine, key=_is_backward)]
    return Watched(_name(function), tuple(graphs), tuple(map(_break, broken)))


def _plain(function: Any) -> Any:
    """Return what torch.compile was given, for something that it returned."""
    function = getattr(function, "_orig_mod", function)
    return getattr(function, "_torchdynamo_orig_callable", function)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def _is_backward(captured: Captured) -> bool:
    return captured.role == "backward"


def _break(reason: Any) -> Break:
    if not reason.user_stack:
        return Break(reason.reason, None)
    frame = reason.user_stack[-1]
    name = frame.name.removeprefix("torch_dynamo_resume_in_").partition("_at_")[0]
    return Break(
        reason.reason, Site(frame.filename, frame.lineno or 0, name, code=frame.line or "")
    )


class _quiet:
    """Keep Dynamo from warning of graph breaks, which are in the answer."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("torch._dynamo.variables.tensor")
        self._before = self._logger.disabled
        self._logger.disabled = True

    def __exit__(self, *_: object) -> None:
        self._logger.disabled = self._before
