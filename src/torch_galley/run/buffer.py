"""torch tensor <-> jax array, without a copy wherever the memory allows it.

A zero-copy array is a *view*: a later write by torch shows in it. That is right for parameters,
which must be seen as they are at each call, and safe for inputs because a call returns only when
its executables have finished reading (see run.execute). Source: DLPack.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from torch_galley.compile.engine import Engine
from torch_galley.lower.layout import Layout


def to_jax(tensor: torch.Tensor, layout: Layout | None, way: Engine) -> jax.Array:
    """Return a tensor's memory as a dense jax array; copies only gaps and misaligned memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor._is_zerotensor():  # it has no memory
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if layout is not None:
        tensor = layout.pack(tensor)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    elif 1 in tensor.shape:
        # A dimension of size 1 may have any stride, from which jaxlib would infer another layout.
        tensor = tensor.view(-1).view(tensor.shape)
    return way.bring(tensor)


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory is, 0 if it has none."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a wrapper's: it has no storage
        return 0


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor that stands for others, with no memory to hand over.

    Those are vmap's batched tensors, what else torch.func wraps, and subclasses that say by
    __torch_dispatch__ what an operator does to them.
    """
    if not isinstance(value, torch.Tensor):
        return False
    plain = getattr(torch.Tensor, "__torch_dispatch__", None)
    if getattr(type(value), "__torch_dispatch__", None) is not plain:
        return True
    return not address(value) and value.numel() > 0 and not value._is_zerotensor()


def has_tangent(value: Any) -> bool:
    """Whether a value is a dual tensor of forward-mode differentiation, of the present level."""
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None


def is_view_of(array: jax.Array, tensor: torch.Tensor) -> bool:
    """Whether an array shares a tensor's memory, rather than being a copy of it."""
    return array.unsafe_buffer_pointer() == tensor.data_ptr()
