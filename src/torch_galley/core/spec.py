"""What is known of a tensor before it exists, the dtype table, and the one 64-bit policy."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

XLA_DTYPE: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
"""torch dtypes that travel through DLPack both ways, and jax's names for them."""

PLATFORM = {"cpu": "cpu", "cuda": "cuda"}
"""jax's platform for a torch device type. The lazy device's programs are of CPU tensors."""

TORCH_DTYPE: dict[str, torch.dtype] = {name: dtype for dtype, name in XLA_DTYPE.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a dense tensor.

    Example:
        >>> str(TensorSpec((2, 3), torch.float32)), TensorSpec((2, 3), torch.float32).nbytes
        ('float32[2,3]', 24)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes when stored densely."""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.shape))}]"


def wide_types() -> contextlib.AbstractContextManager[None]:
    """Return a scope in which jax keeps 64-bit types.

    Every trace and every DLPack conversion of ours happens inside one. The process-wide setting
    is the user's: their own jax code must not notice us.
    """
    import jax  # here, so that importing torch_galley does not import jax

    return jax.enable_x64(True)
