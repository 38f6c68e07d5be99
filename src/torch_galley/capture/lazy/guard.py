"""What a step recorded by `jit` depends on outside its arguments, and whether that is as it was.

Two kinds: torch's settings (dtypes, autocast, ...), and Python objects. Objects are found from the
function: what it closes over, the globals its code names, what its methods belong to, and so on
through containers, modules, optimizers and the attributes that the code names. Of each the plain
values are compared, of anything else the identity.
"""

from __future__ import annotations

import dis
import functools
import operator
import sys
import types
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from torch_galley.capture.lazy import storage

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.Size, storage.Layout),
)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, types.MappingProxyType)
_MAPPINGS = (dict, types.MappingProxyType)
_CONTENT: dict[type, Callable[[Any], Any]] = {
    weakref.ref: lambda reference: reference(),
    ContextVar: lambda variable: variable.get(None),
    bytearray: bytes,
    array: lambda items: (items.typecode, items.tobytes()),
}
"""Kinds of objects that hold one thing, and what gives it."""
_FOREIGN = sys.stdlib_module_names | {"torch", "torch_galley", "numpy", "jax", "jaxlib"}
"""Packages whose functions, classes and modules are not looked into."""


def settings() -> tuple[Any, ...]:
    """Return those of torch's settings that change what is recorded."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_cache_enabled(),
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("xla", "cpu")),
        # A default device is such a mode, anew for each `with`, and told above.
        *(id(m) for m in _get_current_function_mode_stack() if not isinstance(m, DeviceContext)),
        *map(id, _global_optimizer_pre_hooks.values()),
        *map(id, _global_optimizer_post_hooks.values()),
    )


@dataclass(frozen=True)
class _Seen:
    """An object, and what it was like."""

    thing: Any
    path: str
    """How the function comes to it."""
    parts: Callable[[Any], Iterable[tuple[Any, Any]]]
    """Gives its names and what they stand for."""
    spelled: tuple[Any, ...]
    kept: tuple[Any, ...]
    """Its parts, so that what is known by identity stays what it is."""
    untouched: Callable[[], bool]
    """Whether its parts are the very objects that they were: quicker than to spell them."""


class State:
    """The objects that a function can reach, as they are now."""

    def __init__(self, roots: Iterable[Any]):
        self._seen: list[_Seen] = []
        self._names = {"forward"}  # called by name of the module alone
        roots, known = list(roots), -1
        while known < len(self._names):  # code found late may name attributes of what came early
            known = len(self._names)
            self._walk(roots)
        tensors = [seen.thing for seen in self._seen if isinstance(seen.thing, torch.Tensor)]
        self._leaves = [t for t in tensors if t.is_leaf and t.requires_grad]
        self._grads: list[Any] = []
        grads = [leaf.grad for leaf in self._leaves if leaf.grad is not None]
        self.contents = [storage.contents_of(tensor) for tensor in (*tensors, *grads)]
        """What the tensors among them, and their gradients, hold."""

    def note_grads(self) -> None:
        """Note which gradients there are when the step is over: the next call starts from them."""
        self._grads = [_grad(leaf) for leaf in self._leaves]

    def changed(self) -> str | None:
        """Return how the function comes to something that is not as it was, None if all is."""
        for seen in self._seen:
            if seen.untouched():
                continue
            now = _spelled(seen.parts(seen.thing))
            if now != seen.spelled:
                names = [old[0] for old in seen.spelled if old not in now]
                return f"{seen.path}.{names[0]}" if names else seen.path
        for leaf, grad in zip(self._leaves, self._grads, strict=False):
            if _grad(leaf) is not grad:
                return "the gradient of a parameter"
        return None

    def _walk(self, roots: list[Any]) -> None:
        self._seen.clear()
        waiting = deque((root, getattr(root, "__name__", type(root).__name__)) for root in roots)
        met: set[int] = set()
        while waiting:
            thing, path = waiting.popleft()
            if id(thing) in met:
                continue
            parts = self._parts(thing)
            if parts is None:
                continue
            met.add(id(thing))
            found = list(parts(thing))
            kept = tuple(value for _, value in found)
            untouched = _untouched(thing, parts)
            self._seen.append(_Seen(thing, path, parts, _spelled(found), kept, untouched))
            waiting.extend((v, f"{path}.{n}") for n, v in found if not isinstance(v, _PLAIN))

    def _parts(self, thing: Any) -> Callable[[Any], Iterable[tuple[Any, Any]]] | None:
        """Return what takes an object apart, None if it is told by its identity alone."""
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            return _tensor if thing.device.type == "xla" else None
        if issubclass(kind, _CONTAINERS):
            return _entries
        if kind in _CONTENT:
            return lambda holder: (("content", _CONTENT[kind](holder)),)
        if kind is types.FunctionType:
            if not _own(thing.__module__):
                return None
            names = _names(thing.__code__)
            self._names |= names
            return functools.partial(self._function, sorted(names))
        if kind is types.MethodType:
            return lambda method: (("__self__", method.__self__), ("__func__", method.__func__))
        if kind is functools.partial:
            return lambda p: (("func", p.func), ("args", p.args), ("keywords", p.keywords))
        if kind in (staticmethod, classmethod):
            return lambda method: (("__func__", method.__func__),)
        if kind is property:
            return lambda p: (("fget", p.fget), ("fset", p.fset))
        if kind is types.ModuleType:
            return self._named if _own(thing.__name__) else None
        if issubclass(kind, type):
            return self._named if _own(thing.__module__) else None
        if "__wrapped__" in getattr(thing, "__dict__", ()):
            return lambda wrapper: (("__wrapped__", wrapper.__wrapped__),)
        torchs = any(base.__module__.startswith("torch.") for base in kind.__mro__)
        if torchs and hasattr(thing, "__dict__"):
            return _everything  # modules, optimizers, schedules: their code is not looked into
        if not _own(kind.__module__) and isinstance(thing, Collection):
            return _everything if hasattr(thing, "__dict__") else None  # a UserDict, say
        return self._instance

    def _function(self, names: list[str], function: Any) -> Iterator[tuple[Any, Any]]:
        code = function.__code__
        yield "__code__", code
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not bound yet
                yield name, None
        yield from ((n, function.__globals__[n]) for n in names if n in function.__globals__)
        yield from enumerate(function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
        for name, value in vars(function).items():
            if name in self._names or name == "__wrapped__":
                yield name, value

    def _named(self, thing: Any) -> Iterator[tuple[Any, Any]]:
        names = self._names
        if isinstance(thing, type):
            yield "__class__", type(thing)
            yield from ((base.__qualname__, base) for base in thing.__mro__[1:])
        for name, value in getattr(thing, "__dict__", {}).items():
            if name in names or (type(value) is types.FunctionType and name.startswith("__")):
                yield name, value

    def _instance(self, thing: Any) -> Iterator[tuple[Any, Any]]:
        yield "__class__", type(thing)
        yield from self._named(thing)
        for base in type(thing).__mro__:
            for name, slot in vars(base).items():
                if type(slot) is types.MemberDescriptorType and name in self._names:
                    yield name, getattr(thing, name, None)


def _own(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _FOREIGN


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Return the globals and attributes that code and the functions in it read.

    A string may be a name too: getattr(x, "lr"), vars(x)["lr"].
    """
    read = (i.argval for i in dis.get_instructions(code) if i.opcode in dis.hasname and _reads(i))
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return frozenset(read).union(_strings(code.co_consts), *map(_names, inner))


