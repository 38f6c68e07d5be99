"""The lowerings, a module a family. Importing this package fills ops.registry."""

from torch_galley.ops.aten import elementwise

__all__ = ["elementwise"]
