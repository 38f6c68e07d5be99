"""A compiled cluster on disk: what it was lowered from, the optimised HLO, XLA's analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from torch_galley.core.errors import ToolError
from torch_galley.core.store import read_record, write_record
from torch_galley.lower.driver import Lowered

if TYPE_CHECKING:
    from torch_galley.compile.client import Compiled

_HLO = "after_optimizations.hlo"
_MEMORY = ("argument", "output", "alias", "temp", "generated_code")


@dataclass(frozen=True)
class Remains:
    """Stands for the executable in a Compiled that was loaded: text and numbers."""

    text: str
    sizes: dict[str, Any]
    estimates: dict[str, Any]

    def hlo(self) -> str:
        """Return the HLO after optimisation."""
        return self.text

    def memory(self) -> SimpleNamespace:
        """Return XLA's sizes in bytes, as attributes."""
        return SimpleNamespace(**self.sizes)

    def cost(self) -> dict[str, Any]:
        """Return XLA's estimates, such as "flops" and "bytes accessed"."""
        return self.estimates

    def run(self, arrays: Sequence[Any]) -> NoReturn:
        """Refuse.

        Raises:
            ToolError: always: the executable itself is not saved.
        """
        hint = "lower and compile its cluster again"
        raise ToolError("a Compiled that was loaded can't be run", hint=hint)


def to_json(compiled: Compiled) -> dict[str, Any]:
    """Return what XLA says of an executable as plain data; see Compiled.to_json."""
    return {
        "name": compiled.lowered.name,
        "seconds": compiled.seconds,
        "memory": _memory(compiled),
        "cost": _cost(compiled),
    }


def _memory(compiled: Compiled) -> dict[str, int]:
    """Return XLA's sizes in bytes; empty on a platform that tells none."""
    analysis = compiled.executable.memory()
    names = [f"{part}_size_in_bytes" for part in _MEMORY]
    return {name: getattr(analysis, name) for name in names if hasattr(analysis, name)}


def _cost(compiled: Compiled) -> dict[str, float]:
    """Return XLA's estimates for the whole program, without its counts per operand."""
    analysis = compiled.executable.cost()
    return {name: value for name, value in sorted(analysis.items()) if "{" not in name}


def save(compiled: Compiled, folder: str | Path) -> Path:
    """Write a compiled cluster into a folder; see Compiled.save."""
    compiled.lowered.save(folder)
    return write_record(folder, "compiled", to_json(compiled), {_HLO: compiled.hlo()})


def load(folder: str | Path) -> tuple[Lowered, Remains, float]:
    """Read what `save` wrote: the arguments of Compiled.

    Raises:
        ToolError: a file is missing, corrupt or foreign, or the Lowered is another's.
    """
    record = read_record(folder, "compiled")
    fields, lowered = record.value, Lowered.load(folder)
    if fields.get("name", str) != lowered.name:
        raise fields.wrong("name", f"is not that of the Lowered beside it, {lowered.name}")
    memory, cost = fields.get("memory", dict), fields.get("cost", dict)
    remains = Remains(record.text(_HLO), memory, cost)
    return lowered, remains, fields.get("seconds", float)
