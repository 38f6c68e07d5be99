"""The state of the random numbers as one whole number, which is what torch_xla's programs expect.

torch's generator, from which the device draws, has a state of 5,056 bytes. The states handed out
are remembered, the latest of them, so that setting one brings it back; any other number is a seed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import torch

from torch_galley.capture.lazy.stream import draws_before

_KEPT = 64
_states: OrderedDict[int, torch.Tensor] = OrderedDict()


def get_state() -> int:
    """Return a number that stands for the generator's state.

    Example:
        >>> state = get_state(); x = torch.rand(2); set_state(state); torch.equal(torch.rand(2), x)
        True
    """
    state = torch.get_rng_state()
    place = draws_before(state).to_bytes(8, "big")
    digest = hashlib.blake2b(state.numpy().tobytes() + place, digest_size=7).digest()
    number = int.from_bytes(digest, "big")
    _states[number] = state
    _states.move_to_end(number)
    while len(_states) > _KEPT:
        _states.popitem(last=False)
    return number


def set_state(number: int) -> None:
    """Bring back the state that a number stands for, or else seed the generator with it."""
    state = _states.get(number)
    if state is not None:
        torch.set_rng_state(state)
    else:
        torch.manual_seed(number)
