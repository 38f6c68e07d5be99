"""Every operator call on the device arrives here and is recorded, or run where it must be.

Autograd, views' bookkeeping and composite operators are torch's own, above this level. What
arrives is a view, an operator that writes, a random draw, or a function of its arguments.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import eval_frame as frames
from torch._ops import OpOverload
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from torch_galley.capture.lazy import native, number, overlap, place, storage
from torch_galley.capture.lazy.flush import after_call, check_process, flush, lock
from torch_galley.capture.lazy.infer import NoMetaKernel, infer, raise_as_eager, two_devices
from torch_galley.capture.lazy.operator import Call, Form, Operator, operator
from torch_galley.capture.lazy.own import take_own_operators
from torch_galley.capture.lazy.special import SPECIAL
from torch_galley.capture.lazy.stream import next_draw
from torch_galley.capture.lazy.trace import Recipe, Step, Value, record
from torch_galley.core.config import setting
from torch_galley.ops.draw import of_torch, try_numbers
from torch_galley.ops.schema import overload_named

aten = torch.ops.aten

_MAX_KNOWN = 50_000
"""Calls whose shapes are remembered."""


class _Thread(threading.local):
    ready = False


_thread = _Thread()


def enter_thread() -> None:
    """Make backward run in the calling thread.

    Autograd's own worker may outlive the interpreter's end and abort the process; in the calling
    thread, the user's frames and settings are at hand as well.
    """
    _thread.ready = True
    torch._C._set_multithreading_enabled(False)  # type: ignore[attr-defined]
    if not torch.is_autocast_enabled("xla"):
        torch.set_autocast_dtype("xla", torch.bfloat16)  # if none is named: the CPU's


def call(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Record or run one operator call: the kernel of every operator of the device."""
    if not _thread.ready:
        enter_thread()
    check_process()
    with lock:
        outermost = place.enter()
        try:
            special = SPECIAL.get(op)
            if special is not None:
                result = special(*args, **kwargs)
            else:
                result = _ordinary(operator(op), args, kwargs)
        finally:
            if outermost:
                place.leave()
        if outermost:
            after_call()
        return result


