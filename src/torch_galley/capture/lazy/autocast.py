"""`torch.autocast("xla")`: what `torch.autocast("cpu")` does, on tensors of the device.

Which operators run in the low precision, and which in float32, is torch's to say: each operator
that has a kernel for autocast on the CPU is asked, at its first call, what that casts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_galley.ops.schema import overload_named

aten = torch.ops.aten

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
_ON_CPU = "AutocastCPU"


class Rule(Enum):
    """What autocast does with an operator's tensors."""

    LOWER = auto()
    """Casts them to the low precision."""
    SINGLE = auto()
    """Casts them to float32."""
    WIDEST = auto()
    """Casts them to the widest of their types."""
    NONE = auto()


def install() -> list[torch.library.Library]:
    """Make autocast know the device; return what must be kept alive."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(_ON_CPU):
        op = overload_named(name)
        if op is not None and op.namespace == "aten" and "Dimname" not in str(op._schema):
            own.impl(op, functools.partial(_call, op), "AutocastPrivateUse1")
    return [everything, own]


def _call(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    rule = rule_of(op)
    if rule is Rule.LOWER:
        args, kwargs = _cast(torch.get_autocast_dtype("xla"), args, kwargs)
    elif rule is Rule.SINGLE:
        args, kwargs = _cast(torch.float32, args, kwargs)
    elif rule is Rule.WIDEST:
        dtypes = {arg.dtype for arg in tree_leaves((args, kwargs)) if _counts(arg)}
        if len(dtypes) > 1:
            args, kwargs = _cast(functools.reduce(torch.promote_types, dtypes), args, kwargs)
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        return op(*args, **kwargs)


def _counts(arg: Any) -> bool:
    """Whether autocast may change an argument's type: doubles and integers stay as they are."""
    return (
        isinstance(arg, torch.Tensor)
        and arg.device.type == "xla"
        and arg.is_floating_point()
        and arg.dtype is not torch.float64
    )


def _cast(dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    return tree_map(lambda arg: arg.to(dtype) if _counts(arg) else arg, (args, kwargs))


@functools.cache
def rule_of(op: OpOverload) -> Rule:
    """Return what autocast does with an operator on the CPU.

    Example: `rule_of(aten.mm.default)` is Rule.LOWER, `rule_of(aten.cat.default)` Rule.WIDEST.
    """
    low, single = torch.bfloat16, torch.float32
    if _casts(op, single, single) == {low}:
        return Rule.LOWER
    if _casts(op, low, low) == {single}:
        return Rule.SINGLE
    return Rule.WIDEST if _casts(op, low, single) == {single} else Rule.NONE


class _Reached(Exception):
    """The operator itself was reached, behind autocast's casts."""


class _Watch(TorchDispatchMode):
    """Notes casts, and ends the call at whatever else is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not aten._to_copy.default:
            raise _Reached
        if kwargs["dtype"].is_floating_point:  # complex is the operator's own wish
            self.dtypes.add(kwargs["dtype"])
        return func(*args, **kwargs)


def _casts(op: OpOverload, first: torch.dtype, others: torch.dtype) -> set[torch.dtype]:
    """Return to which types autocast on the CPU casts tensors of given types."""
    dtypes = iter([first])

    def tensor() -> torch.Tensor:
        return torch.empty(1, dtype=next(dtypes, others), device="cpu")

    def made(argument: Any) -> Any:
        kind = str(argument.type)
        return _STAND_INS[kind](tensor) if kind in _STAND_INS else argument.default_value

    given = {a.name: made(a) for a in op._schema.arguments}
    watch = _Watch()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        try:
            with watch:
                op(**given)
        except Exception:
            pass  # _Reached, or whatever the operator thinks of such arguments
    return watch.dtypes


_STAND_INS: dict[str, Callable[[Callable[[], torch.Tensor]], Any]] = {
    "Tensor": lambda tensor: tensor(),
    "List[Tensor]": lambda tensor: [tensor(), tensor()],
    "int": lambda tensor: 1,
    "SymInt": lambda tensor: 1,
    "float": lambda tensor: 1.0,
    "number": lambda tensor: 1,
    "bool": lambda tensor: False,
    "str": lambda tensor: "fro",
    "List[int]": lambda tensor: [1],
    "List[bool]": lambda tensor: [True],
}
"""An argument of each type that has to be given."""
