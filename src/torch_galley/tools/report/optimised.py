"""What XLA's four optimisations did in a cluster, from its HLO before and after."""

from __future__ import annotations

from collections.abc import Iterator

from torch_galley.cluster.report import size
from torch_galley.compile.client import Compiled
from torch_galley.core.words import counted
from torch_galley.hlo.count import Counts, count, intermediate_bytes
from torch_galley.tools.report.model import Compilation


def compilation(compiled: Compiled) -> Compilation:
    """Return what XLA made of a cluster, in numbers."""
    memory, after = compiled.executable.memory(), compiled.hlo()
    return Compilation(
        compiled.seconds,
        count(compiled.lowered.hlo()),
        count(after),
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        intermediate_bytes(after),
    )


def sentences(made: Compilation) -> Iterator[tuple[str, str]]:
    """Yield each optimisation with what it did."""
    before, after = made.before, made.after
    yield (
        "fusion",
        f"{counted(before.instructions, 'instruction')} -> {after.instructions:,}, "
        f"{after.fusions:,} of them fusions of {after.fused:,}; "
        f"written {size(before.written_bytes)} -> {size(after.written_bytes)}",
    )
    yield (
        "layout",
        f"copies and transposes {_change(before, after, 'moves')}, "
        f"{size(before.moved_bytes)} -> {size(after.moved_bytes)}; "
        f"free changes of shape {_change(before, after, 'bitcasts')}",
    )
    yield (
        "constant folding",
        f"constants {_change(before, after, 'constants')}, "
        f"{size(before.constant_bytes)} -> {size(after.constant_bytes)}; "
        f"instructions on constants alone {_change(before, after, 'on_constants')}",
    )
    yield (
        "memory planning",
        f"intermediate values {size(made.planned_bytes)} -> {size(made.temporary_bytes)}; "
        f"arguments {size(made.argument_bytes)}, results {size(made.output_bytes)}",
    )


def _change(before: Counts, after: Counts, name: str) -> str:
    return f"{getattr(before, name):,} -> {getattr(after, name):,}"