def _reads(instruction: dis.Instruction) -> bool:
    return not instruction.opname.startswith(("STORE_", "DELETE_"))


def _strings(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _strings(constant)


def _entries(thing: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(thing, _MAPPINGS):
        yield from enumerate(thing)
        return
    for number, (key, value) in enumerate(thing.items()):
        plain = isinstance(key, _PLAIN)
        if not plain:
            yield f"key {number}", key
        yield key if plain else number, value


def _everything(thing: Any) -> Iterator[tuple[Any, Any]]:
    yield "__class__", type(thing)
    for name, value in vars(thing).items():
        empty = isinstance(value, _CONTAINERS) and not value  # as most tables of hooks are
        yield name, type(value) if empty else value


def _untouched(thing: Any, parts: Callable[..., Any]) -> Callable[[], bool]:
    """Return what asks whether a container or object of torch's has the very parts it has now."""
    if parts not in (_entries, _everything):
        return lambda: False
    whole = parts is _everything
    kind, table = type(thing), vars(thing) if whole else thing
    names = list(table)
    values = list(table.values()) if isinstance(table, _MAPPINGS) else names
    empty = [x for x in values if isinstance(x, _CONTAINERS) and not x] if whole else []

    def same() -> bool:
        table = vars(thing) if whole else thing
        return (
            type(thing) is kind
            and len(table) == len(names)
            and all(map(operator.is_, table, names))
            and (values is names or all(map(operator.is_, table.values(), values)))
            and not any(empty)
        )

    return same


def _tensor(tensor: torch.Tensor) -> Iterator[tuple[Any, Any]]:
    yield "layout", storage.Layout.of(tensor)
    yield "data", tensor.untyped_storage()._cdata
    yield "requires_grad", tensor.requires_grad
    yield "hooks", tensor._backward_hooks
    yield "late hooks", tensor._post_accumulate_grad_hooks
    if tensor.is_leaf and tensor.requires_grad:
        yield "grad", tensor.grad is None


def _grad(leaf: torch.Tensor) -> storage.Contents | None:
    return None if leaf.grad is None else storage.contents_of(leaf.grad)


def _spelled(parts: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
    return tuple([(name, *_spell(value)) for name, value in parts])


def _spell(value: Any) -> tuple[Any, Any]:
    """Return what two values have in common only if they are the same to a program."""
    kind = type(value)
    if kind is float or kind is complex:
        return kind, repr(value) if value == 0 or value != value else value
    return kind, value if kind in _PLAIN else id(value)
