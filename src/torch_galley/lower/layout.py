"""How a strided torch tensor lies in memory, and the dense array that XLA sees of it.

XLA takes and gives dense row-major arrays. A transposed tensor *is* one, of its permuted shape;
an expanded tensor is one of size 1 along the expanded dimensions. So neither needs a copy: the
cluster is compiled for the dense array and permutes or broadcasts it inside, where XLA can fuse
that away. Only tensors with gaps (x[:, ::2]) or overlaps are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import torch


@dataclass(frozen=True)
class Layout:
    """A dense array and the way from it to the logical tensor and back.

    Example:
        >>> layout = Layout.of((2, 3), (1, 2))
        >>> layout.order, layout.expanded, layout.physical((2, 3))
        ((1, 0), (), (3, 2))
    """

    order: tuple[int, ...]
    """Logical dimensions, outermost in memory first."""
    expanded: tuple[int, ...]
    """Logical dimensions of stride 0 and size over 1: stored once, repeated on reading."""

    @staticmethod
    def of(sizes: Sequence[int], strides: Sequence[int]) -> Layout | None:
        """Return the layout of a strided tensor, None for dense row-major (or one with gaps)."""
        expanded = tuple(d for d, s in enumerate(strides) if s == 0 and sizes[d] > 1)
        # Dimensions of size 1 have no meaningful stride: keep them where they are.
        stored = [d for d in range(len(sizes)) if sizes[d] > 1 and d not in expanded]
        by_stride = iter(sorted(stored, key=lambda d: -strides[d]))
        order = tuple(next(by_stride) if d in stored else d for d in range(len(sizes)))
        step = 1
        for d in reversed(order):
            if d in stored:
                if strides[d] != step:
                    return None
                step *= sizes[d]
        if not expanded and order == tuple(range(len(sizes))):
            return None
        return Layout(order, expanded)

    def physical(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the dense array's shape for a logical one."""
        return tuple(1 if d in self.expanded else shape[d] for d in self.order)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the dense row-major view of a tensor that has this layout."""
        for d in self.expanded:
            tensor = tensor.narrow(d, 0, 1)
        return tensor.permute(self.order)

    def unpack(self, dense: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a dense tensor's memory as the logical tensor: the inverse of `pack`.

        To autograd it is no view, as eager's result is none: views that were made without gradients
        can't be written in place later.
        """
        with torch._C._AutoDispatchBelowADInplaceOrView():  # type: ignore[attr-defined]
            tensor = dense.permute(self._inverse)
            return tensor.expand(tuple(shape)) if self.expanded else tensor

    def to_logical(self, array: jax.Array, shape: Sequence[int]) -> jax.Array:
        """The same inside a cluster: dense array in, logical array out."""
        return jnp.broadcast_to(jnp.transpose(array, self._inverse), tuple(shape))

    def to_physical(self, array: jax.Array) -> jax.Array:
        """The inverse of `to_logical`."""
        for d in self.expanded:
            array = jax.lax.slice_in_dim(array, 0, 1, axis=d)
        return jnp.transpose(array, self.order)

    @property
    def _inverse(self) -> tuple[int, ...]:
        return tuple(self.order.index(d) for d in range(len(self.order)))
