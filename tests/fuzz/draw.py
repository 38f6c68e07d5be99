"""What the makers of lines draw from: the tensors so far, and random arguments for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

REAL = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*REAL, *WHOLE, "bool", "complex64")
WEIGHTS = (10, 3, 2, 2, 4, 2, 1, 1, 2, 2, 1)
"""How often each of DTYPES is drawn."""


class Unable(Exception):
    """There is no tensor of the kind that a maker wants."""


class Draw:
    """Random choices among the tensors of a program that is being made.

    Args:
        rng: where all choices come from.
        values: the tensors so far, as eager has them, by name.
    """

    def __init__(self, rng: random.Random, values: dict[str, torch.Tensor]) -> None:
        self.rng, self.values = rng, values

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.values[name]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def one(self, items: Sequence[Any]) -> Any:
        return self.rng.choice(items)

    def tensor(self, where: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """Return the name of a tensor, late ones more often."""
        names = [name for name, value in self.values.items() if where(value)]
        if not names:
            raise Unable
        return self.rng.choices(names, range(1, len(names) + 1))[0]

    def real(self, least: int = 0, most: int = 9) -> str:
        return self.tensor(lambda t: t.is_floating_point() and least <= t.ndim <= most)

    def ranked(self, least: int, most: int = 9) -> str:
        return self.tensor(lambda t: least <= t.ndim <= most)

    def partner(self, name: str) -> str:
        """Return a tensor that broadcasts with another one."""
        shape = self[name].shape

        def fits(other: torch.Tensor) -> bool:
            try:
                torch.broadcast_shapes(shape, other.shape)
            except RuntimeError:
                return False
            return True

        return self.tensor(fits)

    def filling(self, name: str) -> str:
        """Return what can be written into all of a tensor: a tensor or a number."""
        shape = self[name].shape
        try:
            if self.chance(0.3):
                raise Unable
            return self.tensor(lambda t: _broadcasts(t.shape, shape))
        except Unable:
            return self.number(self[name])

    def number(self, like: torch.Tensor | None = None) -> str:
        """Return a number, mostly one of a tensor's kind."""
        kind = self.rng.random()
        if kind < 0.08:
            return self.one(["True", "False"])
        whole = like is not None and not (like.is_floating_point() or like.is_complex())
        if kind < 0.5 or (whole and kind < 0.9):
            return str(self.one([0, 1, 2, 3, 5, -1, -2, -3, 7]))
        return str(self.one([0.5, 1.5, -0.5, 2.0, -1.25, 0.1, 3.7, -2.3, 1e-3]))

    def dim(self, name: str) -> int:
        ndim = max(self[name].ndim, 1)
        return self.rng.randrange(-ndim, ndim)

    def dims(self, name: str) -> tuple[int, ...]:
        """Return some dimensions of a tensor, each once, from either end."""
        ndim = self[name].ndim
        chosen = self.rng.sample(range(ndim), self.rng.randint(0, ndim))
        return tuple(d - ndim if self.chance(0.4) else d for d in chosen)

    def size(self, name: str, dim: int) -> int:
        """Return a tensor's size in a dimension; raise Unable if it is 0."""
        size = self[name].shape[dim] if self[name].ndim else 1
        if not size:
            raise Unable
        return size

    def dtype(self) -> str:
        return f"torch.{self.rng.choices(DTYPES, WEIGHTS)[0]}"

    def flag(self) -> bool:
        return self.chance(0.5)

    def shape(self, most: int = 4) -> tuple[int, ...]:
        sizes = self.rng.choices([1, 2, 3, 4, 5, 0], [3, 4, 5, 3, 2, 0.5], k=most)
        return tuple(sizes[: self.rng.choices(range(most + 1), [2, 4, 6, 4, 1][: most + 1])[0]])

    def split(self, numel: int) -> tuple[int, ...]:
        """Return a shape with so many elements, perhaps with one size left to be found."""
        sizes = []
        rest = numel
        while rest > 1 and len(sizes) < 4:
            factor = self.one([f for f in range(1, rest + 1) if rest % f == 0])
            sizes.append(factor)
            rest //= factor
        sizes.append(rest)
        if numel and self.chance(0.5):
            sizes[self.rng.randrange(len(sizes))] = -1
        return tuple(sizes)

    def places(self, size: int, count: int | None = None) -> str:
        """Return a tensor of indices below a size, as text."""
        count = self.rng.randint(0 if self.chance(0.1) else 1, 4) if count is None else count
        low = -size if self.chance(0.3) else 0
        found = [self.rng.randrange(low, size) for _ in range(count)] if size else []
        return f"torch.tensor({found}, dtype=torch.int64, device=device)"

    def grid(self, size: int, shape: Sequence[int]) -> str:
        """Return a tensor of indices from 0 to below a size, of a shape, as text."""
        count = 1
        for one in shape:
            count *= one
        found = [self.rng.randrange(size) for _ in range(count)]
        return f"torch.tensor({found}, dtype=torch.int64, device=device).reshape({tuple(shape)})"

    def slice(self, size: int) -> str:
        """Return what may stand in brackets for a dimension of a size."""
        low, high = sorted((self.rng.randint(0, size), self.rng.randint(0, size)))
        kind = self.rng.random()
        if kind < 0.25 and size:
            return str(self.rng.randrange(-size, size))
        if kind < 0.4:
            return ":"
        if kind < 0.6:
            return f"{self.one(['', low])}::{self.rng.randint(1, 3)}"
        if kind < 0.7:
            return f":{-self.rng.randint(1, 2)}"
        return f"{low}:{high}"

    def brackets(self, name: str) -> str:
        """Return an index of slices and numbers for a tensor, without its brackets."""
        shape = self[name].shape
        parts = [self.slice(size) for size in shape[: self.rng.randint(1, max(len(shape), 1))]]
        if self.chance(0.1):
            parts.insert(self.rng.randint(0, len(parts)), "None")
        if self.chance(0.15):
            parts.insert(0 if len(parts) == len(shape) else len(parts), "...")
        return ", ".join(parts) or "..."


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, to) == to
    except RuntimeError:
        return False
