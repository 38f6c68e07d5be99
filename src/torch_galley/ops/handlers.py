"""Handlers of XLA's FFI as operators: in XLA's programs, and run alone for eager."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from torch_galley.core.errors import ConfigError, RunError
from torch_galley.core.spec import wide_types
from torch_galley.ops.calls import Arguments, Call, Emit, Function, check_dtypes


def is_handler(target: Any) -> bool:
    """Whether something is a handler of XLA's FFI: a PyCapsule, or a function of ctypes."""
    function: type = ctypes._CFuncPtr  # type: ignore[attr-defined]  # public under no name
    return isinstance(target, function) or _is_capsule(target)


def _is_capsule(target: Any) -> bool:
    return type(target).__name__ == "PyCapsule"  # Python has no other name for the class


_HANDLERS = (None, b"xla._CUSTOM_CALL_TARGET")
"""Names of capsules that jax.ffi.pycapsule, and jaxlib's own modules, give to handlers."""


def _capsule_name(capsule: Any) -> bytes | None:
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return name_of(capsule)


_targets: Counter[str] = Counter()


def to_handler(name: str, target: Any) -> Emit:
    """Make a handler known to XLA, and return what makes a call of it.

    Raises:
        ConfigError: it is a PyCapsule of something else.
    """
    if _is_capsule(target) and (kind := _capsule_name(target)) not in _HANDLERS:
        raise ConfigError(
            f"{name} can't be made of a PyCapsule of {(kind or b'').decode()!r}: handlers of XLA's "
            "FFI have no name",
            hint="give the function of ctypes, or jax.ffi.pycapsule(function)",
        )
    _targets[name] += 1
    number = _targets[name]
    unique = f"{name}#{number}" if number > 1 else name  # XLA takes no name twice
    capsule = target if _is_capsule(target) else jax.ffi.pycapsule(target)
    jax.ffi.register_ffi_target(unique, capsule, platform="cpu")

    def emit(call: Call) -> Sequence[jax.Array]:
        args, kwargs = call.arguments.call(lambda *args, **kwargs: (args, kwargs), call.arrays)
        attributes = {}
        for place, argument in enumerate(call.overload._schema.arguments):
            value = kwargs[argument.name] if argument.kwarg_only else args[place]
            if "Tensor" not in str(argument.type) and value is not None:
                attributes[argument.name] = _attribute(call.overload, argument.name, value)
        return jax.ffi.ffi_call(unique, tuple(call.likes))(*call.arrays, **attributes)

    return emit


def _attribute(overload: OpOverload, name: str, value: Any) -> Any:
    """Return an argument as C knows it: int64, double, bool, text, arrays of the first two.

    Raises:
        ConfigError: XLA has no such attributes.
    """
    if isinstance(value, str | bool):
        return value
    several = isinstance(value, list | tuple)
    numbers = list(value) if several else [value]
    kinds = set(map(type, numbers))
    if not kinds or kinds - {int, float} or any(abs(n) >= 2**63 for n in numbers if type(n) is int):
        raise ConfigError(
            f"{overload} was given {name}={value!r}, and a handler of XLA's FFI has no such "
            "attributes",
            hint="pass numbers (int64 or double, no complex), bool, text, or a list of numbers "
            "that is not empty; a tensor holds anything else",
        )
    array = np.asarray(numbers, np.float64 if float in kinds else np.int64)
    return array if several else array[0]


def run_alone(
    overload: OpOverload, lowering: Function, arguments: Arguments, tensors: Sequence[torch.Tensor]
) -> Any:
    """Run an operator in a program of its own, through public jax: what eager calls.

    Raises:
        ConfigError: a tensor is of a dtype that XLA isn't given.
        RunError: the handler says that it failed, or takes other buffers or attributes.
    """
    check_dtypes(overload, tensors)
    program = _program(lowering, arguments)
    dense = [tensor.detach().resolve_conj().resolve_neg().contiguous() for tensor in tensors]
    try:
        with wide_types(), jax.default_device(jax.devices("cpu")[0]):
            return tree_map(torch.from_dlpack, program(*map(jax.dlpack.from_dlpack, dense)))
    except jax.errors.JaxRuntimeError as error:
        raise RunError(
            f"{overload} failed: {str(error).strip().splitlines()[0]}",
            hint="a handler gets the schema's tensors as buffers, in order, and all else as "
            "attributes of the schema's names (docs/extending.md)",
        ) from error


@lru_cache(maxsize=256)
def _program(lowering: Function, arguments: Arguments) -> Function:
    return jax.jit(lambda *arrays: arguments.call(lowering, arrays))
