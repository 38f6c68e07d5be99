"""Operators that are not torch's arrive on the device whole, as torch's do.

A function that a user gives for all devices ("CompositeExplicitAutograd", which is what
torch.library.custom_op does) is the device's kernel too. It would be called with tensors of ours,
which numpy and C can't read, and what it does would be recorded in place of the operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.library import Library

from torch_galley.ops.schema import is_torchs, overload_named

_ALL = "CompositeExplicitAutograd"


def take_own_operators(call: Callable[..., Any]) -> list[Library]:
    """Make `call` the device's kernel of operators that have one for all devices.

    Of those that there are, and of those that will be defined. Returns what must be kept alive.
    """
    kept: dict[str, Library] = {}
    for name in _existing():
        # In its own library if that is known, so that both end together.
        known = OPDEFS.get(name)
        namespace = name.partition("::")[0]
        if known is not None:
            library = known._lib
        else:
            library = kept.setdefault(namespace, Library(namespace, "FRAGMENT"))
        _take(library, name, call, Library.impl)
    implement = Library.impl

    @functools.wraps(implement)
    def impl(self: Library, op_name: Any, fn: Any, dispatch_key: str = "", **rest: Any) -> Any:
        result = implement(self, op_name, fn, dispatch_key, **rest)
        if dispatch_key == _ALL and isinstance(op_name, str):
            _take(self, f"{self.ns}::{op_name.rpartition('::')[2]}", call, implement)
        return result

    Library.impl = impl  # type: ignore[method-assign]  # torch tells nobody of a new operator
    return list(kept.values())


def _existing() -> Iterator[str]:
    for name in torch._C._dispatch_get_all_op_names():
        own = not is_torchs(name.partition("::")[0])
        if own and torch._C._dispatch_has_kernel_for_dispatch_key(name, _ALL):
            yield name


def _take(
    library: Library, name: str, call: Callable[..., Any], implement: Callable[..., Any]
) -> None:
    namespace, _, rest = name.partition("::")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return call(overload_named(name), *args, **kwargs)  # now: a notebook may define it anew

    taken = torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
    if not taken and not is_torchs(namespace):
        implement(library, rest, kernel, "PrivateUse1")
