"""torch.compile's backend "galley" ("openxla" too where torch_xla is absent), and the device."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch_galley.core.config import current
from torch_galley.core.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import fx  # only here: `import torch_galley` leaves torch to those who use it

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def galley(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured: the function behind `backend="galley"`.

    Example: `torch.compile(model, backend="galley", options={"min_cluster_size": 1})`

    Args:
        graph: Dynamo's graph.
        example_inputs: fake or real tensors, and symbolic sizes.
        options: settings for this model, see core.config.Config.
        mode: torch.compile's presets are accepted and mean the same here: there is no launch
            overhead to reduce on XLA, and nothing is tuned yet.

    Raises:
        ConfigError: an unknown option or mode, or one with a value it can't have.
    """
    config = current(options)
    if mode is not None and mode not in _MODES:
        raise ConfigError(f"unknown mode {mode!r}", hint=f"one of {', '.join(_MODES)}")
    # Here, so that `import torch_galley` pays for none of the stages.
    from torch_galley.capture.functional import capture

    return capture(graph, example_inputs, config, _compile)


def _compile(captured: Any) -> Any:
    """The executor of torch.compile's graphs."""
    # Here, so that `import torch_galley` pays for none of the stages.
    from torch_galley.capture.lazy.compiled import on_device, recorder
    from torch_galley.pipeline import build

    return recorder(captured) if on_device(captured) else build(captured)


def device(index: int = 0) -> torch.device:
    """Return the lazy xla device, registering it with torch at the first call.

    Example: `model.to(torch_galley.device())`

    Raises:
        ConfigError: an index other than 0, or torch_xla is imported.
    """
    if index != 0:
        raise ConfigError(f"there is no xla:{index}", hint="the only device is xla:0")
    # Here, as below, so that `import torch_galley` pays neither for torch nor for jax.
    import torch

    from torch_galley.capture.lazy.device import register  # it imports torch too

    register(_execute)
    return torch.device("xla", index)


def sync() -> None:
    """Run everything that was recorded for the xla device and can still be read."""
    if "torch_galley.capture.lazy.device" in sys.modules:
        from torch_galley.capture.lazy.flush import flush  # here: it imports torch

        flush("sync")


def jit(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records `step` at its first call, and later runs that alone.

    The second call runs no Python of the step: it reads the tensors that the first one read as
    they are by then, draws new random numbers, and writes where the first one wrote. Results carry
    no gradient. A call is recorded anew, with its Python, if something has changed that it may
    depend on:

    - shapes, dtypes and Python values of its arguments;
    - torch's settings: default dtype and device, autocast, grad and inference mode, determinism;
    - Python values, and which object is where, in what the step can reach: what it closes over,
      globals and attributes that its code names, and from there lists, dicts, modules
      (`training`, hooks, ...), optimizers and schedules (`param_groups`, state, ...), objects.

    Not seen are changes inside what Python can't look into (an array of numpy's, an iterator, the
    clock, Python's own random numbers, files), attributes asked for by a computed name, and what
    code of the standard library, numpy or torch reads elsewhere: give such a value as an argument,
    or as an xla tensor. A value that is another at every call (a schedule's learning rate) is told
    by a warning: then every call is recorded, though not compiled.

    Example: `step = torch_galley.jit(train_step); loss = step(batch, target)`

    Args:
        step: a function of xla tensors, numbers, strings, and lists and dicts of these. It may
            write tensors that it doesn't get as arguments: parameters, an optimizer's state.

    Raises:
        CaptureError: at a call, for a step that can't be repeated without its Python: it reads a
            value, writes a CPU tensor, leaves new tensors behind at each call, or has an argument
            that was computed with gradients.
    """
    device()
    from torch_galley.capture.lazy.jit import Jitted  # here: it imports torch

    return Jitted(step)


def _execute(captured: Any) -> Any:
    """The lazy device's executor."""
    from torch_galley.pipeline import build  # here: jax is imported at the first flush, no earlier

    return build(captured)


_TORCH_XLA_STUB = "torch._dynamo.backends.torchxla"


def claim_openxla() -> None:
    """Make `backend="openxla"` ours unless torch_xla is installed.

    torch registers that name itself, when Dynamo loads its backends, for torch_xla alone; a name
    can be registered once. So ours replaces it right after, now or whenever that happens.
    """
    found = importlib.util.find_spec("torch_xla")
    if found is not None and not (found.origin or "").startswith(os.path.dirname(__file__)):
        return
    if _TORCH_XLA_STUB in sys.modules:
        _replace_openxla()
    elif not any(isinstance(finder, _AfterStub) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterStub())


def _replace_openxla() -> None:
    # Here, because only a process that has loaded Dynamo's backends comes this way.
    from torch._dynamo.backends import registry

    registry._COMPILER_FNS["openxla"] = galley
    registry._BACKENDS.setdefault("openxla", None)


class _AfterStub(importlib.abc.MetaPathFinder):
    """Lets torch's own module for "openxla" load, then replaces what it registered."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TORCH_XLA_STUB:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _replace_openxla()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
