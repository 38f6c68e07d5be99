"""Is an operator supported, and how: the answer for one overload, for a name, for all of ATen."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torch_galley.cluster.support import support
from torch_galley.compile.client import has_device
from torch_galley.core.errors import ToolError
from torch_galley.core.reasons import Reason
from torch_galley.ops import aten as families
from torch_galley.ops.decompose import decompositions
from torch_galley.ops.derive import derive
from torch_galley.ops.draw import ours
from torch_galley.ops.registry import Lowering, lookup
from torch_galley.ops.schema import is_torchs, overload_named, written_by
from torch_galley.tools.trial import Trial, trials

SOURCE = Path(families.__file__).parents[3]
"""The folder that holds the package."""


_PREFIX = re.compile(r"^(torch\.)?(ops\.|_C\._nn\.|nn\.functional\.|F\.|Tensor\.)?")
"""Of torch's public names, where an operator has another one."""
_HIGHER_ORDER = re.compile(r"^(torch\.)?(ops\.)?(higher_order\.|_higher_order_ops\.)?")
CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map", "invoke_subgraph")


@dataclass(frozen=True)
class Support:
    """How one overload gets into XLA, or why it doesn't."""

    op: str
    how: str
    """"lowered", "decomposed" (by torch), "rewritten" (a writing form, by capture) or "native"."""
    detail: str = ""
    """Of a lowered one the place; of the others what it becomes, or the reason."""
    when: str = ""
    """What the lowering asks of its arguments, "" if it takes all."""
    reason: Reason | None = None
    """Why it is native."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        reason = self.reason.to_json() if self.reason else None
        return {
            "op": self.op,
            "how": self.how,
            "detail": self.detail,
            "when": self.when,
            "reason": reason,
        }


def supported(op: OpOverload) -> Support:
    """Return how an overload is handled, by the same tables that the stages use.

    Example: `supported(torch.ops.aten.relu.default).how` is "lowered".
    """
    name = str(op)
    lowering = lookup(op)
    if lowering is not None:
        return Support(name, "lowered", _place(lowering), _condition(lowering.when))
    drawing = lookup(ours(op))
    if drawing is not None:
        return Support(name, "lowered", f"drawn from a seed by {_place(drawing)}")
    if (derived := derive(op)) is not None:
        return Support(name, "rewritten", f"captured as {derived.functional}")
    rule = decompositions().get(op)
    rule = inspect.unwrap(rule) if rule is not None else None
    if rule is not None and not isinstance(rule, partial):  # partial: torch's name for the next
        return Support(name, "decomposed", f"by {_named(rule)}")
    if rule is not None or op.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ):
        return Support(name, "decomposed", "by torch's dispatcher")
    reason = support(fx.Graph().call_function(op), has_device)
    return Support(name, "native", str(reason), reason=reason)


def _place(lowering: Lowering) -> str:
    op = str(lowering.overload)
    if not lowering.row:
        return f"body {lowering.function.__name__}, {_source(lowering.function)}"
    pattern = re.compile(rf"\s*\({re.escape(op)}, (.*)\),(\s+#.*)?")
    for path in sorted(Path(families.__file__).parent.glob("*.py")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if found := pattern.fullmatch(line):
                return f"row {found[1]}, {path.relative_to(SOURCE)}:{number}"
    return f"row {_named(lowering.function)}, {_source(lowering.function)}"


def _named(function: Any) -> str:
    module = getattr(function, "__module__", "") or ""
    name = getattr(function, "__qualname__", getattr(function, "__name__", repr(function)))
    return f"{module.replace('jax._src.', 'jax.')}.{name}"


def _source(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    path = Path(inspect.getsourcefile(function) or "?")
    line = function.__code__.co_firstlineno
    return f"{path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else path}:{line}"


def _condition(when: Callable[..., Any] | None) -> str:
    if when is None:
        return ""
    said = (inspect.getdoc(when) or "").split("\n\n")[0].replace("\n", " ")
    return f"{when.__name__.strip('_')}, {_source(when)}" + (f": {said}" if said else "")


@cache
def overloads() -> dict[str, OpOverload]:
    """Return every overload of ATen by its name, such as "aten.add.Tensor"."""
    return _overloads(lambda namespace: namespace == "aten")


def own_overloads() -> dict[str, OpOverload]:
    """Return the operators that are not torch's, as far as this process has defined them."""
    return _overloads(lambda namespace: not is_torchs(namespace))


