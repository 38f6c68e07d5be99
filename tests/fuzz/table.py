"""Lines that call an operator of our own table, with arguments that its schema allows."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch._ops import OpOverload

from tests.fuzz.compute import LEFT_OUT
from tests.fuzz.draw import Draw, Unable
from torch_galley.ops import registry

_WORDS = {
    "reduction": "012",
    "approximate": ["'none'", "'tanh'"],
    "rounding_mode": ["None", "'floor'", "'trunc'"],
    "reduce": ["'sum'", "'amax'", "'prod'"],
    "mode": ["'reflect'", "'constant'"],
}
_OUTSIDE = (*LEFT_OUT, "linalg", "fft", "rnn", "lstm", "gru", "svd", "qr", "cholesky", "lu_", "eig")
_OUTSIDE += ("unsafe", "aten::_", "topk", "kthvalue", "median", "::mode")
"""Operators with a sign or an order of their own, those that random arguments never fit, private
ones, which check nothing, and those that leave open which of equal elements is meant."""
_PLACES = ("layout", "device", "pin_memory", "memory_format")


@cache
def _overloads() -> tuple[OpOverload, ...]:
    found = [
        one
        for one in registry.table()
        if one.namespace == "aten"
        and not any(word in one._schema.name for word in _OUTSIDE)
        and "backward" not in one._schema.name
    ]
    return tuple(sorted(found, key=str))


def from_table(d: Draw) -> str:
    """Return a call of an operator that we lower."""
    overload = d.one(_overloads())
    texts, first = [], ""
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value() and argument.name != "device" and d.chance(0.6):
            if not argument.kwarg_only and kind not in ("Optional[Generator]",):
                texts.append(repr(argument.default_value))
            continue
        text = _argument(d, argument.name, kind, first)
        if not first and kind == "Tensor":
            first = text
        texts.append(f"{argument.name}={text}" if argument.kwarg_only else text)
    space, name = str(overload).split(".", 1)
    several = sum("Tensor" in str(one.type) for one in overload._schema.returns)
    if not several:
        raise Unable
    call = f"torch.ops.{space}.{name}({', '.join(texts)})"
    listed = several > 1 or "List" in str(overload._schema.returns[0].type)
    return f"{call}[{d.rng.randrange(several)}]" if listed else call


def _argument(d: Draw, name: str, kind: str, first: str) -> str:
    if name.endswith("dtype"):  # for a schema it is an int
        return d.dtype()
    if name in _PLACES:
        return "device" if name == "device" else "None"
    if kind == "Tensor" or (kind == "Optional[Tensor]" and d.flag()):
        if name in ("index", "indices") and first:
            return d.grid(d.size(first, 0), [2] * d[first].ndim)
        return d.partner(first) if first and d.chance(0.7) else d.tensor()
    if kind == "List[Tensor]":
        return f"[{', '.join(d.tensor() for _ in range(d.rng.randint(1, 3)))}]"
    if kind == "number" or (kind == "Optional[number]" and d.flag()):
        return d.number(d[first] if first else None)
    plain: dict[str, Any] = {
        "float": lambda: d.one(["0.5", "1.0", "2.0", "1e-5", "-0.5"]),
        "bool": lambda: str(d.flag()),
        "int": lambda: _whole(d, name, first),
        "List[int]": lambda: str(list(d.dims(first))) if first and d.flag() else str(_few(d)),
        "str": lambda: d.one(_WORDS.get(name, ["'none'"])),
    }
    if kind in plain:
        return plain[kind]()
    inner = kind.removeprefix("Optional[").removesuffix("]")
    if kind.startswith("Optional[") and inner in plain and d.chance(0.7):
        return plain[inner]()
    if kind == "Optional[List[int]]" and d.chance(0.7):
        return plain["List[int]"]()
    return "None"


def _whole(d: Draw, name: str, first: str) -> str:
    if name in _WORDS:
        return d.one(_WORDS[name])
    if "dim" in name and first:
        return str(d.dim(first))
    return str(d.rng.randint(-2, 3))


def _few(d: Draw) -> list[int]:
    return [d.rng.randint(0, 3) for _ in range(d.rng.randint(1, 3))]
