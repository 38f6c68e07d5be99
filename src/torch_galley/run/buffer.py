"""torch tensor <-> jax array, without a copy wherever the memory allows it.

A zero-copy array is a *view*: a later write by torch shows in it. That is right for parameters,
which must be seen as they are at each call, and safe for inputs because a call returns only when
its executables have finished reading (see run.execute). Source: DLPack.
"""

from __future__ import annotations

import jax
import torch

from torch_galley.compile.engine import Engine
from torch_galley.lower.layout import Layout


def to_jax(tensor: torch.Tensor, layout: Layout | None, way: Engine) -> jax.Array:
    """Return a tensor's memory as a dense jax array; copies only gaps and misaligned memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    if layout is not None:
        tensor = layout.pack(tensor)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    elif 1 in tensor.shape:
        # A dimension of size 1 may have any stride, from which jaxlib would infer another layout.
        tensor = tensor.view(-1).view(tensor.shape)
    return way.bring(tensor)


def is_view_of(array: jax.Array, tensor: torch.Tensor) -> bool:
    """Whether an array shares a tensor's memory, rather than being a copy of it."""
    return array.unsafe_buffer_pointer() == tensor.data_ptr()
