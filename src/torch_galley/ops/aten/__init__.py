"""The lowerings, a module a family. Importing this package fills ops.registry."""

from torch_galley.ops.aten import (
    adaptive_pool,
    attention,
    conv,
    elementwise,
    embedding,
    fft,
    loss,
    matmul,
    norm,
    pool,
)

__all__ = [
    "adaptive_pool",
    "attention",
    "conv",
    "elementwise",
    "embedding",
    "fft",
    "loss",
    "matmul",
    "norm",
    "pool",
]
