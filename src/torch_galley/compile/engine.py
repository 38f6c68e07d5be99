"""The two ways to XLA: through public jax, or through a client of our own, which is faster.

Public jax runs every CPU program on another thread and hands its result over later, which costs a
small cluster several times its own work, and is a setting of the whole process. A client of our
own runs in the calling thread, and the user's jax code keeps its own. It needs entry points of
jaxlib that are not public, so `engine` first proves that they are there and right, and takes the
public way if they are not.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import torch
from jax.experimental.compilation_cache import compilation_cache
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_galley.core.spec import wide_types
from torch_galley.ops.ffi import TARGET

Bring = Callable[[torch.Tensor], Any]
Take = Callable[[Any], torch.Tensor]
Options = Mapping[str, Any]
"""XLA's options for one executable: name to bool, number or text."""


class Executable(Protocol):
    """A compiled program."""

    @property
    def run(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Runs it on dense arrays."""
        ...

    def hlo(self) -> str:
        """Return the HLO after optimisation."""
        ...

    def memory(self) -> Any:
        """Return XLA's memory statistics: argument, output, temp_size_in_bytes, ..."""
        ...

    def cost(self) -> Mapping[str, Any]:
        """Return XLA's estimates, such as "flops"; empty if it gives none."""
        ...


class Engine(Protocol):
    """Compiles programs, and moves CPU tensors in and out without a copy where it can."""

    def compile(self, stage: jax.stages.Lowered, options: Options) -> Executable: ...

    def bring(self, tensor: torch.Tensor, /) -> Any:
        """Return a dense row-major tensor's memory as an array."""
        ...

    def take(self, array: Any, /) -> torch.Tensor:
        """Return an array's memory as a tensor, waiting until it is computed."""
        ...


class _PublicExecutable:
    def __init__(self, stage: jax.stages.Compiled):
        self._stage = stage

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return self._stage(*arrays)

    def hlo(self) -> str:
        return self._stage.as_text() or ""

    def memory(self) -> Any:
        return self._stage.memory_analysis()

    def cost(self) -> Mapping[str, Any]:
        return self._stage.cost_analysis() or {}


class PublicEngine:
    """Everything through public jax; also the way to devices other than the CPU."""

    def compile(self, stage: jax.stages.Lowered, options: Options) -> Executable:
        with wide_types(), _cache_bypassed(stage):
            return _PublicExecutable(stage.compile(dict(options)))

    def bring(self, tensor: torch.Tensor) -> Any:
        with wide_types():
            return jax.dlpack.from_dlpack(tensor)

    def take(self, array: Any) -> torch.Tensor:
        return torch.from_dlpack(array)


@contextlib.contextmanager
def _cache_bypassed(stage: jax.stages.Lowered) -> Iterator[None]:
    """Bypass jax's persistent cache where a hit would be wrong.

    That is while XLA_FLAGS asks for dumps, which a hit would not write, and for a program that
    calls Python by numbers that this process has given (ops.ffi).
    """
    settings: Any = jax.config
    enabled = settings.jax_enable_compilation_cache and settings.jax_compilation_cache_dir
    dumping = "--xla_dump" in os.environ.get("XLA_FLAGS", "")
    if not (enabled and (dumping or TARGET in stage.as_text())):
        yield
        return
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax looks at the setting only before first use
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


class _OwnExecutable:
    def __init__(self, loaded: Any):
        self._loaded = loaded
        self.run = loaded.execute

    def hlo(self) -> str:
        return self._loaded.hlo_modules()[0].to_string()

    def memory(self) -> Any:
        return self._loaded.get_compiled_memory_stats()

    def cost(self) -> Mapping[str, Any]:
        return self._loaded.cost_analysis() or {}


class OwnEngine:
    """A CPU client of our own that runs in the calling thread. Private jaxlib; see `engine`."""

    def __init__(self) -> None:
        from jaxlib import _jax, xla_client  # type: ignore[attr-defined]  # private, see `engine`

        self._client = xla_client.make_cpu_client(asynchronous=False)
        self._device = self._client.devices()[0]
        self._devices = xla_client.DeviceList((self._device,))
        self._new_options = xla_client.CompileOptions
        self.bring, self.take = self._ways(_jax)

    def _ways(self, jaxlib: Any) -> tuple[Bring, Take]:
        """Return `bring` and `take`, closures because they are part of every call."""
        device = self._device
        # What torch.utils.dlpack does, without its detours.
        to_capsule, from_capsule = torch._C._to_dlpack, torch._C._from_dlpack
        to_buffer = jaxlib.dlpack_managed_tensor_to_buffer
        from_buffer = jaxlib.buffer_to_dlpack_managed_tensor

        def bring(tensor: torch.Tensor) -> Any:
            return to_buffer(to_capsule(tensor), device, None, None)

        def take(array: Any) -> torch.Tensor:
            return from_capsule(from_buffer(array, stream=None))

        return bring, take

    def compile(self, stage: jax.stages.Lowered, options: Options) -> Executable:
        compile_options = self._new_options()
        compile_options.env_option_overrides = list(options.items())
        program = self.program(stage)
        loaded = self._client.compile_and_load(program, self._devices, compile_options)
        return _OwnExecutable(loaded)

    def program(self, stage: jax.stages.Lowered) -> bytes:
        """Return what XLA is given to compile."""
        program = io.BytesIO()
        module: Any = stage.compiler_ir("stablehlo")
        module.operation.write_bytecode(program)
        return program.getvalue()

    def load(self, serialized: bytes) -> Executable:
        """Return an executable that was compiled in another process, see compile.background."""
        return _OwnExecutable(self._client.deserialize_executable(serialized, self._devices, None))


def _prove(own: OwnEngine) -> None:
    """Raise unless the engine computes rightly, for dtypes that are easy to get wrong."""
    for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.complex128):
        tensor = torch.ones(3, dtype=dtype)
        with wide_types():
            spec = jax.ShapeDtypeStruct((3,), str(dtype).removeprefix("torch."))
            stage = jax.jit(lambda x: (jnp.stack([x, x]),)).lower(spec)
            # No dumps of this among the user's: a pattern that no module's name matches. (An
            # empty xla_dump_to would print them.)
            unseen = {"xla_dump_hlo_module_re": "a^"}
            result = own.compile(stage, unseen).run([own.bring(tensor)])[0]
        if not torch.equal(own.take(result), torch.stack([tensor, tensor])):
            raise TypeError(f"{dtype} comes back differently")


_making = threading.Lock()


def engine(platform: str = "cpu") -> Engine:
    """Return the way to a platform of jax's: for "cpu" our own client if this jaxlib lets us.

    One for the process, also when many threads ask first: an executable of one client can't take
    the arrays of another.
    """
    with _making:
        return _engine(platform)


@cache
def _engine(platform: str) -> Engine:
    if platform != "cpu":
        return PublicEngine()
    try:
        own = OwnEngine()
        with unset_fake_temporarily():  # Dynamo calls backends where new tensors are fake
            _prove(own)
    except Exception:  # whatever a private entry point may do when it has changed
        return PublicEngine()
    return own
