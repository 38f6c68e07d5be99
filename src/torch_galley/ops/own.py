"""Lowerings of users' own operators: `torch_galley.lowers`."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from torch_galley.core.errors import ConfigError, LoweringError
from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops import registry
from torch_galley.ops.schema import written_by

Operator = OpOverload | OpOverloadPacket | CustomOpDef
Condition = Callable[..., Reason | str | bool | None]

GUIDE = "docs/extending.md"


def lowers(
    op: Operator, *, when: Condition | None = None, replace: bool = False
) -> Callable[[Callable[..., Any] | None], Any]:
    """Register a jax function as what XLA is given for an operator.

    The function takes the operator's arguments, all of them: tensors as jax arrays of the same
    shape and dtype, numbers and lists as they are, those by position under any name, keyword-only
    ones under theirs. It returns an array for each result, of the very shape and dtype that the
    operator's fake rule says. Gradients are torch's: those that `register_autograd` gives, whose
    operators are lowered likewise.

    The same function defined anew replaces the former; programs that were compiled with that one
    are compiled anew at their next call. None withdraws it: the operator runs natively again.

    Example:
        >>> import jax.numpy as jnp, torch, torch_galley
        >>> @torch.library.custom_op("guide::double", mutates_args=())
        ... def double(x: torch.Tensor) -> torch.Tensor:
        ...     return x * 2
        >>> @double.register_fake
        ... def _(x):
        ...     return torch.empty_like(x)
        >>> @torch_galley.lowers(double)
        ... def double_in_xla(x):
        ...     return jnp.multiply(x, 2)
        >>> torch_galley.lowers(double)(None)

    Args:
        op: an overload (`torch.ops.guide.double.default`), an operator of one overload
            (`torch.ops.guide.double`), or what `torch.library.custom_op` gave.
        when: called with the same arguments, tensors being fake. True or None: they are taken.
            False, or a sentence that says why, keeps this call native.
        replace: whether to take the place of another function, or of torch-galley's own lowering.

    Raises:
        ConfigError: `op` is none of these, has several overloads, writes its arguments, returns a
            view, or has another lowering; or the function can't be called with its arguments.
        LoweringError: later, when a model is compiled: the function or `when` raised, or gave
            another shape or dtype than the fake rule.
    """
    overload = overload_of(op)

    def register(function: Callable[..., Any] | None) -> Any:
        if function is None:
            registry.set_users(overload, None, None, "")
            return None
        _refuse(overload)
        _check_callable(overload, function, "the lowering")
        if not replace:
            _check_free(overload, function)
        condition = None
        if when is not None:
            _check_callable(overload, when, "when=")
            condition = _asked(overload, when)
        registry.set_users(overload, _called(overload, function), condition, digest(function))
        return function

    return register


def overload_of(op: Any) -> OpOverload:
    """Return the overload that an operator, or an object that stands for it, means.

    Raises:
        ConfigError: it is no operator, or has several.
    """
    if isinstance(op, OpOverload):
        return op
    if isinstance(op, CustomOpDef):
        return op._opoverload
    if isinstance(op, OpOverloadPacket):
        names = op.overloads()
        if len(names) == 1:
            return getattr(op, names[0])
        listed = ", ".join(f"torch.ops.{op}.{name}" for name in names)
        raise ConfigError(f"{op} has {len(names)} overloads", hint=f"name one of {listed}")
    raise ConfigError(
        f"{op!r} is no operator of torch's",
        hint="give what torch.library.custom_op returned, or torch.ops.NAMESPACE.NAME.default",
    )


def _refuse(overload: OpOverload) -> None:
    """Raise if no function could stand for an operator in XLA."""
    schema = overload._schema
    if written := written_by(overload):
        raise ConfigError(
            f"{overload} writes its argument {' and '.join(written)}, and XLA has functions only",
            hint="lower an operator that returns what this one writes, and copy_() it there; "
            "without a lowering it runs natively",
        )
    if any(r.alias_info is not None for r in schema.returns):
        raise ConfigError(
            f"{overload} returns a view of its argument",
            hint="lower an operator that returns new memory; without a lowering it runs natively",
        )
    if not schema.returns:
        raise ConfigError(f"{overload} returns nothing that XLA could compute")
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    if registry.lookup(overload) is None and overload.has_kernel_for_dispatch_key(implicit):
        raise ConfigError(
            f"{overload} is taken apart by torch (CompositeImplicitAutograd) before XLA sees it",
            hint="lower what it is made of, or define it with torch.library.custom_op",
        )


def _check_callable(overload: OpOverload, function: Callable[..., Any], what: str) -> None:
    name = getattr(function, "__name__", repr(function))
    arguments = overload._schema.arguments
    wanted = [a.name for a in arguments]
    takes = f"{what} {name} of {overload}"
    if not callable(function):
        raise ConfigError(f"{takes} is a {type(function).__name__}, not a function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are made in C have none
        return
    hint = f"the schema is {overload._schema}"
    positional = [a.name for a in arguments if not a.kwarg_only]
    named = {a.name: None for a in arguments if a.kwarg_only}
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise ConfigError(
            f"{takes} can't be called with ({', '.join(wanted)}): {error}", hint=hint
        ) from None
    for parameter, argument in bound.arguments.items():
        own = parameter.rstrip("_")
        if isinstance(argument, str) and own != argument and own in wanted:
            raise ConfigError(
                f"{takes} calls {own} what the schema calls {argument}: are they in order?",
                hint=hint,
            )


def _check_free(overload: OpOverload, function: Callable[..., Any]) -> None:
    present = registry.lookup(overload)
    if present is None:
        return
    if not present.revision:
        raise ConfigError(
            f"torch-galley has a lowering of {overload}",
            hint="replace=True puts yours in its place",
        )
    old = inspect.unwrap(present.function)
    if _called_so(old) != _called_so(inspect.unwrap(function)):
        raise ConfigError(
            f"{overload} has a lowering already, {old.__name__} at {place_of(old)}",
            hint="replace=True puts this one in its place; a function of the same name needs none",
        )


def _called_so(function: Callable[..., Any]) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", "")


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined: "file.py:12"; "C code" where Python can't tell."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "C code"


def whole(overload: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return all arguments of a call, defaults too: those by position, and keyword-only ones."""
    positional, named = list(args), {}
    for place, argument in enumerate(overload._schema.arguments):
        if argument.kwarg_only:
            named[argument.name] = kwargs.get(argument.name, argument.default_value)
        elif place >= len(args):
            positional.append(kwargs.get(argument.name, argument.default_value))
    return positional, named


