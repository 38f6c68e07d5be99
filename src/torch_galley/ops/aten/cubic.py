"""Keys's kernel of cubic interpolation, in its two pieces, of arrays of numpy's and of jax's.

Source: Keys, "Cubic convolution interpolation for digital image processing", 1981.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import numpy as np

Array = TypeVar("Array", np.ndarray, jax.Array)

INTERPOLATING = -0.75
"""The parameter a of torch's interpolation and of its grids."""
ANTIALIASING = -0.5
"""That of its filters."""


def inner(distance: Array, a: float) -> Array:
    """Return the weight of what is up to 1 away."""
    return ((a + 2) * distance - (a + 3)) * distance * distance + 1


def outer(distance: Array, a: float) -> Array:
    """Return the weight of what is from 1 to 2 away."""
    return a * (((distance - 5) * distance + 8) * distance - 4)
