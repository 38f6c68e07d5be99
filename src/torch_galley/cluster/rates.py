"""What things take, in seconds: shipped figures, or those that `galley calibrate` measured here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

from torch_galley.core.config import Config
from torch_galley.core.events import Warned, emit
from torch_galley.core.machine import machine
from torch_galley.core.notes import Notes, cache_folder

NEAR = 1 << 20
"""Bytes of a tensor that caches hold, more or less."""

Pair = tuple[float, float]
"""Seconds natively, and in an executable of XLA's."""

WORK: Mapping[str, Pair] = {
    "near": (1.2e-11, 1.2e-11),
    "far": (5e-11, 5e-11),
    "element": (0.0, 4e-11),
    "special": (2.5e-10, 3.5e-10),
    "product": (7e-12, 4e-12),
    "half": (2e-11, 2e-11),
    "convolution": (9e-12, 1.5e-11),
    "grouped": (3e-10, 6e-10),
    "sort": (6e-8, 1.5e-7),
    "gather": (1e-9, 1e-9),
    "scatter": (3e-9, 6e-9),
    "scan": (1e-9, 4e-9),
}
"""Kinds of work and what a unit of each takes on server CPUs of 2025, two threads."""

MEANING: Mapping[str, str] = {
    "near": "a byte read or written, of tensors up to 1 MiB",
    "far": "a byte read or written, of larger tensors",
    "element": "an element of a cheap elementwise operation inside a fusion",
    "special": "an element of exp, erf, tanh and the like",
    "product": "a floating-point operation of a matrix product",
    "half": "the same in bfloat16 or float16",
    "convolution": "a floating-point operation of a convolution",
    "grouped": "the same of one in groups, as a depthwise one is",
    "sort": "an element sorted",
    "gather": "an element fetched by index",
    "scatter": "an element stored by index",
    "scan": "an element of a cumulative sum",
}
"""What a unit of each kind of work is."""


def _second(default: float, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class Rates:
    """Seconds that things take on one device of one machine.

    Example:
        >>> Rates().tensor
        3e-06
    """

    call: float = _second(3e-6, "a run of an executable, its inputs and results apart")
    kernel: float = _second(5e-7, "each further fusion, product, ... in it")
    bring: float = _second(3e-6, "a tensor handed to XLA")
    take: float = _second(3e-6, "a tensor handed back to torch")
    native: float = _second(1.3e-6, "a native operation that moves no data")
    work: Mapping[str, Pair] = field(default_factory=lambda: dict(WORK))
    """For each kind of WORK, what a unit takes."""

    @property
    def tensor(self) -> float:
        """A tensor that crosses a border, whichever way."""
        return (self.bring + self.take) / 2

    @property
    def byte(self) -> float:
        """A byte of it: written to memory and read again, where a fusion would have kept it."""
        return 2 * self.work["far"][1]

    def to_json(self) -> dict[str, Any]:
        """Return the rates as plain data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "work"}
        return plain | {"work": {kind: list(pair) for kind, pair in self.work.items()}}

    @staticmethod
    def from_json(data: Any) -> Rates:
        """Return the rates for what `to_json` gave.

        Raises:
            ValueError: a rate is missing, or is no time.
        """
        plain = {f.name: _time(data, f.name) for f in fields(Rates) if f.name != "work"}
        pairs = data.get("work")
        work = {}
        for kind in WORK:
            pair = pairs.get(kind) if isinstance(pairs, dict) else None
            if not (isinstance(pair, list) and len(pair) == 2 and all(map(_is_time, pair))):
                raise ValueError(f"work.{kind} is {pair!r:.40}, not two times in seconds")
            work[kind] = (pair[0], pair[1])
        return Rates(**plain, work=work)


def _time(data: Any, name: str) -> float:
    value = data.get(name) if isinstance(data, dict) else None
    if not _is_time(value):
        raise ValueError(f"{name} is {value!r:.40}, not a time in seconds")
    return value


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, float) and 0 <= value < 1


def notes(config: Config) -> Notes:
    """Return the file that holds the rates of this user's machines."""
    return Notes(cache_folder(config.cache_dir) / "rates.json", "rates")


def calibrated(config: Config, device: str = "cpu") -> tuple[Rates | None, str | None]:
    """Return the rates that were measured here, None if none were, and what is wrong, if anything.

    They are kept by device, processor, threads, and versions of torch and jaxlib.
    """
    file = notes(config)
    entries, problem = file.read()
    found = entries.get(machine(device))
    if found is None:
        return None, problem
    try:
        return Rates.from_json(found), None
    except ValueError as error:
        return None, f"{file.path}: {error}"


_told: set[str] = set()


def in_force(config: Config, device: str = "cpu") -> tuple[Rates, str]:
    """Return the rates to decide by, and whether they are "calibrated" or "shipped".

    A broken file is told by a warning, once, and the shipped ones are used.
    """
    found, problem = calibrated(config, device)
    if problem and problem not in _told:
        _told.add(problem)
        message = f"{problem}; shipped rates are used until `galley calibrate` measures anew"
        emit(Warned(message))
        warnings.warn(message, stacklevel=2)
    return (found, "calibrated") if found else (Rates(), "shipped")
