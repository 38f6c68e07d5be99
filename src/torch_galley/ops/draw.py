"""Random operators as functions: galley::uniform(seed, draw, ...) for aten::uniform(...).

What torch draws from a generator, these compute from a seed and the number of the draw. So the same
numbers come out wherever and however often it is done, and a graph of them can be cut, saved and
repeated like any other. `galley::seed` alone touches torch's generator.
"""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from torch_galley.core.errors import RunError

Kernel = Callable[[OpOverload, torch.Tensor, tuple[Any, ...], dict[str, Any]], Any]
"""Computes an operator of ours for a seed, its own arguments and keyword arguments."""

STRIDE = 0x9E3779B97F4A7C15
"""What lies between the seeds of one draw and the next, modulo 2**64. It is odd, so that 2**64
draws differ, and large, so that none is a draw of a neighbouring seed."""

_library = torch.library.Library("galley", "FRAGMENT")
_kernel: Kernel | None = None


def use_kernel(kernel: Kernel) -> None:
    """Say what computes these operators outside of clusters; run.draw does so once."""
    global _kernel
    _kernel = kernel


def fresh_seed() -> torch.Tensor:
    """Draw the seed of a call: the one number that it takes from torch's generator."""
    return torch.empty((), dtype=torch.int64, device="cpu").random_()


def seed_of(seed: torch.Tensor, draw: Any) -> torch.Tensor:
    """Return the seed whose draw 0 is draw `draw` of the given one."""
    return seed + (_signed(draw * STRIDE) if isinstance(draw, int) else draw * _signed(STRIDE))


def _signed(number: int) -> int:
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


def _define_seed() -> OpOverload:
    tags = (torch.Tag.nondeterministic_seeded,)
    _library.define("seed() -> Tensor", tags=tags)
    _library.impl("seed", fresh_seed, "CompositeExplicitAutograd")
    fake = partial(torch.empty, (), dtype=torch.int64, device="cpu")
    torch.library.register_fake("galley::seed", fake, lib=_library)
    return torch.ops.galley.seed.default


def _seeded() -> Iterator[OpOverload]:
    """Yield torch's functional operators that draw, those that take no generator first."""
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")]
    names = {s.name for s in schemas if any("Generator" in str(a.type) for a in s.arguments)}
    found = []
    for schema in schemas:
        if schema.name not in names or any(a.alias_info for a in schema.arguments):
            continue
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
        op = getattr(packet, schema.overload_name or "default", None)
        if op is not None and torch.Tag.nondeterministic_seeded in op.tags:
            found.append(op)
    return iter(sorted(found, key=_takes_generator))


def _takes_generator(op: OpOverload) -> bool:
    return any(argument.name == "generator" for argument in op._schema.arguments)


def _define() -> dict[OpOverload, OpOverload]:
    """Define an operator for each of torch's; those that differ in the generator share one."""
    known: dict[tuple[str, str], OpOverload] = {}
    found = {}
    for op in _seeded():
        text = str(op._schema)
        arguments, returns = text[text.index("(") + 1 :].split(") -> ", 1)
        arguments = re.sub(r", Generator\? generator(=None)?|, \*$", "", arguments)
        arguments = re.sub(r", \*$", "", arguments)
        name = op._schema.name.removeprefix("aten::")
        own = known.get((name, arguments))
        if own is None:
            overload = op._schema.overload_name
            if keyword.iskeyword(overload):  # torch.fx writes it into Python: random.from
                overload += "_"
            full = f"{name}.{overload}" if overload else name
            _library.define(f"{full}(Tensor seed, int draw, {arguments}) -> {returns}")
            own = getattr(getattr(torch.ops.galley, name), overload or "default")
            known[name, arguments] = own
            torch.library.register_fake(f"galley::{full}", partial(_fake, op), lib=_library)
            for key in ("CPU", "CUDA"):
                _library.impl(full, partial(_run, own), key)
        found[op] = own
    return found


def _fake(op: OpOverload, seed: torch.Tensor, draw: int, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _run(own: OpOverload, seed: torch.Tensor, draw: int, *args: Any, **kwargs: Any) -> Any:
    if _kernel is None:
        raise RunError(f"{own} has nothing to run it", hint="import torch_galley.pipeline first")
    return _kernel(own, seed_of(seed, draw), args, kwargs)


SEED = _define_seed()
"""Draws the seed of a call."""
_OWN = _define()
_TORCHS = {own: op for op, own in reversed(_OWN.items())}


def of_torch(op: Any) -> OpOverload | None:
    """Return torch's operator for one of ours, None for any other.

    Example: `of_torch(torch.ops.galley.uniform.default)` is `torch.ops.aten.uniform.default`.
    """
    return _TORCHS.get(op)


def ours(op: Any) -> OpOverload | None:
    """Return our operator for one of torch's that draws, None if there is none."""
    return _OWN.get(op)


def try_numbers(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Make a call of one of torch's operators on small tensors, for what eager raises about it.

    A negative standard deviation, an empty range, a dtype that can't be drawn are errors of the
    call's own numbers, which need not be found again here. Elements are 1, which all accept.

    Raises:
        Exception: what eager raises.
    """

    def small(name: str, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            last = [size if isinstance(size, int) else 1 for size in arg.shape[-1:]]
            shape = [1] * (arg.dim() - len(last)) + last
            return torch.ones(shape, dtype=arg.dtype, device="cpu")
        if name == "size":
            return [1] * len(arg)
        if isinstance(arg, torch.device):
            return torch.device("cpu")
        return arg.node.hint if isinstance(arg, torch.SymInt) else arg

    names = [argument.name for argument in op._schema.arguments]
    with _disable_current_modes(), unset_fake_temporarily(), untouched(), torch.no_grad():
        positional = [small(name, arg) for name, arg in zip(names, args, strict=False)]
        op(*positional, **{name: small(name, arg) for name, arg in kwargs.items()})


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Leave torch's CPU generator as it was."""
    generator = torch.default_generator
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


def drawn_by_torch(
    own: OpOverload, seed: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Compute an operator of ours by torch's, from a generator of the seed: other numbers, but
    the same ones for the same seed. For processes in which XLA can't run."""
    with untouched():
        torch.default_generator.manual_seed(int(seed))
        return _TORCHS[own](*args, **kwargs)
