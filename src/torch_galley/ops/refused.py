"""Dtypes that eager's kernels refuse while torch's tracing takes them: they stay with eager, which
says so in its own words, instead of becoming numbers that no PyTorch gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_COMPLEX = frozenset({torch.complex64, torch.complex128})
_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool})
_BOOL = frozenset({torch.bool})

_REFUSED: dict[OpOverload, frozenset[torch.dtype]] = {
    aten.addcdiv.default: _WHOLE,
    aten.addcdiv_.default: _WHOLE,
    aten.argmax.default: _COMPLEX | _BOOL,
    aten.argmin.default: _COMPLEX | _BOOL,
    aten.heaviside.default: _COMPLEX,
    aten.histc.default: _COMPLEX | _WHOLE,
    aten.max.dim: _COMPLEX,
    aten.min.dim: _COMPLEX,
    aten.mvlgamma.default: _BOOL,
    aten.nansum.default: _COMPLEX,
    aten.relu.default: _BOOL,
    aten.relu_.default: _BOOL,
    aten.soft_margin_loss.default: _WHOLE,
    aten.sort.default: _COMPLEX,
    aten.sort.stable: _COMPLEX,
    aten.std.correction: _WHOLE,
    aten.topk.default: _COMPLEX | _BOOL,
    aten.var.correction: _WHOLE,
    aten.var_mean.correction: _WHOLE,
}
"""By the dtype of the first argument."""

_REFUSED_ANYWHERE: dict[OpOverload, frozenset[torch.dtype]] = {
    aten.dist.default: _BOOL,
    aten.rsub.Tensor: _BOOL,
    aten.sub.Tensor: _BOOL,
    aten.sub_.Tensor: _BOOL,
}
"""By the dtype of any argument."""

_ONE_DTYPE = frozenset(
    {
        aten._cdist_forward.default,
        aten.addbmm.default,
        aten.addmm.default,
        aten.addmv.default,
        aten.baddbmm.default,
        aten.bmm.default,
        aten.complex.default,
        aten.dot.default,
        aten.grid_sampler_2d.default,
        aten.grid_sampler_3d.default,
        aten.heaviside.default,
        aten.index_add.default,
        aten.index_copy.default,
        aten.index_put.default,
        aten.index_reduce.default,
        aten.linalg_cross.default,
        aten.mm.default,
        aten.mv.default,
        aten.polar.default,
        aten.put.default,
        aten.vdot.default,
    }
)
"""These take tensors of one dtype only, indices aside. (Norms and convolutions are not among
them: of some mixtures eager takes those.)"""
_INDICES = ("index", "indices")


def refused(op: OpOverload, args: Iterable[Any]) -> torch.dtype | None:
    """Return the dtype that eager refuses for an operator though tracing takes it, or None.

    Example:
        >>> refused(torch.ops.aten.sort.default, (torch.ones(2, dtype=torch.complex64),))
        torch.complex64
    """
    named = list(zip(op._schema.arguments, args, strict=False))
    tensors = [(one.name, arg) for one, arg in named if isinstance(arg, torch.Tensor)]
    dtypes = [arg.dtype for _, arg in tensors]
    if op in _ONE_DTYPE:
        own = [arg.dtype for name, arg in tensors if name not in _INDICES]
        return next((dtype for dtype in own if dtype != own[0]), None) or _first(op, dtypes)
    return _first(op, dtypes)


def _first(op: OpOverload, dtypes: list[torch.dtype]) -> torch.dtype | None:
    wrong = [dtype for dtype in dtypes[:1] if dtype in _REFUSED.get(op, ())]
    wrong += [dtype for dtype in dtypes if dtype in _REFUSED_ANYWHERE.get(op, ())]
    return wrong[0] if wrong else None
