"""The seed of the draws that are recorded until the next flush, and what torch's state says of it.

The device takes one number from torch's CPU generator for all draws of a program, and counts these.
So a state of that generator says too little of what is drawn next, when it is read between two
draws: what torch.get_rng_state returns remembers the count besides, and torch.set_rng_state brings
both back. A checkpoint's recomputation then draws what its forward drew.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_galley.capture.lazy import storage
from torch_galley.capture.lazy.trace import Value
from torch_galley.ops.draw import fresh_seed


@dataclass(frozen=True)
class _Stream:
    seed: Value
    draws: int
    """How many were recorded."""
    after: torch.Tensor
    """The generator's state since the seed was drawn."""


_stream: _Stream | None = None
_seeds: dict[bytes, Value] = {}
"""Seeds since the last flush by the state that they were drawn from: from an equal one comes the
same, also when jit draws others for a later call."""

_REMEMBERED = "_galley_stream"
"""The attribute of a state that says where among the draws it was read."""


def drawn(make: Callable[[], torch.Tensor]) -> Value:
    """Return random numbers drawn now by `make`, which can be asked for others later."""
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        value = Value.ready(make())
    value.redraw = make
    return value


def next_draw() -> tuple[torch.Tensor, int]:
    """Return the seed, as a tensor of the device, and the number of the next draw."""
    global _stream
    found = _stream or _new()
    _stream = dataclasses.replace(found, draws=found.draws + 1)
    return storage.hold(found.seed), found.draws


def _new() -> _Stream:
    state = torch.default_generator.get_state()
    fresh = drawn(fresh_seed)  # in any case, for the sake of the generator's state
    seed = _seeds.setdefault(state.numpy().tobytes(), fresh)
    return _Stream(seed, 0, torch.default_generator.get_state())


def graph_seed() -> torch.Tensor:
    """Return the seed of a graph of torch.compile's that is recorded: each has its own."""
    return storage.hold(drawn(fresh_seed))


def draws_before(state: torch.Tensor) -> int:
    """Return how many draws were recorded when a state was read, since its seed was drawn."""
    found: _Stream | None = getattr(state, _REMEMBERED, None)
    return found.draws if found is not None else 0


def restart() -> None:
    """Have the next draw take a seed of its own: the generator was seeded."""
    global _stream
    _stream = None


def end() -> None:
    """Forget the seed: what was recorded with it has run."""
    restart()
    _seeds.clear()


def patch_states() -> None:
    """Make torch's states of the CPU generator remember the device's draws."""
    for name, wrapped in (("get_rng_state", _getting), ("set_rng_state", _setting)):
        function = wrapped(getattr(torch, name))
        for module in (torch, torch.random):
            setattr(module, name, function)


def _getting(theirs: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    @functools.wraps(theirs)
    def get_rng_state() -> torch.Tensor:
        state = theirs()
        setattr(state, _REMEMBERED, _stream)
        return state

    return get_rng_state


def _setting(theirs: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    @functools.wraps(theirs)
    def set_rng_state(new_state: torch.Tensor) -> None:
        global _stream
        theirs(new_state)
        remembered: Any = getattr(new_state, _REMEMBERED, _REMEMBERED)
        if remembered is not _REMEMBERED:
            _stream = remembered
        elif _stream is not None and not torch.equal(new_state, _stream.after):
            _stream = None  # (a copy of the present state, as torch's compiler sets, says nothing)

    return set_rng_state
