"""Arguments and values of graph nodes as plain data and back: numbers, dtypes, sizes, tensors.

Symbolic sizes are kept as expression trees, and read back by building the tree: no text is ever
evaluated. What isn't listed here can't be saved, and says so.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions as sizes
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from torch_galley.core.errors import ToolError
from torch_galley.core.store import Fields
from torch_galley.ops import draw  # noqa: F401  (defines operators that graphs name)

_SYMPY = ("Add", "Mul", "Pow", "And", "Or", "Not", "Equality", "Unequality", "StrictLessThan")
_SYMPY += ("LessThan", "StrictGreaterThan", "GreaterThan")
_TORCH = ("FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt")
_TORCH += ("FloorToInt", "CeilDiv", "Max", "Min", "PowByNatural", "FloatPow", "FloatTrueDiv")
_TORCH += ("IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "ToFloat", "Identity")
_HEADS: dict[str, Any] = {name: getattr(sympy, name) for name in _SYMPY}
_HEADS |= {name: getattr(sizes, name) for name in _TORCH if hasattr(sizes, name)}
"""What a symbolic size may be made of."""

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def encode_target(target: Any) -> str:
    """Return the name of what a node calls.

    Raises:
        ToolError: it is no operator and none of the plain functions that graphs are made of.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    name = getattr(target, "__name__", "")
    for prefix, module in (("operator", operator), ("math", math), ("torch", torch)):
        if _plain(prefix, name) and getattr(module, name, None) is target:
            return f"{prefix}:{name}"
    raise ToolError(f"a graph that calls {name or target} can't be saved", target=str(target))


def _plain(prefix: str, name: str) -> bool:
    return prefix != "torch" or name.startswith(("sym_", "_sym_"))


def decode_target(text: str) -> Any:
    """Return what a node calls, None for a name that says nothing here."""
    prefix, colon, name = text.partition(":")
    if colon:
        module = {"operator": operator, "math": math, "torch": torch}.get(prefix)
        return getattr(module, name, None) if _plain(prefix, name) else None
    found: Any = torch.ops
    try:
        for part in text.split("."):
            found = getattr(found, part)
    except AttributeError:
        return None
    return found if isinstance(found, OpOverload | HigherOrderOperator) else None


def encode(arg: Any) -> Any:
    """Return a node's argument as plain data.

    Raises:
        ToolError: it is of a kind that can't be saved.
    """
    if arg is None or isinstance(arg, bool | str) or type(arg) is int:
        return arg
    if isinstance(arg, float):
        return arg if math.isfinite(arg) else {"float": str(arg)}
    if isinstance(arg, fx.Node):
        return {"node": arg.name}
    if isinstance(arg, list):  # fx's immutable lists too
        return [encode(item) for item in arg]
    if isinstance(arg, tuple):
        return {"tuple": [encode(item) for item in arg]}
    if isinstance(arg, dict):
        return {"dict": {str(key): encode(item) for key, item in arg.items()}}
    if isinstance(arg, complex):
        return {"complex": [str(arg.real), str(arg.imag)]}
    if isinstance(arg, slice):
        return {"slice": [encode(part) for part in (arg.start, arg.stop, arg.step)]}
    if isinstance(arg, torch.device):
        return {"device": str(arg)}
    for name, kind in _NAMED.items():
        if isinstance(arg, kind):
            return {name: str(arg).removeprefix("torch.")}
    if isinstance(arg, _SYMBOLIC):
        return {type(arg).__name__: encode_size(arg)}
    raise ToolError(f"a {type(arg).__name__} as an argument can't be saved", value=repr(arg))


