"""Watches a step being traced by `jit` for what can't be repeated without its Python."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from torch_galley.capture.lazy.place import site_of, user_frames
from torch_galley.core.errors import CaptureError

_READS = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__"}
_AUGMENTED = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}


class Watch(TorchFunctionMode):
    """Refuses CPU tensors that were there before: their values would be those of the trace.

    What a step makes itself on the CPU, out of Python numbers, is the same each time and may be
    used freely. (Not at the level of operators: an exception there, in a backward, is fatal.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[int, torch.Tensor] = {}
        """CPU tensors made by the step; kept, so that an id is no other's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        foreign = [x for x in given if x.is_cpu and id(x) not in self._own]
        name = getattr(func, "__name__", str(func))
        written = tree_leaves(args[:1]) if _writes(name) else []
        if any(tensor is target for tensor in foreign for target in written):
            raise _refusal(f"writes a CPU tensor ({name})")
        versions = [tensor._version for tensor in foreign]
        drawn = torch.get_rng_state() if not any(not x.is_cpu for x in given) else None
        result = func(*args, **kwargs)
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if [tensor._version for tensor in foreign] != versions:
            raise _refusal(f"writes a CPU tensor ({name})")
        if foreign and name in _READS:
            raise _refusal(f"reads a CPU tensor ({name})")
        if foreign and any(not x.is_cpu for x in (*made, *given)):
            raise _refusal(f"brings a CPU tensor to the device ({name})")
        fresh = drawn is None or bool((torch.get_rng_state() == drawn).all())
        if not foreign and fresh:
            self._own |= {id(x): x for x in made if x.is_cpu}
        return result


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or name in _AUGMENTED


def _refusal(what: str) -> CaptureError:
    return CaptureError(
        f"jit: the step {what}, which a call without Python could not repeat",
        site=site_of(user_frames()),
        hint="pass it as an xla tensor; an optimizer that counts its steps needs capturable=True",
    )