def _called(overload: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as the driver calls it: a graph leaves out what is the default."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        positional, named = whole(overload, args, kwargs)
        return function(*positional, **named)

    return call


def _asked(overload: OpOverload, when: Condition) -> registry.When:
    """Return a user's condition in the form of ours."""

    @functools.wraps(when)
    def condition(*args: Any, **kwargs: Any) -> Reason | None:
        positional, named = whole(overload, args, kwargs)
        try:
            said = when(*positional, **named)
        except Exception as error:
            raise failed(overload, when, error, "when= of") from error
        if said is None or said is True or isinstance(said, Reason):
            return None if said is True else said
        if said is False:
            return ArgumentForm(str(overload), "its lowering takes no such arguments")
        if isinstance(said, str):
            return ArgumentForm(str(overload), said)
        raise ConfigError(
            f"when= of {overload} gave {said!r}",
            hint="give True or None for arguments that are taken, else False or a sentence",
        )

    return condition


def failed(
    overload: OpOverload,
    function: Callable[..., Any],
    error: BaseException | str,
    what: str = "the lowering of",
    **facts: Any,
) -> LoweringError:
    """Return the error for a user's function that raised, or whose results were wrong.

    Args:
        overload: the operator.
        function: the user's.
        error: what it raised, or a sentence about its results.
        what: which of the operator's functions it is.
        facts: what the error is to know besides, such as the node and its site.
    """
    function = inspect.unwrap(function)
    name = getattr(function, "__name__", repr(function))
    where = place_of(function)
    if isinstance(error, BaseException):
        where = _line(function, error) or where
        told = str(error).strip().splitlines()
        error = f"{type(error).__name__}: {told[0]}" if told else type(error).__name__
    return LoweringError(
        f"{what} {overload} failed: {error}\n  in {name}, {where}",
        hint="mend it; refuse such arguments with when=; or withdraw it with "
        f"torch_galley.lowers(op)(None), and the operator runs natively ({GUIDE})",
        op=str(overload),
        users=True,
        **facts,
    )


def _line(function: Callable[..., Any], error: BaseException) -> str | None:
    """Return the innermost line of the user's file that an error came through."""
    code, found, trace = getattr(function, "__code__", None), None, error.__traceback__
    while trace is not None and code is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            found = f"{code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def digest(function: Callable[..., Any]) -> str:
    """Return what stands for a function's source, the same in every process."""
    function = inspect.unwrap(function)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = repr((code.co_code, code.co_names)) if code else repr(_called_so(function))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
