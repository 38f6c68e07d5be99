"""`torch_galley.custom_call`: an operator that XLA calls, in Python or in a compiled library."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_unflatten

from torch_galley.core.errors import ConfigError
from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops import registry
from torch_galley.ops.calls import Arguments, Call, Function, results_of, run_python, to_python
from torch_galley.ops.declared import check_function, check_name, schema_of
from torch_galley.ops.handlers import is_handler, run_alone, to_handler
from torch_galley.ops.own import digest, overload_of


def custom_call(
    name: str,
    target: Any = None,
    *,
    shape: Function,
    backward: Function | None = None,
    schema: str | None = None,
) -> Any:
    """Define an operator that XLA calls from inside its programs.

    What comes back is an operator of torch.library's, for eager too; further rules (of autocast,
    of vmap, another backward) are registered with its own methods. Without `target` it is a
    decorator.

    Example:
        >>> import torch, torch_galley
        >>> from torch import Tensor
        >>> def scale(x: Tensor, by: float) -> Tensor:
        ...     return torch.from_numpy(x.numpy() * by)
        >>> scaled = torch_galley.custom_call(
        ...     "guide::scaled",
        ...     scale,
        ...     shape=lambda x, by: torch.empty_like(x),
        ...     backward=lambda grad, x, by: grad * by,
        ... )
        >>> scaled(torch.ones(2), 3.0)
        tensor([3., 3.])

    Args:
        name: "namespace::name".
        target: a Python function of tensors, called with CPU tensors of its own, that returns new
            ones; or a handler of XLA's FFI, as a PyCapsule or a function of ctypes. A handler gets
            the tensors as buffers, in order, and all else as attributes of the schema's names:
            int64, double, bool, text, arrays of numbers (not empty: XLA has none such).
        shape: the fake rule: called with the operator's arguments, tensors without data, it
            returns tensors (`torch.empty_like(x)`) of the results' shapes and dtypes.
        backward: called with a gradient for each result, then the operator's arguments; returns a
            gradient for each tensor argument, or None for one that has none. It is made of
            torch's operators, which are compiled like any others.
        schema: "(Tensor x, float by) -> Tensor", where the annotations of `target`, or of `shape`,
            don't say it.

    Raises:
        ConfigError: no such name can be given, `target` is none of these, or there is no schema.
        RunError: at a call, if the function gives other shapes or dtypes than `shape` says. What
            it raises itself arrives as it is.
    """
    check_name(name)
    check_function(name, "shape=", shape, "give the fake rule: shape=lambda x: torch.empty_like(x)")
    if backward is not None:
        hint = "give a function of the gradients and the arguments, or leave it out"
        check_function(name, "backward=", backward, hint)
    if target is None:
        return lambda function: custom_call(
            name, function, shape=shape, backward=backward, schema=schema
        )
    handler = is_handler(target)
    if not handler and not callable(target):
        raise ConfigError(
            f"{name} can't be made of a {type(target).__name__}",
            hint="give a Python function, or a handler of XLA's FFI (PyCapsule, ctypes function)",
        )
    told = shape if handler else target
    schema = schema_of(name, schema, [shape] if handler else [target, shape], handler)
    emit = to_handler(name, target) if handler else to_python(name, target)

    @functools.wraps(told)
    def lowering(*args: Any, **kwargs: Any) -> Any:
        arguments, arrays = Arguments.of(overload, args, kwargs)
        likes, spec = results_of(overload, shape, arguments, arrays)
        return tree_unflatten(emit(Call(overload, arguments, arrays, likes)), spec)

    def eager(*args: Any, **kwargs: Any) -> Any:
        arguments, tensors = Arguments.of(overload, args, kwargs)
        if handler:
            return run_alone(overload, lowering, arguments, tensors)
        return run_python(overload, arguments, target, tensors)

    def fake(*args: Any, **kwargs: Any) -> Any:
        arguments, tensors = Arguments.of(overload, args, kwargs)
        return arguments.call(shape, tensors)

    former = OPDEFS.get(name)
    kinds = "cpu" if handler else None
    try:
        op = torch.library.custom_op(
            name, eager, mutates_args=(), device_types=kinds, schema=schema
        )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"torch does not take {name}{schema}: {str(error).strip().splitlines()[0]}",
            hint="custom calls take and return tensors, and write none of their arguments",
        ) from error
    overload = overload_of(op)
    op.register_fake(fake)
    if backward is not None:
        _differentiable(op, overload, backward)
    registry.set_users(overload, lowering, _on_cpu(overload), digest(told))
    if former is not None:
        _succeed(former, op)
    return op


_formers: dict[str, list[tuple[CustomOpDef, OpOverload]]] = {}
"""By name, the definitions that there were before the present one."""


def _succeed(former: CustomOpDef, op: CustomOpDef) -> None:
    """Make all handles of former definitions of a name mean the present one.

    torch leaves them as they are, pointing to a record of its dispatcher that it has freed. What
    was compiled with them is traced anew: with the function, its shape rule and its gradient may
    be others, too.
    """
    formers = _formers.setdefault(op._qualname, [])
    formers.append((former, former._opoverload))
    present = registry.users_lowering(op._opoverload)
    assert present is not None
    for definition, overload in formers:
        definition._opoverload = op._opoverload
        registry.set_users(overload, None, None, "")  # now: what it is hashed by changes
        vars(overload).update(vars(op._opoverload))
        registry.set_users(overload, present.function, present.when, present.digest)
    torch._dynamo.reset()


def _on_cpu(overload: OpOverload) -> registry.When:
    def on_cpu(*args: Any, **kwargs: Any) -> Reason | None:
        """Tensors on the CPU."""
        leaves = tree_leaves((args, kwargs))
        if all(leaf.device.type == "cpu" for leaf in leaves if isinstance(leaf, torch.Tensor)):
            return None
        return ArgumentForm(str(overload), "custom calls run on the CPU only")

    return on_cpu


def _differentiable(op: CustomOpDef, overload: OpOverload, backward: Function) -> None:
    """Register a gradient rule that is given an operator's arguments."""
    tensors = ["Tensor" in str(a.type) for a in overload._schema.arguments if not a.kwarg_only]

    def setup(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        ctx.arguments, given = Arguments.of(overload, inputs, keyword_only_inputs or {})
        ctx.save_for_backward(*given)

    def apply(ctx: Any, *grads: Any) -> Any:
        made = ctx.arguments.call(functools.partial(backward, *grads), ctx.saved_tensors)
        found = list(made) if isinstance(made, tuple) else [made]
        if len(found) != sum(tensors):
            gave = "a list" if isinstance(made, list) else f"{len(found)} gradients"
            raise ConfigError(
                f"backward of {overload} gave {gave}, "
                f"and there are {sum(tensors)} tensor arguments",
                hint="return a tuple with one for each, None where there is none",
            )
        rest = iter(found)
        return tuple(next(rest) if tensor else None for tensor in tensors)

    op.register_autograd(apply, setup_context=setup)