def _overloads(wanted: Callable[[str], bool]) -> dict[str, OpOverload]:
    names = [n for n in torch._C._dispatch_get_all_op_names() if wanted(n.partition("::")[0])]
    return {str(op): op for op in map(overload_named, sorted(names)) if op is not None}


def resolve(name: str) -> list[OpOverload]:
    """Return the overloads that "gelu", "aten.gelu" or "aten.gelu.default" names.

    So do torch's own names, "torch.nn.functional.gelu", "F.gelu" and "torch.linalg.det". An
    operator that is not torch's is named with its namespace: "mylib.norm".

    Raises:
        ToolError: none, with the nearest name.
    """
    full = _PREFIX.sub("", name.replace("::", "."))
    full = re.sub(r"^(linalg|special|fft)\.", r"\1_", full)
    known, own = overloads(), own_overloads()
    if full.partition(".")[0] in {op.namespace for op in own.values()}:
        known = own
    elif not full.startswith("aten."):
        full = f"aten.{full}"
    if full in known:
        return [known[full]]
    found = [op for op in known.values() if str(op.overloadpacket) == full]
    if found:
        return sorted(found, key=lambda op: (bool(written_by(op)), str(op)))
    packets = {str(op.overloadpacket) for op in known.values()}
    near = difflib.get_close_matches(full, packets | set(known), n=3)
    names = " or ".join(repr(one.removeprefix("aten.")) for one in near)
    hint = f"did you mean {names}?" if near else "galley ops --all lists them"
    if "." in name or "::" in name:
        hint += " (one of yours: galley ops --load FILE.py NAMESPACE.NAME)"
    raise ToolError(f"no operator named {name!r} in this torch", hint=hint)


def control_flow(name: str) -> str | None:
    """Return how an operator that takes functions gets into XLA, None for a name of none.

    Example: `control_flow("torch.cond")` begins "cond: control flow, lowered whole".
    """
    plain = _HIGHER_ORDER.sub("", name.replace("::", "."))
    if plain not in CONTROL_FLOW:
        return None
    target = getattr(torch.ops.higher_order, "map_impl" if plain == "map" else plain)
    lowering = lookup(target)
    assert lowering is not None, plain
    return (
        f"{plain}: control flow, lowered whole by {_place(lowering)}, if XLA takes every operation "
        "inside; if not, the whole runs natively, and galley explain names that operation. "
        "See docs/decisions/0018-control-flow.md."
    )


def tried(op: OpOverload) -> dict[str, Trial]:
    """Return what trials of a functional overload gave, by dtype; empty for others."""
    return {} if written_by(op) else trials(op)


def sweep_file() -> Path:
    """Return where a sweep over torch's own samples is kept, if it is."""
    return SOURCE.parent / "docs" / "ops.json"


def sweep_verdicts(name: str) -> list[dict[str, Any]]:
    """Return what docs/ops.json, a sweep over torch's own samples, has of an operator, if any."""
    try:
        rows = json.loads(sweep_file().read_text("utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    base = name.removeprefix("aten.").partition(".")[0]
    return [row for row in rows if _aten_name(row["op"]) == base]


def _aten_name(entry: str) -> str:
    """Return the operator that an entry of op_db is named after: nn.functional.gelu is gelu."""
    return entry.removeprefix("nn.functional.").replace(".", "_")
