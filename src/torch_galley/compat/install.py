"""Makes `import torch_xla` find ours, in this process alone."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from torch_galley.core.errors import CaptureError, ConfigError


class NotProvided(CaptureError, AttributeError):
    """A torch_xla name that torch-galley doesn't have."""


class ModuleNotProvided(CaptureError, ModuleNotFoundError):
    """A torch_xla module that torch-galley doesn't have."""


def install() -> None:
    """Put our torch_xla modules where `import` looks first. Idempotent.

    Raises:
        ConfigError: the real torch_xla is imported already.
    """
    found = sys.modules.get("torch_xla")
    if getattr(found, "__galley__", False):
        return
    if found is not None:
        raise ConfigError("torch_xla is imported already", hint="run the script with python")
    from torch_galley.compat import torch_xla, torch_xla_metrics, torch_xla_model

    core, debug = ModuleType("torch_xla.core"), ModuleType("torch_xla.debug")
    modules = {
        "torch_xla": torch_xla,
        "torch_xla.core": core,
        "torch_xla.core.xla_model": torch_xla_model,
        "torch_xla.debug": debug,
        "torch_xla.debug.metrics": torch_xla_metrics,
    }
    for name, module in modules.items():
        # Libraries ask importlib.util.find_spec("torch_xla"), which wants a spec.
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.meta_path.insert(0, _Missing())


def missing(module: str, name: str) -> NoReturn:
    """Raise the error for a name that a compat module hasn't got."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotProvided(
        f"{module}.{name} isn't provided by torch-galley yet",
        hint="remove the call, or use its counterpart in torch or torch_galley",
    )


class _Missing(importlib.abc.MetaPathFinder):
    """Says clearly which torch_xla module is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname.startswith("torch_xla."):
            raise ModuleNotProvided(
                f"the module {fullname} isn't provided by torch-galley yet",
                hint="remove the import, or use its counterpart in torch or torch_galley",
            )
