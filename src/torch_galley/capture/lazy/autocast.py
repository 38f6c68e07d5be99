"""`torch.autocast("xla")`: which operators run in the low precision, and which in float32.

The lists are those that torch documents for accelerators. They are kept by name, for all of an
operator's overloads that write nothing. Source: torch.amp, "Autocast Op Reference".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

_LOWER = """
__matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc
conv_transpose1d conv_transpose2d conv_transpose3d convolution einsum gru_cell
linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell
scaled_dot_product_attention
"""

_SINGLE = """
acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist
erfinv exp expm1 group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10
log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
nll_loss nll_loss2d norm nuclear_norm pdist poisson_nll_loss pow reciprocal renorm rms_norm rsqrt
sinh smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss
"""

_SINGLE_BY_DTYPE = "cumprod cumsum log_softmax prod softmax softmin sum"
"""These take a dtype, and compute in float32 if none is asked for."""

_WIDEST = """
addcdiv addcmul atan2 bilinear cat cross dot grid_sample grid_sampler index_put scatter_add stack
tensordot vdot
"""

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def install() -> list[torch.library.Library]:
    """Make autocast know the device; return what must be kept alive."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    rules = [
        (_LOWER, _to_low_precision),
        (_SINGLE, _to_single),
        (_SINGLE_BY_DTYPE, _asking_for_single),
        (_WIDEST, _to_widest),
    ]
    for names, rule in rules:
        for op in _overloads(names):
            own.impl(op, functools.partial(rule, op), "AutocastPrivateUse1")
    return [everything, own]


def _overloads(names: str) -> list[OpOverload]:
    packets = [getattr(aten, name, None) for name in names.split()]
    return [
        getattr(packet, overload)
        for packet in packets
        if isinstance(packet, OpOverloadPacket)
        for overload in packet.overloads()
        if not any(a.alias_info for a in getattr(packet, overload)._schema.arguments)
        and "Dimname" not in str(getattr(packet, overload)._schema)
    ]


def _counts(arg: Any) -> bool:
    """Whether autocast may change an argument's type: doubles and integers stay as they are."""
    return (
        isinstance(arg, torch.Tensor)
        and arg.device.type == "xla"
        and arg.is_floating_point()
        and arg.dtype is not torch.float64
    )


def _call(op: OpOverload, cast: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        args, kwargs = tree_map(cast, (args, kwargs))
        return op(*args, **kwargs)


def _to(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda arg: arg.to(dtype) if _counts(arg) else arg


def _to_low_precision(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return _call(op, _to(torch.get_autocast_dtype("xla")), args, kwargs)


def _to_single(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return _call(op, _to(torch.float32), args, kwargs)


def _asking_for_single(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if "dtype" in names and _counts(given[names[0]]) and given.get("dtype") is None:
        given["dtype"] = torch.float32
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        return op(**given)


def _to_widest(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    dtypes = {arg.dtype for arg in tree_leaves((args, kwargs)) if _counts(arg)}
    if len(dtypes) < 2:
        return _call(op, lambda arg: arg, args, kwargs)
    return _call(op, _to(functools.reduce(torch.promote_types, dtypes)), args, kwargs)