def encode_value(val: Any) -> Any:
    """Return a node's fake value as plain data."""
    if isinstance(val, torch.Tensor):
        if val.layout is not torch.strided:
            return {"other": kind_of(val)}
        return {
            "tensor": [encode_size(size) for size in val.shape],
            "strides": [encode_size(stride) for stride in val.stride()],
            "offset": encode_size(val.storage_offset()),
            "dtype": str(val.dtype).removeprefix("torch."),
            "device": str(val.device),
        }
    if isinstance(val, tuple | list):
        kind = "list" if isinstance(val, list) else "tuple"
        return {kind: [encode_value(item) for item in val]}
    try:
        return {"number": encode(val)}
    except ToolError:
        return {"other": kind_of(val)}


def kind_of(val: Any) -> str:
    """Return what kind of value a fake one stands for.

    Example:
        >>> kind_of((torch.ones(2, 3), None))
        '(float32[2,3], none)'
    """
    if isinstance(val, torch.Tensor):
        return f"{str(val.dtype).removeprefix('torch.')}[{','.join(str(s) for s in val.shape)}]"
    if isinstance(val, tuple | list):
        return "(" + ", ".join(map(kind_of, val)) + ")"
    if isinstance(val, Opaque):
        return val.what
    return "none" if val is None else type(val).__name__


def encode_size(size: Any) -> Any:
    """Return a number, or the tree of a symbolic one."""
    return _encode_tree(size.node.expr) if isinstance(size, _SYMBOLIC) else size


def _encode_tree(expr: Any) -> Any:
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        return expr.name
    if isinstance(expr, sympy.Rational):
        return ["Rational", int(expr.p), int(expr.q)]
    if isinstance(expr, sympy.Float):
        return ["Float", repr(float(expr))]
    if type(expr).__name__ in _HEADS:
        return [type(expr).__name__, *map(_encode_tree, expr.args)]
    raise ToolError(f"the size {expr} can't be saved", head=type(expr).__name__)


def encode_symbols(graph: fx.Graph) -> dict[str, Any]:
    """Return each shape symbol of a graph's values: what it was first, and its signs."""
    found: dict[str, Any] = {}
    for number in _numbers(graph):
        if not isinstance(number, _SYMBOLIC):
            continue
        env = number.node.shape_env
        for symbol in number.node.expr.free_symbols:
            hint = env.backed_var_to_val.get(symbol)
            hint = None if hint is None else (int(hint) if hint.is_integer else float(hint))
            found[symbol.name] = {
                "hint": hint,
                "integer": bool(symbol.is_integer),
                "positive": symbol.is_positive,
                "nonnegative": symbol.is_nonnegative,
            }
    return dict(sorted(found.items()))


def _numbers(graph: fx.Graph) -> list[Any]:
    out: list[Any] = []

    def visit(val: Any) -> None:
        if isinstance(val, torch.Tensor):
            out.extend(val.shape)
            if val.layout is torch.strided:
                out.extend([*val.stride(), val.storage_offset()])
        elif isinstance(val, tuple | list):
            for item in val:
                visit(item)
        else:
            out.append(val)

    for node in graph.nodes:
        visit(node.meta.get("val"))
        visit(node.args)
    return out


