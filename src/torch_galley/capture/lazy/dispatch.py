"""Every operator call on the device arrives here and is recorded, or run where it must be.

Autograd, views' bookkeeping and composite operators are torch's own, above this level. What
arrives is a view, an operator that writes, a random draw, or a function of its arguments.
"""

from __future__ import annotations

import functools
import threading
from enum import Enum, auto
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from torch_galley.capture.lazy import native, storage
from torch_galley.capture.lazy.flush import count_recorded, lock
from torch_galley.capture.lazy.infer import NoMetaKernel, infer, raise_as_eager
from torch_galley.capture.lazy.special import SPECIAL
from torch_galley.capture.lazy.trace import Step, Value
from torch_galley.core.errors import CaptureError
from torch_galley.ops.derive import Derived, derive

aten = torch.ops.aten


class _Form(Enum):
    VIEW = auto()
    WRITE = auto()
    NATIVE = auto()
    FUNCTION = auto()


@cache
def _form(op: OpOverload) -> _Form:
    schema = op._schema
    dynamic = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    if torch.Tag.nondeterministic_seeded in op.tags or any(tag in op.tags for tag in dynamic):
        return _Form.NATIVE
    if any(a.alias_info and a.alias_info.is_write for a in schema.arguments):
        return _Form.WRITE
    if any(r.alias_info and not r.alias_info.is_write for r in schema.returns):
        return _Form.VIEW
    return _Form.FUNCTION


class _Thread(threading.local):
    ready = False


_thread = _Thread()
_in_child = False


def after_fork() -> None:
    """Note that this process is a fork's child, where XLA's threads don't exist."""
    global _in_child
    _in_child = True


def enter_thread() -> None:
    """Make backward run in the calling thread.

    Autograd's own worker may outlive the interpreter's end and abort the process; in the calling
    thread, the user's frames and settings are at hand as well.
    """
    _thread.ready = True
    torch._C._set_multithreading_enabled(False)  # type: ignore[attr-defined]


