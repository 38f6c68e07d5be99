"""What the schemas and names of torch's operators say of them."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

_TORCHS = frozenset(
    {"aten", "prims", "prim", "inductor", "inductor_prims", "debugprims", "debug_mode_ops"}
    | {"rngprims", "profiler", "streams", "quantized", "quantization", "_quantized", "sparse"}
    | {"mkl", "mkldnn", "mkldnn_prepacked", "onednn", "static_runtime", "_native", "_dtensor"}
    | {"galley", "c10d", "symm_mem", "fsdp", "_c10d_functional", "_c10d_functional_autograd"}
)
"""Namespaces of operators that come with torch, and our own."""


def is_torchs(namespace: str) -> bool:
    """Whether operators of a namespace come with torch, or are our own; others are a user's."""
    return namespace in _TORCHS


def written_by(overload: OpOverload) -> tuple[str, ...]:
    """Return the names of the arguments that an operator writes.

    Example: of `aten.add_.Tensor` ("self",), of `aten.add.Tensor` none.
    """
    arguments = overload._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info and a.alias_info.is_write)


def overload_named(name: str) -> OpOverload | None:
    """Return the operator of a name of torch's dispatcher, None if Python has none such.

    Example: of "aten::add.Tensor" `torch.ops.aten.add.Tensor`, of "aten::relu" the default one.
    """
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    op = getattr(found, overload or "default", None)
    return op if isinstance(op, OpOverload) else None
