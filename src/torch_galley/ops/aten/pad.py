"""Padding, and sliding windows of images (im2col and its inverse)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(self, pad, value=0):
    """`pad` lists (before, after) from the last dimension back; negative amounts cut."""
    config = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        config[-1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, jnp.asarray(value).astype(self.dtype), config)


def _reflect(array, before, after, axis):
    """Mirror at the edges, the edge element itself not repeated."""
    size = array.shape[axis]
    parts = []
    if before > 0:
        parts.append(lax.rev(lax.slice_in_dim(array, 1, before + 1, axis=axis), [axis]))
    parts.append(_middle(array, before, after, axis))
    if after > 0:
        inner = lax.slice_in_dim(array, size - 1 - after, size - 1, axis=axis)
        parts.append(lax.rev(inner, [axis]))
    return lax.concatenate(parts, axis)


def _replicate(array, before, after, axis):
    """Repeat the edge elements."""

    def repeated(start, count):
        edge = lax.slice_in_dim(array, start, start + 1, axis=axis)
        shape = (*array.shape[:axis], count, *array.shape[axis + 1 :])
        return jnp.broadcast_to(edge, shape)

    parts = [repeated(0, before)] if before > 0 else []
    parts.append(_middle(array, before, after, axis))
    if after > 0:
        parts.append(repeated(array.shape[axis] - 1, after))
    return lax.concatenate(parts, axis)


def _middle(array, before, after, axis):
    """Return the array itself, cut where an amount is negative."""
    return lax.slice_in_dim(array, max(0, -before), array.shape[axis] + min(0, after), axis=axis)


def _by_axis(pad_axis):
    def forward(self, padding):
        for i in range(len(padding) // 2):
            self = pad_axis(self, padding[2 * i], padding[2 * i + 1], self.ndim - 1 - i)
        return self

    return forward


def _transposed(forward):
    def backward(grad_output, self, padding):
        # A padding is linear in its input, so its gradient is its transpose.
        like = jax.ShapeDtypeStruct(self.shape, grad_output.dtype)
        (grad,) = jax.linear_transpose(lambda x: forward(x, padding), like)(grad_output)
        return grad

    return backward


_reflected, _replicated = _by_axis(_reflect), _by_axis(_replicate)

rows(
    (aten.reflection_pad1d.default, _reflected),
    (aten.reflection_pad2d.default, _reflected),
    (aten.reflection_pad3d.default, _reflected),
    (aten.reflection_pad1d_backward.default, _transposed(_reflected)),
    (aten.reflection_pad2d_backward.default, _transposed(_reflected)),
    (aten.reflection_pad3d_backward.default, _transposed(_reflected)),
    (aten.replication_pad1d.default, _replicated),
    (aten.replication_pad2d.default, _replicated),
    (aten.replication_pad3d.default, _replicated),
    (aten.replication_pad1d_backward.default, _transposed(_replicated)),
    (aten.replication_pad2d_backward.default, _transposed(_replicated)),
    (aten.replication_pad3d_backward.default, _transposed(_replicated)),
)


# A window's element (i, j) over the whole image is one strided slice, so windows are a stack of
# kernel-many slices, and putting them back is a sum of kernel-many paddings.


def _window_count(size, kernel, dilation, padding, stride):
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@lowers(aten.im2col.default)
def im2col(self, kernel_size, dilation, padding, stride):
    *batch, channels, height, width = self.shape
    down, across = (
        _window_count(n, k, d, p, s)
        for n, k, d, p, s in zip(
            (height, width), kernel_size, dilation, padding, stride, strict=True
        )
    )
    zero = jnp.zeros((), self.dtype)
    edges = [(0, 0, 0)] * (self.ndim - 2) + [(p, p, 0) for p in padding]
    image = lax.pad(self, zero, edges)
    slices = []
    for i in range(kernel_size[0]):
        top = i * dilation[0]
        row = lax.slice_in_dim(image, top, top + (down - 1) * stride[0] + 1, stride[0], -2)
        for j in range(kernel_size[1]):
            left = j * dilation[1]
            slices.append(
                lax.slice_in_dim(row, left, left + (across - 1) * stride[1] + 1, stride[1], -1)
            )
    stacked = jnp.stack(slices, axis=-3)  # batch, channels, kernel, down, across
    return jnp.reshape(stacked, (*batch, channels * len(slices), down * across))


@lowers(aten.col2im.default)
def col2im(self, output_size, kernel_size, dilation, padding, stride):
    down, across = (
        _window_count(n, k, d, p, s)
        for n, k, d, p, s in zip(output_size, kernel_size, dilation, padding, stride, strict=True)
    )
    *batch, rows, _ = self.shape
    count = kernel_size[0] * kernel_size[1]
    windows = jnp.reshape(self, (*batch, rows // count, count, down, across))
    zero = jnp.zeros((), self.dtype)
    total = jnp.zeros((*batch, rows // count, *output_size), self.dtype)
    for i in range(kernel_size[0]):
        for j in range(kernel_size[1]):
            part = windows[..., i * kernel_size[1] + j, :, :]
            edges = [(0, 0, 0)] * (part.ndim - 2)
            for axis, (at, made) in enumerate(((i, down), (j, across))):
                first = at * dilation[axis] - padding[axis]
                last = first + (made - 1) * stride[axis]
                edges.append((first, output_size[axis] - 1 - last, stride[axis] - 1))
            total += lax.pad(part, zero, edges)
    return total
