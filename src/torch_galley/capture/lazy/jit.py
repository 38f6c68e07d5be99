"""`torch_galley.jit`: a step of training recorded once, then run again without its Python.

A call is traced by recording it as ever and noting which storages it read and wrote. Calling it
again reads these storages as they are then, draws new random numbers, runs the one program, and
writes the results where they went. What can't be repeated like that is an error when it is traced.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torch_galley.capture.lazy import flush as flushing
from torch_galley.capture.lazy import guard, storage
from torch_galley.capture.lazy.place import site_of, user_frames
from torch_galley.capture.lazy.storage import Contents, Layout
from torch_galley.capture.lazy.trace import Program, Value
from torch_galley.capture.lazy.watch import Watch
from torch_galley.core.config import current
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import Warned, emit

_MAX_ATTEMPTS = 3
"""Calls in a row that may leave new tensors behind, as an optimizer's first step does."""
_MAX_KEPT = 64
"""Kinds of arguments that are remembered."""
_MAX_ALIKE = 4
"""Calls of each kind that are remembered, which differ in what the step reaches otherwise."""
_TOLD_AFTER = 8
"""Calls in a row that are recorded because some object has changed, after which one is told."""


@dataclass(frozen=True)
class _Slot:
    """A storage that a trace reads or writes: an argument's, or one that the step refers to."""

    contents: Contents
    argument: int | None
    """Which argument's it is."""
    layout: tuple[Any, ...]
    """How it lay when the trace began."""


@dataclass(frozen=True)
class _Written:
    """A value that a trace left in a storage."""

    output: int | None
    """Which output of the program it is."""
    given: int
    """If none: which of what was given it is."""
    slot: _Slot | None
    """The storage; None for a new one."""
    layout: tuple[Any, ...]
    """How the storage lies now."""


@dataclass(frozen=True)
class _Shown:
    """A tensor among the results: a view of what was written, of an argument or of a storage."""

    written: int | None
    slot: _Slot | None
    tensor: torch.Tensor | None
    """A tensor that was there before, to be returned as it is."""
    layout: Layout


@dataclass
class _Traced:
    """What a call became."""

    plan: Callable[[list[Any]], Sequence[torch.Tensor]]
    inputs: int
    """How many of the sources are its inputs, the first ones."""
    sources: list[Any]
    """What is given: a _Slot, a function that draws, or a constant tensor."""
    written: list[_Written]
    results: list[Any]
    spec: TreeSpec
    state: guard.State
    """The objects that the step could reach when the call began."""
    aside: dict[int, Contents]
    """What the step comes to otherwise than by an argument, by identity."""
    both: dict[int, Contents]
    """What of that an argument showed as well, by the argument's place."""


class Jitted:
    """A function that is traced once for each kind of arguments; see torch_galley.jit."""

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._traced: OrderedDict[Any, list[_Traced]] = OrderedDict()
        self._attempts = 0
        self._changes = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, tracing it if it was not called with such arguments before.

        Raises:
            CaptureError: it does something that can't be repeated without Python.
        """
        leaves, spec = tree_flatten((args, kwargs))
        with flushing.lock:
            if flushing.tracing():  # a step within a step is part of it
                return self._function(*args, **kwargs)
            flushing.flush("jit")
            key = (spec, current(), guard.settings(), *map(_guard, leaves), _shared(leaves))
            known = self._traced.get(key, [])
            changed = None
            for traced in known:
                changed = traced.state.changed()
                if changed is None and _still_there(traced, leaves):
                    self._changes = 0
                    return _replay(traced, leaves)
            if changed is not None:
                self._note_change(changed)
            return self._trace(key, args, kwargs, leaves)

    def _note_change(self, what: str) -> None:
        """Tell once that the step's Python runs at every call, and why."""
        self._changes += 1
        if self._changes == _TOLD_AFTER:
            message = (
                f"jit: {what} is another at every call, so that each call is recorded anew; let "
                "the step read it from an xla tensor, or don't change it"
            )
            emit(Warned(message))
            warnings.warn(message, stacklevel=3)

    def _trace(self, key: Any, args: Any, kwargs: Any, leaves: list[Any]) -> Any:
        before = _before(leaves)
        objects = [x for x in leaves if not isinstance(x, torch.Tensor) or _gathers(x)]
        state = guard.State([self._function, *objects])
        draws = torch.get_rng_state()
        flushing.trace(True)
        try:
            with Watch():
                results = self._function(*args, **kwargs)
            flushing.trace(False)
            found, spec = tree_flatten(results)
            del results
            found = [
                leaf.detach() if _ours(leaf) and leaf.grad_fn is not None else leaf
                for leaf in found
            ]
            traced, kept = _made(before, found, spec, leaves, state)
            state.note_grads()
        except BaseException:
            flushing.trace(False)
            torch.set_rng_state(draws)
            _undo(before)
            raise
        if kept:
            self._attempts += 1
            if self._attempts >= _MAX_ATTEMPTS:
                raise CaptureError(
                    f"jit: each call leaves {kept} new tensors behind, which a call without "
                    "Python could not make",
                    site=site_of(user_frames()),
                    hint="return them from the step instead of keeping them",
                )
        else:
            self._attempts = 0
            self._keep(key, traced)
        return tree_unflatten(found, spec)

    def _keep(self, key: Any, traced: _Traced) -> None:
        """Remember a trace, and forget the oldest of the others."""
        alike = self._traced.setdefault(key, [])
        alike[:] = [traced, *alike[: _MAX_ALIKE - 1]]
        self._traced.move_to_end(key)
        while len(self._traced) > _MAX_KEPT:
            self._traced.popitem(last=False)


