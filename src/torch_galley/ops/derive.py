"""The functional form of in-place and out= operators, found in torch's schemas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torch_galley.ops.schema import is_torchs, written_by

_FACTORY = ("dtype", "layout", "device", "pin_memory")


@dataclass(frozen=True)
class Derived:
    """How to compute what a writing operator writes."""

    functional: OpOverload
    """Takes the same arguments, less the out ones; returns what is to be written, in order."""
    outs: tuple[str, ...]
    """Names of the out arguments, which the functional form does not take."""
    written: tuple[str, ...]
    """Names of the written arguments, in the order of the functional form's results."""
    factory: bool
    """Whether the functional form takes a dtype and a device that the out form has from `out`."""


@cache
def derive(overload: OpOverload) -> Derived | None:
    """Return the functional form of an operator that writes its arguments, or None.

    Only torch's own names promise that `add_` writes what `add` returns.

    Example: `derive(aten.add_.Tensor).functional` is `aten.add.Tensor`, and
    `derive(aten.arange.start_out).functional` is `aten.arange.start_step`.
    """
    arguments = overload._schema.arguments
    written = written_by(overload)
    is_out = bool(written) and all(a.kwarg_only for a in arguments if a.name in written)
    if not written or not is_torchs(overload.namespace):
        return None
    packets: list[OpOverloadPacket | None] = [overload.overloadpacket]
    if not is_out:
        namespace, name = overload._schema.name.split("::")
        if not name.endswith("_"):
            return None
        own = getattr(torch.ops, namespace)
        packets = [getattr(own, other, None) for other in (name[:-1], f"{name}functional")]
    wanted = [(a.name, str(a.type)) for a in arguments if not (is_out and a.name in written)]
    outs = written if is_out else ()
    candidates = [getattr(p, name) for p in packets if p is not None for name in p.overloads()]
    candidates = [c for c in candidates if _functional_results(c)]
    for factory in (False, True):
        for candidate in candidates:
            given = [
                (a.name, str(a.type))
                for a in candidate._schema.arguments
                if not (factory and a.name in _FACTORY)
            ]
            if given == wanted:
                return Derived(candidate, outs, written, factory)
    return None


def _functional_results(overload: OpOverload) -> bool:
    """Whether the overload writes nothing and returns no views."""
    schema = overload._schema
    return not any(a.alias_info for a in schema.arguments) and not any(
        r.alias_info for r in schema.returns
    )
