"""`torch_xla.experimental.scan`: a loop over rows, recorded turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from torch_galley.compat.finder import missing


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Any = None,
    is_fn_pure: bool = True,
) -> tuple[Any, Any]:
    """Return the last carry, and what `fn(carry, row)` gave besides, stacked.

    Example: `scan(lambda total, x: (total + x, total), torch.zeros(3), rows)`

    Args:
        fn: takes a carry and a row of each tensor in `xs`; returns the next carry and a result.
        init: the first carry.
        xs: tensors, however nested, of one first size.
        partition_fn: how torch_xla splits forward from backward; nothing to choose here.
        is_fn_pure: likewise.
    """
    carry, results, nested = init, [], None
    for i in range(len(tree_leaves(xs)[0])):
        carry, result = fn(carry, tree_map(lambda x, i=i: x[i], xs))
        leaves, nested = tree_flatten(result)
        results.append(leaves)
    if nested is None:
        raise ValueError("scan: there are no rows")
    return carry, tree_unflatten([torch.stack(rows) for rows in zip(*results, strict=True)], nested)


def __getattr__(name: str) -> Any:
    missing(__name__, name)