def _ordinary(found: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if found.op is aten._index_put_impl_.default:  # index_put_, with a flag more for CUDA
        found, args = operator(aten.index_put_.default), args[:4]
    for i in found.tensors:
        if i < len(args) and not isinstance(args[i], torch.Tensor):
            op, args = _with_numbers(found, args)
            found = operator(op)
            break
    try:
        if found.form is Form.FUNCTION or (found.op is aten.index.Tensor and not _masks(args[1])):
            return _function(found, args, kwargs)
        if found.form is Form.VIEW:
            return _view(found, args, kwargs)
        if found.form is Form.RESHAPE:
            return _reshape(found, args, kwargs)
        if found.form is Form.DRAW:
            return _draw(found, args, kwargs)
        if found.form is Form.WRITE and found.derived is not None:
            return _write(found, args, kwargs)
    except NoMetaKernel:
        pass
    return native.run(found.op, args, kwargs)


def _masks(indices: list[torch.Tensor | None]) -> bool:
    """Whether an index is a mask: how much it picks hangs on its data."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _with_numbers(found: Operator, args: tuple[Any, ...]) -> tuple[OpOverload, tuple[Any, ...]]:
    """Give a number where the schema wants a tensor a form that the operator takes again.

    torch wraps it in a tensor on the way to us and unwraps it at the door; the way back is open
    to add and its kin only.
    """
    op = found.op
    wanting = [
        i for i in found.tensors if i < len(args) and isinstance(args[i], int | float | complex)
    ]
    if not wanting:
        return op, args
    if wanting == [0] and op is aten.mul.Tensor:  # how 0.9 * x arrives from foreach
        return op, (args[1], args[0])
    if 0 not in wanting and torch._C._should_allow_numbers_as_tensors(op.overloadpacket.__name__):
        return op, args
    scalar = getattr(op.overloadpacket, "Scalar", None)
    if wanting == [1] and scalar is not None and op._overloadname == "Tensor":
        return scalar, args
    numbers = list(args)
    for i in wanting:
        numbers[i] = torch.tensor(args[i], device="cpu")
        if not isinstance(args[i], int):  # a real or complex number, rounded as eager does first
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            dtypes = [torch.result_type(tensor, args[i]) for tensor in tensors]
            numbers[i] = torch.tensor(args[i], dtype=dtypes[0] if dtypes else None, device="cpu")
    return op, tuple(numbers)


@dataclass(frozen=True)
class _Known:
    """What was found out for a call: its recipe, and what its results are like."""

    recipe: Recipe
    results: list[Any]
    """Of a function: a storage.Layout, or a plain result. Of a writing operator: the new sizes and
    strides of each written tensor if its sizes change, else None."""
    spec: TreeSpec | None
    """How a function's results are nested; None for one tensor."""
    apart: bool = False
    """A written tensor has elements that share memory: eager's order of writing counts."""


_known: dict[tuple[Any, ...], _Known] = {}


def _remember(key: tuple[Any, ...], known: _Known) -> _Known:
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[key] = known
    return known


def _step(recipe: Recipe, made: Call) -> Step:
    operands = tuple(
        storage.read(tensor)
        if not tensor.is_cpu
        else Value.ready(tensor.detach().clone())  # the caller may write it later
        for tensor in made.tensors
    )
    return Step(recipe, operands, tuple(made.numbers))


def _function(found: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made = Call(found, args, kwargs)
    known = _known.get(made.key) or _remember(made.key, _know_function(made))
    step = _step(known.recipe, made)
    if known.spec is None:
        layout = known.results[0]
        return storage.hold(Value(layout.sizes, layout.dtype, None, step), layout)
    held = [
        storage.hold(Value(like.sizes, like.dtype, None, step, i), like)
        if isinstance(like, storage.Layout)
        else like
        for i, like in enumerate(known.results)
    ]
    return tree_unflatten(held, known.spec)


def _know_function(made: Call) -> _Known:
    op = made.operator.op
    theirs = of_torch(op)
    if theirs is not None:
        try_numbers(theirs, made.args[2:], made.kwargs)
    shapes = infer(op, made.args, made.kwargs)
    leaves, spec = tree_flatten(shapes)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise NoMetaKernel  # a number or nothing: it has to be run
    likes = [storage.Layout.of(x) if isinstance(x, torch.Tensor) else x for x in leaves]
    kinds = tuple((x.sizes, x.dtype) if isinstance(x, storage.Layout) else None for x in likes)
    recipe = Recipe(op, *made.template(), kinds)
    return _Known(recipe, likes, None if isinstance(shapes, torch.Tensor) else spec)


def _draw(found: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a draw. What it fills is not looked at."""
    own, derived = found.drawn, found.derived
    assert own is not None
    given = dict(zip(found.names, args, strict=False)) | kwargs
    filled = given[derived.written[0]] if derived is not None else None
    if given.get("generator") is not None or setting("rng") == "native":
        raise NoMetaKernel
    if filled is not None and overlap.internal(filled):
        raise NoMetaKernel  # eager's order of writing counts
    positional, named = _parameters(found)
    taken = [given.get(name, default) for name, default in positional.items()]
    rest = {name: arg for name, arg in kwargs.items() if name in named}
    if "dtype" in named and "self" not in positional and rest.get("dtype") is None:
        whole = found.op.overloadpacket in (aten.randint, aten.randperm)
        rest["dtype"] = torch.int64 if whole else torch.get_default_dtype()
    if filled is None:
        return _function(operator(own), (*next_draw(), *taken), rest)
    sizes, dtype = tuple(filled.shape), filled.dtype
    if derived is not None and not derived.outs:
        blank = record(aten.empty.memory_format, (), sizes, kind=(sizes, dtype), dtype=dtype)
        taken[0] = storage.hold(blank)
    elif "dtype" in rest:
        rest |= {"dtype": dtype, "device": filled.device}
    drawn = storage.read(_function(operator(own), (*next_draw(), *taken), rest))
    if drawn.dtype is not dtype:
        raise NoMetaKernel  # whether eager casts differs
    if drawn.shape != sizes:
        native.resize(filled, drawn.shape)
    storage.write(filled, drawn)
    return filled


@functools.cache
def _parameters(found: Operator) -> tuple[dict[str, Any], frozenset[str]]:
    """Return what our operator for a draw takes by position, with the defaults of torch's that was
    called (an in-place form may have one where the other has none), and what by name."""
    assert found.drawn is not None
    defaults = {a.name: a.default_value for a in found.op._schema.arguments}
    arguments = found.drawn._schema.arguments[2:]
    positional = {a.name: defaults[a.name] for a in arguments if not a.kwarg_only}
    return positional, frozenset(a.name for a in arguments if a.kwarg_only)


_BOUNDED = (aten.as_strided.default, aten._reshape_alias.default)
"""Views that may reach beyond what their base shows, up to the end of the storage."""

_views: dict[tuple[Any, ...], Any] = {}
"""By a view's key: the Layouts of its results, nested as they are."""


def _view(found: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    base = args[0]
    if found.op is aten.view_as_real.default and base.is_conj():
        raise_as_eager(found.op, args, kwargs)  # a meta tensor has no such bit
    made = Call(found, args, kwargs)
    bounded = found.op in _BOUNDED
    key = (made.key, base.storage_offset(), base.untyped_storage().nbytes() if bounded else None)
    layouts = _views.get(key)
    if layouts is None:
        shapes = infer(found.op, (_mirror(base), *args[1:]), kwargs)
        layouts = tree_map(
            lambda x: storage.Layout.of(x) if isinstance(x, torch.Tensor) else x, shapes
        )
        if bounded and layouts.reach > base.untyped_storage().nbytes():
            raise_as_eager(found.op, args, kwargs, [base])
        if len(_views) >= _MAX_KNOWN:
            _views.clear()
        _views[key] = layouts
    if isinstance(layouts, storage.Layout):
        return storage.alias(base, layouts)
    return tree_map(
        lambda x: storage.alias(base, x) if isinstance(x, storage.Layout) else x, layouts
    )


def _mirror(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor that lies on its storage as `tensor` does on its."""
    count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    memory = torch.empty(count, dtype=tensor.dtype, device="meta")
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _reshape(found: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    tensor, mirror = args[0], _mirror(args[0])
    infer(found.op, (mirror, *args[1:]), kwargs, (args, kwargs))
    layout = storage.Layout.of(mirror)
    storage.reshape_in_place(tensor, tensor.untyped_storage(), layout)
    return tensor


def _write(found: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    derived = found.derived
    assert derived is not None
    given = dict(zip(found.names, args, strict=False)) | kwargs
    targets = [given[name] for name in derived.written]
    tensors: list[torch.Tensor] = tree_leaves(targets)
    if any(isinstance(tensor, torch.Tensor) and tensor.is_cpu for tensor in tensors):
        raise two_devices(found.op)
    made = Call(found, args, kwargs)
    if found.foreach:
        if overlap.in_turn(tensors, made.tensors):
            with torch.no_grad():
                found.op._op_dk(number.EACH, *args, **kwargs)
            return None
        # torch leaves that to the operators it would take this one apart into.
        torch.autograd.graph.increment_version(t for t in tensors if not t.is_inference())
    known = _known.get(made.key) or _remember(made.key, _know_write(made, tensors))
    shared = overlap.partial(tensors, made.tensors)
    if shared:
        raise_as_eager(found.op, args, kwargs)
    if known.apart or shared:  # eager's order of reading and writing counts
        raise NoMetaKernel
    if derived.outs:
        inputs = {name: arg for name, arg in kwargs.items() if name not in derived.outs}
        made = Call(operator(derived.functional), args, inputs)
    step = _step(known.recipe, made)
    for i, (tensor, resized) in enumerate(zip(tensors, known.results, strict=True)):
        kind = known.recipe.kinds[i]
        assert kind is not None
        if resized is not None:
            native.resize(tensor, *resized)
        storage.write(tensor, Value(*kind, None, step, i))
    returns = [r.alias_info for r in found.op._schema.returns]
    if not returns:
        return None
    return targets[0] if len(returns) == 1 else tuple(targets)


def _know_write(made: Call, tensors: list[torch.Tensor]) -> _Known:
    op, args, kwargs = made.operator.op, made.args, made.kwargs
    derived = made.operator.derived
    assert derived is not None
    if not derived.outs and any(t is None for t in tensors):
        raise NoMetaKernel
    mirrors = {id(t): _meta_like(t) for t in tensors}
    call_args, call_kwargs = tree_map(lambda a: mirrors.get(id(a), a), (args, kwargs))
    infer(op, call_args, call_kwargs, (args, kwargs))  # eager's checks; resizes out tensors
    results: list[Any] = [mirrors[id(t)] for t in tensors]
    if derived.outs and not derived.factory:
        plain = {name: arg for name, arg in kwargs.items() if name not in derived.outs}
        results = tree_leaves(infer(derived.functional, args, plain))
        if [result.dtype for result in results] != [tensor.dtype for tensor in tensors]:
            raise_as_eager(op, args, kwargs)  # whether that is allowed differs
    apart = any(overlap.internal(tensor) for tensor in tensors)
    target = tensors[0].dtype
    grows = not derived.outs and _outgrows(made, derived.functional, target)
    if apart or grows or _narrows(target, (args, kwargs)):
        raise_as_eager(op, args, kwargs)  # meta kernels don't mind
    wanted = [mirrors[id(t)] for t in tensors]
    inputs = {k: v for k, v in kwargs.items() if k not in derived.outs}
    template_args, template_kwargs = (
        Call(operator(derived.functional), args, inputs) if derived.outs else made
    ).template()
    if derived.factory:
        template_kwargs |= {"dtype": tensors[0].dtype, "device": torch.device("cpu")}
    kinds = tuple((tuple(mirror.shape), mirror.dtype) for mirror in wanted)
    recipe = Recipe(derived.functional, template_args, template_kwargs, kinds, volatile=True)
    changed = [  # strides of the plain form: eager's, where meta kernels with out= give row-major
        (tuple(mirror.shape), result.stride()) if mirror.shape != tensor.shape else None
        for mirror, tensor, result in zip(wanted, tensors, results, strict=True)
    ]
    return _Known(recipe, changed, None, apart)


def _narrows(target: torch.dtype, args: Any) -> bool:
    """Whether arguments are of a wider kind (integer, real, complex) than what is written."""

    def wider(arg: Any) -> bool:
        if isinstance(arg, torch.Tensor):
            return not torch.can_cast(arg.dtype, target)
        return isinstance(arg, float | complex) and not torch.can_cast(
            torch.complex64 if isinstance(arg, complex) else torch.float32, target
        )

    return any(map(wider, tree_leaves(args)))


def _outgrows(made: Call, functional: OpOverload, target: torch.dtype) -> bool:
    """Whether a pointwise result is of a wider kind than what is written."""
    if target.is_floating_point or torch.Tag.pointwise not in functional.tags:
        return False
    result = infer(functional, made.args, made.kwargs)
    return isinstance(result, torch.Tensor) and not torch.can_cast(result.dtype, target)


def _meta_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


_WHOLE = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten.embedding.default,
)
"""Operators with a kernel for all devices that would take them apart before we see them."""


def _hide_from_dynamo() -> None:
    """After a graph break Dynamo compiles whatever is called, ours and jax's code too: skip it."""
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for function in (call, flush):
        frames.set_code_exec_strategy(function.__code__, skip)


def install() -> list[torch.library.Library]:
    """Make `call` the kernel of the device; return what must be kept alive.

    Structured operators have a kernel for all devices that calls their out= form, and those on
    lists one that loops; they are registered one by one so that they arrive whole. So are those of
    SPECIAL: torch.tensor sets dispatch modes aside, and then torch can't call a fallback.
    """
    _hide_from_dynamo()
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(call, "PrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    for op in {*_WHOLE, *SPECIAL, *_whole()}:
        own.impl(op, functools.partial(call, op), "PrivateUse1")
    for key in ("Conjugate", "Negative"):
        # torch resolves such a tensor by copying it: without this, by calling itself for ever.
        own.impl("_copy_from", torch.library.fallthrough_kernel, key)
    return [everything, own, *take_own_operators(call)]


def _whole() -> list[OpOverload]:
    """Return the operators of torch's that would arrive taken apart."""
    has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        base, _, overload = name.partition(".")
        on_lists = base.startswith("aten::_foreach_")
        structured = has_kernel(name, "CompositeExplicitAutogradNonFunctional")
        # Of a number they would make a tensor, which doesn't say any more that it is a number.
        of_number = "Scalar" in overload and "out" not in overload
        of_number = of_number and has_kernel(name, "CompositeExplicitAutograd")
        if on_lists or structured or of_number:
            found.append(overload_named(name))
    return found
