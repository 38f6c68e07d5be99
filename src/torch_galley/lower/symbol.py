"""Shape symbols: torch.compile(dynamic=True) records sizes as expressions over a few symbols.

One capture serves all sizes; each concrete size gets an executable of its own. A plan binds the
symbols from its inputs at each call, and everything else is arithmetic on the bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.singleton_int import SingletonInt

from torch_galley.cluster.clustered import XlaCluster
from torch_galley.core.errors import RunError

Bindings = Mapping[sympy.Symbol, Any]
"""The value of each symbol known so far."""


def expression(number: Any) -> sympy.Basic | None:
    """Return the sympy expression of a symbolic number, None for a plain one."""
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        return number.node.expr
    return None


def symbols_of(number: Any) -> set[sympy.Symbol]:
    """Return the symbols that a number depends on."""
    expr = expression(number)
    return set() if expr is None else set(expr.free_symbols)  # type: ignore[arg-type]


def value_of(number: Any, bindings: Bindings) -> Any:
    """Return the concrete value of a symbolic number; other values come back as they are.

    Raises:
        RunError: a symbol that is not bound yet.
    """
    expr = expression(number)
    if expr is None:
        return number
    missing = [s for s in expr.free_symbols if s not in bindings]
    if missing:
        raise RunError(f"size {expr} depends on {missing[0]}, which no input gives")
    value = expr.xreplace({s: sympy.sympify(bindings[s]) for s in expr.free_symbols})  # type: ignore[index]
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)]
    return kind(value)


def mentions_symbols(recorded: Any) -> bool:
    """Whether a recorded value, or a size or stride of it, is symbolic."""
    return any(_symbols_of(recorded))


def _symbols_of(recorded: Any) -> Iterator[sympy.Symbol]:
    for number in _numbers(recorded):
        yield from symbols_of(number)


def _numbers(recorded: Any) -> Iterator[Any]:
    """Yield a recorded value's sizes and strides, or the number that it is."""
    if isinstance(recorded, tuple | list):
        for item in recorded:
            yield from _numbers(item)
    elif isinstance(recorded, torch.Tensor):
        yield from (*recorded.shape, *recorded.stride())
    else:
        yield recorded


def cluster_symbols(cluster: XlaCluster) -> set[sympy.Symbol]:
    """Return the shape symbols that lowering the cluster will read."""
    nodes = {source for node in cluster.nodes for source in [node, *node.all_input_nodes]}
    return {symbol for node in nodes for symbol in _symbols_of(node.meta.get("val"))}


def bind(recorded: Any, actual: Any, bindings: dict[sympy.Symbol, Any]) -> None:
    """Learn symbols from a value: a number, or a tensor's sizes and strides."""
    if isinstance(recorded, torch.Tensor):
        if isinstance(actual, torch.Tensor):
            for size, real in zip(recorded.shape, actual.shape, strict=True):
                bind(size, real, bindings)
            for stride, real in zip(recorded.stride(), actual.stride(), strict=True):
                bind(stride, real, bindings)
        return
    expr = expression(recorded)
    if isinstance(expr, sympy.Eq) and expr.rhs == 1:  # how torch records a bool read from data
        expr, actual = expr.lhs, int(actual)
    if isinstance(expr, sympy.Symbol):
        bindings.setdefault(expr, actual)


def first_seen(nodes: Iterable[fx.Node]) -> dict[sympy.Symbol, Any]:
    """Return what each symbol of the nodes' values stood for while the graph was captured.

    A symbol that depends on data stood for nothing, and one for the ragged size of a nested tensor
    for no number: they are left out.
    """
    seen: dict[sympy.Symbol, Any] = {}
    for node in nodes:
        for number in _numbers(node.meta.get("val")):
            expr = expression(number)
            known = number.node.shape_env.backed_var_to_val if expr is not None else {}
            for symbol in symbols_of(number):
                value = known.get(symbol)
                if value is not None and not isinstance(value, SingletonInt):
                    seen[symbol] = int(value) if value.is_integer else float(value)
    return seen
