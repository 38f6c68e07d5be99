"""Memory that is written and read, or written twice, by one operator: eager refuses most of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_galley.capture.lazy.region import extent


def internal(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor may share one place in memory."""
    if tensor.numel() == 0:
        return False
    reach = 1  # of the dimensions of smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += (size - 1) * stride
    return False


def partial(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor that is read shows some, but not just all, of the memory that is written."""
    by_memory = {target.untyped_storage()._cdata: target for target in written}
    for tensor in read:
        target = by_memory.get(tensor.untyped_storage()._cdata)
        if target is not None and target is not tensor and _partial(target, tensor):
            return True
    return False


def in_turn(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> bool:
    """Whether an operator on lists has to treat one tensor after the other, as eager does.

    Example: `_foreach_add_([a, b], [b, a])` adds to b what a is by then.

    Args:
        written: its first list.
        read: all its tensors: this list, others as long, and then those that go with each.
    """
    count = len(written)
    steps = {target.untyped_storage()._cdata: step for step, target in enumerate(written)}
    if len(steps) < count:
        return True
    lists = len(read) - len(read) % count
    for place, tensor in enumerate(read):
        step = steps.get(tensor.untyped_storage()._cdata)
        if step is not None and (place >= lists or step != place % count) and count > 1:
            return True
    return False


def whole(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors show the same memory in the same order."""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata and _alike(a, b)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = a.storage_offset() == b.storage_offset()
    return same and a.shape == b.shape and a.stride() == b.stride()


def _partial(a: torch.Tensor, b: torch.Tensor) -> bool:
    if _alike(a, b):
        return False
    (first, last), (start, end) = _span(a), _span(b)
    return first < end and start < last


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the bytes from and to which a tensor reaches."""
    start, size = int(tensor.storage_offset()), tensor.dtype.itemsize
    return start * size, extent(tuple(tensor.shape), tensor.stride(), start) * size
