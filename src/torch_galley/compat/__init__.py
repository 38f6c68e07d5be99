"""torch_xla's names over the public API: `galley run`, or `install()` in a program of your own.

`path/` holds a package torch_xla, which `install()` puts where `import` finds it.
"""

from torch_galley.compat.finder import install

__all__ = ["install"]
