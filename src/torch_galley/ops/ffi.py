"""Python called from inside an XLA program: a handler of XLA's FFI, written with ctypes.

What XLA hands to such a handler is laid down in xla/ffi/api/c_api.h, which jaxlib ships and which
promises not to change without notice. jax's own callbacks would need a client of jax's, and bring
each argument to a device first, which can wait for the very thread that called.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any

import jax
import numpy as np
import torch

from torch_galley.core.lock import fork_safe_lock

Call = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Reads tensors and writes tensors. It must keep none of the latter: XLA owns their memory."""

TARGET = "torch_galley_call"
"""Under which XLA knows the handler."""

_VERSION = (0, 3)
"""Of the interface that is written down here."""
_METADATA, _SCALAR, _INTERNAL = 1, 3, 13
"""XLA_FFI_Extension_Metadata, XLA_FFI_AttrType_SCALAR, XLA_FFI_Error_Code_INTERNAL."""

_DTYPE = {
    1: torch.bool,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.uint8,
    10: torch.float16,
    11: torch.float32,
    12: torch.float64,
    15: torch.complex64,
    16: torch.bfloat16,
    18: torch.complex128,
}
"""By XLA_FFI_DataType."""


class _Extension(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


_HEAD = [("size", c_size_t), ("extension", POINTER(_Extension))]


class _Version(ctypes.Structure):
    _fields_ = [*_HEAD, ("major", c_int), ("minor", c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("items", POINTER(POINTER(_Buffer))),
    ]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("value", POINTER(c_int64))]


class _Attributes(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", c_void_p),
        ("items", POINTER(POINTER(_Scalar))),
    ]


class _Error(ctypes.Structure):
    _fields_ = [*_HEAD, ("message", c_char_p), ("code", c_int)]


class _Api(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("version", _Version),
        ("internal", c_void_p),
        ("error", ctypes.CFUNCTYPE(c_void_p, POINTER(_Error))),
    ]


class _Frame(ctypes.Structure):
    _fields_ = [
        *_HEAD,
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


_calls: list[Call] = []
"""By number. Never emptied: an executable that has the number may live as long as the process."""
_numbers: dict[Any, int] = {}
_numbering = fork_safe_lock()

_KEPT = 8
_raised: dict[int, BaseException] = {}
"""What calls raised and nobody has asked for, the last few: an exception keeps frames alive."""
_tokens = itertools.count(1)


def number_of(key: Any, call: Call) -> int:
    """Return the number of the call that was first given for a key."""
    register()
    with _numbering:
        if key not in _numbers:
            _calls.append(call)
            _numbers[key] = len(_calls) - 1
        return _numbers[key]


def call(
    number: int, name: str, arrays: Sequence[jax.Array], results: Sequence[jax.ShapeDtypeStruct]
) -> list[jax.Array]:
    """Return the results of a call as traced values; `name` is for who reads the program."""
    made = jax.ffi.ffi_call(TARGET, tuple(results))(*arrays, call=np.int64(number), op=name)
    return list(made)


@cache
def register() -> None:
    """Make the handler known to XLA."""
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="cpu")


def raised_by_call(error: BaseException) -> BaseException | None:
    """Return what a call raised, given the error that XLA made of it. Only once."""
    found = re.search(r"torch_galley_raised_(\d+):", str(error))
    return _raised.pop(int(found[1]), None) if found else None


@ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
def _handler(frame: Any) -> int | None:
    frame = frame.contents
    if frame.extension:
        return _tell(frame.extension)
    try:
        attributes = frame.attributes
        scalars = [attributes.items[i].contents for i in range(attributes.count)
                   if attributes.types[i] == _SCALAR]  # fmt: skip
        function = _calls[scalars[0].value[0]]
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            # Copies: a function may keep what it is given, and this memory is XLA's.
            given = [tensor.clone() for tensor in _tensors(frame.arguments)]
            results = _tensors(frame.results)
        function(given, results)
    except BaseException as error:  # Ctrl-C too: nothing may pass through XLA
        token = next(_tokens)
        _raised[token] = error
        while len(_raised) > _KEPT:
            _raised.pop(next(iter(_raised)), None)
        text = f"torch_galley_raised_{token}: {type(error).__name__}"
        said = _Error(ctypes.sizeof(_Error), None, text.encode(), _INTERNAL)
        return frame.api.contents.error(ctypes.byref(said))
    return None


def _tell(extension: Any) -> None:
    """Answer XLA's question which version of the interface this is."""
    if extension.contents.type == _METADATA:
        asked = ctypes.cast(extension, POINTER(_MetadataExtension)).contents
        version = asked.metadata.contents.version
        version.major, version.minor = _VERSION


def _tensors(buffers: _Buffers) -> list[torch.Tensor]:
    return [_tensor(buffers.items[i].contents) for i in range(buffers.count)]


def _tensor(buffer: _Buffer) -> torch.Tensor:
    """Return a view of XLA's memory, dense and row-major."""
    shape, dtype = tuple(buffer.dims[: buffer.rank]), _DTYPE[buffer.dtype]
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = (c_char * (count * dtype.itemsize)).from_address(buffer.data)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
