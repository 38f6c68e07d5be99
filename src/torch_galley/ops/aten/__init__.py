"""The lowerings, a module a family. Importing this package fills ops.registry."""

from torch_galley.ops.aten import create, elementwise, index, pad, scatter, shape, strided

__all__ = ["create", "elementwise", "index", "pad", "scatter", "shape", "strided"]
