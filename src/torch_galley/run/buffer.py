"""torch tensor <-> jax array, without a copy wherever the memory allows it.

A zero-copy array is a *view*: a later write by torch shows in it. That is right for parameters,
which must be seen as they are at each call, and safe for inputs because a call returns only when
its executables have finished reading (see run.execute). Source: DLPack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import torch
import torch.utils.dlpack
from torch.utils.dlpack import from_dlpack as torch_from_capsule

from torch_galley.core.spec import wide_types
from torch_galley.lower.layout import Layout


def to_jax(tensor: torch.Tensor, layout: Layout | None) -> jax.Array:
    """Return a tensor's memory as a dense jax array; copies only gaps and misaligned memory.

    Must be called inside `wide_types()`.
    """
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if layout is not None:
        tensor = layout.pack(tensor)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    elif 1 in tensor.shape:
        # A dimension of size 1 may have any stride, from which jaxlib would infer another layout.
        tensor = tensor.view(-1).view(tensor.shape)
    if tensor.device.type == "cpu":
        return _importer()(tensor)
    return jax.dlpack.from_dlpack(tensor)


def is_view_of(array: jax.Array, tensor: torch.Tensor) -> bool:
    """Whether an array shares a tensor's memory, rather than being a copy of it."""
    return array.unsafe_buffer_pointer() == tensor.data_ptr()


def to_torch(array: jax.Array, layout: Layout | None, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a result as a tensor of the recorded strides, waiting until it is there."""
    tensor = _exporter()(array)
    return layout.unpack(tensor, shape) if layout is not None else tensor


def _public_import(tensor: torch.Tensor) -> jax.Array:
    return jax.dlpack.from_dlpack(tensor)


def _public_export(array: jax.Array) -> torch.Tensor:
    return torch.from_dlpack(array)


def _low_level() -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]:
    """jaxlib's own entry points: a few microseconds a tensor instead of 20 (V11 in the design)."""
    from jaxlib import _jax  # type: ignore[attr-defined]  # private: guarded in _functions

    device = jax.devices("cpu")[0]
    move_in, move_out = _jax.dlpack_managed_tensor_to_buffer, _jax.buffer_to_dlpack_managed_tensor

    def bring(tensor: torch.Tensor) -> Any:
        capsule = torch.utils.dlpack.to_dlpack(tensor)  # pyright: ignore[reportPrivateImportUsage]
        return move_in(capsule, device, None, None)

    def take(array: Any) -> torch.Tensor:
        return torch_from_capsule(move_out(array, stream=None))

    return bring, take


@cache
def _functions() -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]:
    """The low-level pair if this jaxlib still has it and it gives what the public pair gives."""
    try:
        bring, take = _low_level()
        with wide_types():
            for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.complex128):
                probe = torch.ones(3, dtype=dtype)
                array = bring(probe)
                if array.dtype != _public_import(probe).dtype or not torch.equal(
                    take(array), probe
                ):
                    raise TypeError(f"{dtype} arrives differently")
    except Exception:  # any failure of a private function means: use the public one
        return _public_import, _public_export
    return bring, take


def _importer() -> Callable[[torch.Tensor], Any]:
    return _functions()[0]


def _exporter() -> Callable[[Any], torch.Tensor]:
    return _functions()[1]