@dataclass
class Decoder:
    """Makes arguments and fake values from plain data; one for a whole graph."""

    symbols: Mapping[str, Any]
    """As `encode_symbols` gave them."""
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    """Nodes made so far, by name."""

    @cached_property
    def mode(self) -> FakeTensorMode:
        """The mode in which all values are fake, its environment knowing the symbols."""
        env = ShapeEnv()
        for symbol, hint in self._symbols.values():
            if hint is not None:
                env.backed_var_to_val[symbol] = sympy.sympify(hint)
            if symbol.is_integer:
                low = 2 if symbol.is_positive else 0 if symbol.is_nonnegative else -int_oo
                env.var_to_range[symbol] = ValueRanges(low, int_oo)
        return FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)

    @cached_property
    def _symbols(self) -> dict[str, tuple[sympy.Symbol, Any]]:
        made = {}
        for name, facts in self.symbols.items():
            signs = {k: facts.get(k) for k in ("integer", "positive", "nonnegative")}
            signs = {k: True for k, v in signs.items() if v is True}
            made[name] = (sympy.Symbol(name, **signs), facts.get("hint"))
        return made

    def argument(self, data: Any, place: Callable[[str], ToolError]) -> Any:
        """Return the argument for what `encode` gave.

        Raises:
            ToolError: data that `encode` does not give, made by `place` of the problem.
        """
        if isinstance(data, list):
            return [self.argument(item, place) for item in data]
        if not isinstance(data, dict):
            return data
        if len(data) != 1:
            raise place(f"is {data!r}, which is no argument")
        ((kind, inner),) = data.items()
        try:
            return self._tagged(kind, inner, place)
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise place(f"has {kind}={inner!r}: {error}") from error

    def _tagged(self, kind: str, inner: Any, place: Callable[[str], ToolError]) -> Any:
        match kind:
            case "node":
                if inner not in self.nodes:
                    raise place(f"uses node {inner!r}, which does not come before it")
                return self.nodes[inner]
            case "tuple":
                return tuple(self.argument(item, place) for item in inner)
            case "dict":
                return {key: self.argument(item, place) for key, item in inner.items()}
            case "slice":
                return slice(*(self.argument(part, place) for part in inner))
            case "float":
                return float(inner)
            case "complex":
                return complex(float(inner[0]), float(inner[1]))
            case "device":
                return torch.device(inner)
            case "dtype" | "layout" | "memory_format":
                found = getattr(torch, inner)
                if isinstance(found, _NAMED[kind]):
                    return found
            case "SymInt" | "SymFloat" | "SymBool":
                return self.size(inner, kind)
        raise place(f"has {kind}={inner!r}, which is no argument")

    def size(self, data: Any, kind: str = "SymInt") -> Any:
        """Return a number, or the symbolic one of a tree."""
        if isinstance(data, int):
            return data
        expr, env = self._tree(data), self.mode.shape_env
        assert env is not None
        if kind == "SymBool":
            return env.create_symboolnode(expr)
        make = env.create_symfloatnode if kind == "SymFloat" else env.create_symintnode
        return make(expr, hint=None)

    def _tree(self, data: Any) -> Any:
        if isinstance(data, int):
            return sympy.Integer(data)
        if isinstance(data, str):
            return self._symbols[data][0]
        head, *rest = data
        if head == "Rational":
            return sympy.Rational(*rest)
        if head == "Float":
            return sympy.Float(float(rest[0]))
        return _HEADS[head](*map(self._tree, rest))

    def value(self, fields: Fields, name: str) -> Any:
        """Return the fake value for what `encode_value` gave.

        Raises:
            ToolError: data that `encode_value` does not give.
        """
        try:
            return self._value(fields.get(name, dict), lambda text: fields.wrong(name, text))
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise fields.wrong(name, f"is no value: {error}") from error

    def _value(self, data: Any, place: Callable[[str], ToolError]) -> Any:
        if "tensor" in data:
            return self._tensor(data)
        if "tuple" in data:
            return tuple(self._value(item, place) for item in data["tuple"])
        if "list" in data:
            return [self._value(item, place) for item in data["list"]]
        if "number" in data:
            return self.argument(data["number"], place)
        return Opaque(str(data["other"]))

    def _tensor(self, data: Any) -> torch.Tensor:
        shape, strides = ([self.size(x) for x in data[key]] for key in ("tensor", "strides"))
        dtype, offset = getattr(torch, data["dtype"]), self.size(data["offset"])
        with self.mode:
            made = torch.empty_strided(shape, strides, dtype=dtype, device=data["device"])
            if type(offset) is int and offset == 0:
                return made
            span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
            store = torch.empty_strided((offset + span,), (1,), dtype=dtype, device=made.device)
            return torch.as_strided(store, shape, strides, offset)


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that is no dense tensor: only what it was is kept."""

    what: str
