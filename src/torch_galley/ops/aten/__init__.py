"""The lowerings, a module a family. Importing this package fills ops.registry."""

from torch_galley.ops.aten import (
    activation,
    cast,
    compare,
    create,
    elementwise,
    index,
    pad,
    reduce,
    scatter,
    shape,
    sort,
    special,
    strided,
)

__all__ = [
    "activation",
    "cast",
    "compare",
    "create",
    "elementwise",
    "index",
    "pad",
    "reduce",
    "scatter",
    "shape",
    "sort",
    "special",
    "strided",
]
