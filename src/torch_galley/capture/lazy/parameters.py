"""Module.to(): parameters that come to the device, or leave it, stay who they are.

Torch would put new ones in their places, of which neither an optimizer nor a tied weight knows.
It can also swap the contents of a parameter and of what it was converted to, which is what happens
here; but not if something else holds the parameter: a graph, a view, a weak reference. Then there
is a new one after all, the same for all modules that share it, and a warning.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


class _Move(threading.local):
    """What the outermost call under way has replaced."""

    depth = 0
    new: dict[int, tuple[nn.Parameter, nn.Parameter]]
    """By the old one's id: the old one, which keeps that id its own, and the new one."""
    places: list[str]


_move = _Move()


def patch_module() -> None:
    """Make conversions of modules to and from the device keep parameters; others stay torch's."""
    theirs = nn.Module._apply

    @functools.wraps(theirs)
    def _apply(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
        if _move.depth == 0:
            _move.new, _move.places = {}, []
        _move.depth += 1
        try:
            return _converted(theirs, self, fn, recurse)
        finally:
            _move.depth -= 1
            if _move.depth == 0:
                _warn(_move.places)
                _move.new, _move.places = {}, []

    nn.Module._apply = _apply


def _converted(theirs: Any, module: nn.Module, fn: Callable[..., Any], recurse: bool) -> Any:
    if not any(_crosses(parameter, fn) for parameter in module.parameters(recurse=False)):
        return theirs(module, fn, recurse)
    while True:
        try:
            with _swapping():
                return theirs(module, fn, recurse)
        except RuntimeError as error:
            # The first one that is still where it was. What is below has been converted.
            held = [
                name for name, p in module._parameters.items() if p is not None and _crosses(p, fn)
            ]
            if "Couldn't swap" not in str(error) or not held:
                raise
            name, recurse = held[0], False
        old = module._parameters[name]
        assert old is not None
        module._parameters[name] = _replaced(old, fn)
        _move.places.append(f"{type(module).__name__}.{name}")


def _replaced(old: nn.Parameter, fn: Callable[..., Any]) -> nn.Parameter:
    if id(old) not in _move.new:
        with torch.no_grad():
            new = nn.Parameter(fn(old), old.requires_grad)
            new.grad = None if old.grad is None else fn(old.grad)
        _move.new[id(old)] = old, new
    return _move.new[id(old)][1]


def _crosses(parameter: torch.Tensor, fn: Callable[..., Any]) -> bool:
    """Whether a conversion takes a parameter to the device, or from it."""
    here = parameter.device.type
    there = fn(torch.empty(0, dtype=parameter.dtype, device=here)).device.type
    return here != there and "xla" in (here, there)


@contextlib.contextmanager
def _swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _warn(places: list[str]) -> None:
    if places:
        unique = list(dict.fromkeys(places))
        named = ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if unique[3:] else "")
        warnings.warn(
            f"{named}: in use elsewhere (by a graph, a view, weight_norm, a weak reference), so "
            "the module has a new parameter in its place: make optimizers after .to()",
            stacklevel=4,
        )
