"""Starts XLA, compiles StableHLO, maps XLA's errors to ours. The way to XLA is compile.engine."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import torch

from torch_galley.compile import flags, save
from torch_galley.compile.engine import Engine, Executable, Options, engine
from torch_galley.core.errors import CompileError, ConfigError, GalleyError, ToolError
from torch_galley.core.events import ClusterCompiled, emit
from torch_galley.core.site import Site
from torch_galley.core.spec import PLATFORM
from torch_galley.hlo.overwrite import overwritten
from torch_galley.lower.driver import Lowered
from torch_galley.lower.save import Program

_CRASHING_RANK = re.compile(r"tensor<(?:\d+x){7}")
"""Values of rank 7 and up in StableHLO; see compiler_options."""


@dataclass(frozen=True)
class Compiled:
    """An executable and what it was made from."""

    lowered: Lowered
    engine: Engine
    """What brings tensors to it and takes its results."""
    executable: Executable
    """The program; in a Compiled that was loaded a save.Remains, which can't run."""
    seconds: float
    """What XLA took."""

    def __call__(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return self.executable.run(arrays)

    def hlo(self) -> str:
        """Return the HLO after optimisation."""
        return self.executable.hlo()

    @property
    def scratch_bytes(self) -> int:
        """Memory that XLA takes for intermediate values while it runs."""
        return self.executable.memory().temp_size_in_bytes

    def text(self) -> str:
        """Return the HLO after optimisation: what is run."""
        return self.hlo()

    def to_json(self) -> dict[str, Any]:
        """Return all but the text as plain data: XLA's own analysis of memory and cost."""
        return save.to_json(self)

    def save(self, folder: str | Path) -> Path:
        """Write the Lowered that this comes from, the optimised HLO and XLA's analyses.

        The executable itself is not written: it fits one machine and one jaxlib only.

        Raises:
            ToolError: the graph can't be saved, or the folder not written.
        """
        return save.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Compiled:
        """Read what `save` wrote. Equal in text and JSON, but it can't be called.

        Raises:
            ToolError: no such folder, or a file in it is corrupt or foreign.
        """
        lowered, remains, seconds = save.load(folder)
        return cls(lowered, engine(lowered.platform), remains, seconds)


def compiler_options(stablehlo: str) -> dict[str, Any]:
    """Return XLA options that a program needs to be compiled safely.

    jaxlib 0.10.2 dies on element-wise work of rank 7 and up inside its library fusions
    (jax-ml/jax#40412); such programs get those fusions for dots only. It costs speed in
    softmax and reductions, so it is never set for other programs.
    """
    if _CRASHING_RANK.search(stablehlo):
        return {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
    return {}


_RETREATS: tuple[dict[str, Any], ...] = (
    {"xla_cpu_experimental_ynn_fusion_type": ""},
    {"xla_disable_hlo_passes": "algsimp"},
    {"xla_disable_hlo_passes": "fusion"},
)
"""Options that make XLA fuse otherwise, the cheapest first."""


Build = Callable[[Engine, jax.stages.Lowered, Options], Executable]
"""How a program is compiled: here, or in another process."""


_CALL = re.compile(r'stablehlo\.custom_call @(?:"([^"]*)"|([\w.]+))')
_XLAS_OWN = ("mhlo.", "stablehlo.", "chlo.")
"""Names of calls that XLA replaces by operations."""


def calls(stablehlo: str) -> list[str]:
    """Return the names of functions of this process, not XLA's own, that a program calls.

    Such a program can be compiled here only, and must not be kept on a disk: what it calls may be
    another function in the next process, or none.
    """
    found = {quoted or plain for quoted, plain in _CALL.findall(stablehlo)}
    return sorted(name for name in found if not name.startswith(_XLAS_OWN))


_PYTHON_OF_JAX = ("xla_ffi_python_cpu_callback", "xla_python_cpu_callback")


def _refuse_python_of_jax(lowered: Lowered, called: Sequence[str]) -> None:
    if any(name in called for name in _PYTHON_OF_JAX):
        raise CompileError(
            f"{lowered.name} calls Python through jax (pure_callback, debug.print), which needs "
            "jax's own client",
            site=lowered.first_site,
            hint="torch_galley.custom_call makes an operator that calls Python, docs/extending.md",
        )


def _here(way: Engine, stage: jax.stages.Lowered, options: Options) -> Executable:
    return way.compile(stage, options)


def _sound(
    way: Engine,
    lowered: Lowered,
    stage: jax.stages.Lowered,
    options: Options,
    doing: str,
    build: Build,
) -> Executable:
    """Compile a program, with other options where XLA's result would be wrong: see hlo.overwrite.

    Raises:
        CompileError: it would be with all of them.
    """
    found: list[str] = []
    for more in ({}, *_RETREATS):
        executable = build(way, stage, {**options, **more})
        found = overwritten(executable.hlo())
        if not found:
            return executable
    raise CompileError(
        f"{doing} rightly: {found[0]} would write over what it still reads",
        site=lowered.first_site,
        hint="please report it; keeping an operator of this cluster native changes what XLA fuses",
    )


def compile(lowered: Lowered, build: Build | None = None) -> Compiled:
    """Compile a cluster.

    Args:
        lowered: the cluster.
        build: what compiles it in the background, see compile.background; None: here and now.

    Raises:
        CompileError: XLA refused it; the site is that of the cluster's first operation.
        ToolError: it was loaded, and jax can't compile what it did not trace.
    """
    if isinstance(lowered.stage, Program):
        hint = "lower its cluster again: lower(it.cluster, it.arguments, {}, it.config)"
        raise ToolError("a Lowered that was loaded can't be compiled", hint=hint)
    start_client()
    flags.check_unchanged()
    started = time.perf_counter()
    doing = f"XLA could not compile {lowered.name}"
    text = lowered.text()
    called = calls(text)
    _refuse_python_of_jax(lowered, called)
    try:
        way = engine(lowered.platform)
        maker = _here if called or build is None else build
        options = compiler_options(text)
        executable = _sound(way, lowered, lowered.stage, options, doing, maker)
    except jax.errors.JaxRuntimeError as error:
        raise xla_error(error, CompileError, doing, lowered.first_site) from error
    compiled = Compiled(lowered, way, executable, time.perf_counter() - started)
    emit(ClusterCompiled(compiled, compiled.seconds, maker is not _here))
    return compiled


def xla_error(
    error: Exception, kind: type[GalleyError], doing: str, site: Site | None
) -> GalleyError:
    """Return our error for a JaxRuntimeError, with the user's place."""
    first = str(error).strip().splitlines()[0]
    status = first.split(":")[0]
    hint = None
    if status == "RESOURCE_EXHAUSTED":
        hint = "out of memory: use a smaller batch, or keep this operator native with deny_ops"
    return kind(f"{doing}: {first}", site=site, hint=hint, status=status)


forked = False
"""Whether this process was forked from one that had started XLA, whose threads did not come along:
compiling, and large operations, would wait for them for ever. Everything runs natively here."""


def _in_forked_child() -> None:
    global forked
    forked = _client_is_running()


os.register_at_fork(after_in_child=_in_forked_child)


@cache
def start_client() -> None:
    """Start XLA's client once, with XLA_FLAGS as they are now.

    Raises:
        ConfigError: XLA refuses XLA_FLAGS, or jax finds none of the platforms it is told to use.
    """
    if not _client_is_running():
        flags.prepare()
    try:
        jax.devices("cpu")
    except Exception as error:  # RuntimeError for most, AssertionError without a word for some
        platforms = os.environ.get("JAX_PLATFORMS")
        raise ConfigError(
            f"jax can't start its cpu platform: {str(error) or type(error).__name__}",
            hint=f"JAX_PLATFORMS is {platforms!r}; unset it, or let it contain cpu"
            if platforms
            else None,
        ) from error
    flags.taken()


def _client_is_running() -> bool:
    # jax has no public way to ask; when this private one is gone, flags are tried once too often.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "_backends", None))


def has_device(device: torch.device) -> bool:
    """Whether jax has the counterpart of a torch device. None has in a forked process."""
    return not forked and device.type in PLATFORM and _platform_exists(PLATFORM[device.type])


@cache
def _platform_exists(platform: str) -> bool:
    start_client()
    try:
        return bool(jax.devices(platform))
    except RuntimeError:
        return False
