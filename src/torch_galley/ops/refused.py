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
    aten.rsub.Tensor: _BOOL,
    aten.sub.Tensor: _BOOL,
    aten.sub_.Tensor: _BOOL,
}
"""By the dtype of any argument."""


def refused(op: OpOverload, args: Iterable[Any]) -> torch.dtype | None:
    """Return the dtype that eager refuses for an operator though tracing takes it, or None.

    Example:
        >>> refused(torch.ops.aten.sort.default, (torch.ones(2, dtype=torch.complex64),))
        torch.complex64
    """
    dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
    wrong = [dtype for dtype in dtypes[:1] if dtype in _REFUSED.get(op, ())]
    wrong += [dtype for dtype in dtypes if dtype in _REFUSED_ANYWHERE.get(op, ())]
    return wrong[0] if wrong else None