def call(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Record or run one operator call: the kernel of every operator of the device."""
    if not _thread.ready:
        enter_thread()
    if _in_child:
        raise CaptureError(
            f"{op} on an xla tensor in a forked process",
            hint="start the process with the 'spawn' method, or keep its tensors on the CPU",
        )
    op, args = _with_numbers(op, args)
    with lock:
        special = SPECIAL.get(op)
        if special is not None:
            return special(*args, **kwargs)
        form = _form(op)
        try:
            if form is _Form.VIEW:
                return _view(op, args, kwargs)
            if form is _Form.FUNCTION:
                return _function(op, args, kwargs)
            if form is _Form.WRITE and (derived := derive(op)) is not None:
                return _write(op, derived, args, kwargs)
        except NoMetaKernel:
            pass
        return native.run(op, args, kwargs)


def _with_numbers(op: OpOverload, args: tuple[Any, ...]) -> tuple[OpOverload, tuple[Any, ...]]:
    """Give a number where the schema wants a tensor a form that the operator takes again.

    torch wraps it in a tensor on the way to us and unwraps it at the door; the way back is open
    to add and its kin only.
    """
    wanting = [
        i
        for i, (arg, argument) in enumerate(zip(args, op._schema.arguments, strict=False))
        if isinstance(arg, int | float | complex) and str(argument.type) == "Tensor"
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
    default = {float: torch.get_default_dtype(), complex: torch.get_default_dtype().to_complex()}
    numbers = list(args)
    for i in wanting:
        dtype = default.get(type(args[i]))
        numbers[i] = torch.tensor(args[i], dtype=dtype, device="cpu")
    return op, tuple(numbers)


def _operand(arg: Any) -> Any:
    """Return what a step keeps of an argument."""
    if isinstance(arg, torch.Tensor):
        if arg.device.type == "xla":
            return storage.read(arg)
        return Value.ready(arg.detach().clone())  # the caller may write it later
    if isinstance(arg, torch.device):
        return torch.device("cpu")
    return arg


def _record(
    op: OpOverload, args: Any, kwargs: dict[str, Any], leaves: list[Any]
) -> list[Value | None]:
    """Record a step whose results are like `leaves`, and return them."""
    kwargs = {name: arg for name, arg in kwargs.items() if name != "pin_memory"}
    args, kwargs = tree_map(_operand, (tuple(args), kwargs))
    kinds = tuple(
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else None
        for leaf in leaves
    )
    step = Step(op, args, kwargs, kinds)
    count_recorded()
    return [
        Value(*kind, step=step, index=i) if kind is not None else None
        for i, kind in enumerate(kinds)
    ]


def _function(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    shapes = infer(op, args, kwargs)
    leaves, spec = tree_flatten(shapes)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise NoMetaKernel  # a number or nothing: it has to be run
    values = _record(op, args, kwargs, leaves)
    held = [
        storage.hold(value, tuple(leaf.stride())) if value is not None else leaf
        for value, leaf in zip(values, leaves, strict=True)
    ]
    return tree_unflatten(held, spec)


def _view(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    base = args[0]
    mirror = _mirror(base)
    shapes = infer(op, (mirror, *args[1:]), kwargs)

    def alias(shape: Any) -> Any:
        if not isinstance(shape, torch.Tensor):
            return shape
        layout = (tuple(shape.shape), tuple(shape.stride()), int(shape.storage_offset()))
        return storage.alias(base, shape.dtype, *layout)

    return tree_map(alias, shapes)


def _mirror(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor that lies on its storage as `tensor` does on its."""
    count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    memory = torch.empty(count, dtype=tensor.dtype, device="meta")
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _write(op: OpOverload, derived: Derived, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    targets = [given[name] for name in derived.written]
    tensors: list[torch.Tensor] = tree_leaves(targets)
    mirrors = {id(t): _meta_like(t) for t in tensors}
    call_args, call_kwargs = tree_map(lambda a: mirrors.get(id(a), a), (args, kwargs))
    infer(op, call_args, call_kwargs)  # eager's checks; resizes the mirrors of out tensors
    if _narrows(tensors[0].dtype, args):
        raise_as_eager(op, args, kwargs)  # meta kernels don't mind
    if not derived.outs and any(t is None for t in tensors):
        raise NoMetaKernel
    wanted = [mirrors[id(t)] for t in tensors]
    inputs = {k: v for k, v in kwargs.items() if k not in derived.outs}
    if derived.factory:
        inputs |= {"dtype": tensors[0].dtype, "device": torch.device("cpu")}
    values = _record(derived.functional, args, inputs, wanted)
    for tensor, mirror, value in zip(tensors, wanted, values, strict=True):
        assert value is not None
        if tensor.shape != mirror.shape:
            native.resize(tensor, tuple(mirror.shape))
        storage.write(tensor, value)
    returns = [r.alias_info for r in op._schema.returns]
    if not returns:
        return None
    return targets[0] if len(returns) == 1 else tuple(targets)


def _narrows(target: torch.dtype, args: tuple[Any, ...]) -> bool:
    """Whether arguments are of a wider kind (integer, real, complex) than what is written."""

    def wider(arg: Any) -> bool:
        if isinstance(arg, torch.Tensor):
            return not torch.can_cast(arg.dtype, target)
        return isinstance(arg, float | complex) and not torch.can_cast(
            torch.complex64 if isinstance(arg, complex) else torch.float32, target
        )

    return any(map(wider, tree_leaves(args)))


def _meta_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


_WHOLE = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.native_layer_norm.default,
    aten.embedding.default,
)
"""Operators with a kernel for all devices that would take them apart before we see them."""


def install() -> list[torch.library.Library]:
    """Make `call` the kernel of the device; return what must be kept alive.

    Structured operators have a kernel for all devices that calls their out= form; they are
    registered one by one so that they arrive as functions.
    """
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(call, "PrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    for op in [*_structured(), *_WHOLE, *SPECIAL]:
        if op is not aten._copy_from.default and op is not aten._local_scalar_dense.default:
            own.impl(op, functools.partial(call, op), "PrivateUse1")
    for key in ("Conjugate", "Negative"):
        # torch resolves such a tensor by copying it: without this, by calling itself for ever.
        own.impl("_copy_from", torch.library.fallthrough_kernel, key)
    autocast = torch.library.Library("_", "IMPL")
    autocast.fallback(_no_autocast, "AutocastPrivateUse1")
    return [everything, own, autocast]


def _structured() -> list[OpOverload]:
    key = "CompositeExplicitAutogradNonFunctional"
    known = set(torch._C._dispatch_get_all_op_names())
    found = []
    for name in dir(aten):
        packet = getattr(aten, name)
        if not isinstance(packet, OpOverloadPacket):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if (
                op.name() in known
                and op not in SPECIAL
                and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
            ):
                found.append(op)
    return found


def _no_autocast(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    raise CaptureError(
        "autocast on the xla device isn't built yet",
        hint="cast the model with .to(torch.bfloat16), or use torch.compile(backend='galley')",
    )