def _ours(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"


def _guard(leaf: Any) -> Any:
    """Return what a later argument must have in common with this one."""
    if not isinstance(leaf, torch.Tensor):
        try:
            hash(leaf)
        except TypeError:
            raise CaptureError(
                f"jit: an argument of type {type(leaf).__name__} can't be told from another",
                hint="pass tensors, numbers, strings, and lists or dicts of these",
            ) from None
        return (type(leaf), repr(leaf) if isinstance(leaf, float | complex) else leaf)
    if not _ours(leaf):
        raise CaptureError(
            f"jit: an argument is on {leaf.device}", hint="move it with .to('xla') before the call"
        )
    if leaf.grad_fn is not None and torch.is_grad_enabled():
        raise CaptureError(
            "jit: an argument comes from a computation that gradients could go back through, "
            "which a call without Python could not do",
            hint="pass it with .detach(), or compute it in the step",
        )
    layout = _layout(storage.contents_of(leaf))
    return (
        Layout.of(leaf),
        leaf.requires_grad,
        leaf.is_leaf,
        leaf.is_conj(),
        leaf.is_neg(),
        layout,
        id(leaf) if _gathers(leaf) else None,  # its gradient is not another's
    )


def _gathers(tensor: torch.Tensor) -> bool:
    """Whether a backward would leave a gradient in a tensor."""
    return tensor.requires_grad and tensor.is_leaf


def _layout(contents: Contents) -> tuple[Any, ...]:
    return (contents.dtype, contents.sizes, contents.strides)


def _shared(leaves: list[Any]) -> tuple[int, ...]:
    """Return which arguments share memory: for each the first one with the same."""
    memory = [id(storage.contents_of(leaf)) if _ours(leaf) else -i for i, leaf in enumerate(leaves)]
    return tuple(map(memory.index, memory))


def _before(leaves: list[Any]) -> dict[int, tuple[_Slot, Value]]:
    """Give each storage a value of its own, and return all by the identity of the Contents."""
    arguments = {
        id(storage.contents_of(leaf)): i
        for i, leaf in reversed(list(enumerate(leaves)))
        if _ours(leaf)
    }
    found = {}
    for contents in storage.all_contents():
        if contents.value is None:
            zeros = torch.zeros(contents.sizes, dtype=contents.dtype, device="cpu")
            contents.value = Value.ready(zeros)
        elif contents.value.tensor is not None:  # else it is lost, which matters if it is read
            contents.value = Value.ready(contents.value.tensor)
        slot = _Slot(contents, arguments.get(id(contents)), _layout(contents))
        found[id(contents)] = (slot, contents.value)
    return found


def _undo(before: dict[int, tuple[_Slot, Value]]) -> None:
    """Let every storage hold again what it held before a trace that failed."""
    for slot, value in before.values():
        slot.contents.value = value
        slot.contents.dtype, slot.contents.sizes, slot.contents.strides = slot.layout


def _made(
    before: dict[int, tuple[_Slot, Value]],
    found: list[Any],
    spec: TreeSpec,
    leaves: list[Any],
    state: guard.State,
) -> tuple[_Traced, int]:
    """Run what was recorded, and return it as a _Traced, and how many tensors it left behind."""
    returned = {id(storage.contents_of(leaf)) for leaf in found if _ours(leaf)}
    grads = _grads()
    sinks: list[tuple[Contents, _Slot | None]] = []
    kept = 0
    for contents in storage.all_contents():
        slot, value = before.get(id(contents), (None, None))
        if contents.value is None and id(contents) in returned:  # never written: zeros
            zeros = torch.zeros(contents.sizes, dtype=contents.dtype, device="cpu")
            contents.value = Value.ready(zeros)
        if contents.value is None or contents.value is value:
            continue
        if slot is None and id(contents) not in returned:
            kept += id(contents) not in grads
            slot = _Slot(contents, None, _layout(contents))
        sinks.append((contents, slot))
    values = [contents.value for contents, _ in sinks if contents.value is not None]
    for value in values:
        value.check()
    program = Program.reaching(v for v in values if v.pending)
    by_value = {id(value): slot for slot, value in before.values()}
    outputs = {id(value): i for i, value in enumerate(program.outputs)}
    given = {id(v): v for v in (*program.inputs, *values) if id(v) not in outputs}
    number = {key: i for i, key in enumerate(given)}
    written = [
        _Written(outputs.get(id(value)), number.get(id(value), -1), slot, _layout(contents))
        for value, (contents, slot) in zip(values, sinks, strict=True)
    ]
    place = {id(contents): i for i, (contents, _) in enumerate(sinks)}
    results = [_shown(leaf, before, place) if _ours(leaf) else leaf for leaf in found]
    sources = [by_value.get(key) or v.redraw or v.tensor for key, v in given.items()]
    slots = [*(s for s in sources if isinstance(s, _Slot)), *(w.slot for w in written if w.slot)]
    aside = [*state.contents, *(slot.contents for slot in slots if slot.argument is None)]
    by_id = {id(contents): contents for contents in aside}
    arguments = {i: storage.contents_of(x) for i, x in enumerate(leaves) if _ours(x)}
    traced = _Traced(
        flushing.plan_of(program, current()),
        len(program.inputs),
        sources,
        written,
        results,
        spec,
        state,
        by_id,
        {i: contents for i, contents in arguments.items() if id(contents) in by_id},
    )
    flushing.store(program, flushing.execute(traced.plan, [v.tensor for v in program.inputs]))
    return traced, kept


def _grads() -> set[int]:
    """Return the Contents of all gradients of leaves: those a step makes anew each time."""
    # Not isinstance: it asks for __class__, which some objects answer with a warning.
    things = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    grads = [thing.grad for thing in things if _ours(thing) and thing.is_leaf]
    return {id(storage.contents_of(grad)) for grad in grads if grad is not None}


def _shown(leaf: torch.Tensor, before: Any, place: dict[int, int]) -> _Shown:
    contents = storage.contents_of(leaf)
    slot = before[id(contents)][0] if id(contents) in before else None
    if slot is not None and slot.argument is None:
        return _Shown(None, slot, leaf, Layout.of(leaf))
    return _Shown(place.get(id(contents)), slot, None, Layout.of(leaf))


def _contents(slot: _Slot, leaves: list[Any]) -> Contents:
    if slot.argument is None:
        return slot.contents
    return storage.contents_of(leaves[slot.argument])


def _still_there(traced: _Traced, leaves: list[Any]) -> bool:
    """Whether every storage that a trace refers to is there, lies as it did, and is no other's."""
    for i, leaf in enumerate(leaves):
        if _ours(leaf):
            contents = storage.contents_of(leaf)
            if traced.both.get(i) is not (contents if id(contents) in traced.aside else None):
                return False
    slots = [source for source in traced.sources if isinstance(source, _Slot)]
    live = set(map(id, storage.all_contents()))
    for slot in (*slots, *(w.slot for w in traced.written if w.slot is not None)):
        if slot.argument is None and id(slot.contents) not in live:
            return False
    return all(_layout(_contents(slot, leaves)) == slot.layout for slot in slots)


def _replay(traced: _Traced, leaves: list[Any]) -> Any:
    """Run a traced call again."""

    def given(source: Any) -> Any:
        if isinstance(source, _Slot):
            value = _contents(source, leaves).value
            assert value is not None
            value.check()
            return value.tensor
        return source() if callable(source) and not isinstance(source, torch.Tensor) else source

    inputs = [given(source) for source in traced.sources]
    computed = flushing.execute(traced.plan, inputs[: traced.inputs])
    tensors: dict[int, torch.Tensor] = {}
    for i, one in enumerate(traced.written):
        value = Value.ready(inputs[one.given] if one.output is None else computed[one.output])
        dtype, sizes, strides = one.layout
        if one.slot is None:
            tensors[i] = storage.hold(value, Layout(sizes, strides, dtype))
            continue
        contents = _contents(one.slot, leaves)
        contents.value, contents.dtype = value, dtype
        contents.sizes, contents.strides = sizes, strides

    def result(shown: Any) -> Any:
        if not isinstance(shown, _Shown):
            return shown
        if shown.tensor is not None:
            return shown.tensor
        if shown.slot is not None and shown.slot.argument is not None:
            base = leaves[shown.slot.argument].detach()
        else:
            assert shown.written is not None
            base = tensors[shown.written]
        return base if Layout.of(base) == shown.layout else storage.alias(base, shown.layout)

    return tree_unflatten([result(shown) for shown in traced.results], traced.spec)
