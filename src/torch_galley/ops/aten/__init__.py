"""The lowerings, a module a family. Importing this package fills ops.registry."""

from torch_galley.ops.aten import (
    activation,
    cast,
    compare,
    elementwise,
    reduce,
    sort,
    special,
)

__all__ = [
    "activation",
    "cast",
    "compare",
    "elementwise",
    "reduce",
    "sort",
    "special",
]
