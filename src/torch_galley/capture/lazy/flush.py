"""Running what was recorded: everything that can still be read is computed in one go."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_galley.capture.fx import Captured
from torch_galley.capture.lazy import storage
from torch_galley.capture.lazy.region import memory_order
from torch_galley.capture.lazy.trace import Frame, Program, Value, user_frames
from torch_galley.core.config import Config, current
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import Flushed, emit
from torch_galley.core.site import Site

Execute = Callable[[list[Any]], Sequence[Any]]
Executor = Callable[[Captured], Execute]

MAX_PENDING = 10_000
"""Operations recorded without a flush after which one happens by itself."""
_PLANS = 256

lock = threading.RLock()
"""Held while recording and while flushing."""
_executor: Executor | None = None
_plans: OrderedDict[tuple[Any, ...], Execute] = OrderedDict()
_recorded = 0


def use_executor(executor: Executor) -> None:
    """Say who turns captured graphs into callables; torch_galley.backend does so once."""
    global _executor
    _executor = executor


def count_recorded() -> None:
    """Note one more recorded operation, and flush if there are too many."""
    global _recorded
    _recorded += 1
    if _recorded >= MAX_PENDING:
        flush("limit")


def flush(cause: str) -> None:
    """Compute every pending value that can still be read; does nothing if there is none."""
    global _recorded
    with lock:
        _recorded = 0
        wanted = storage.pending()
        if not wanted:
            return
        started = time.perf_counter()
        try:
            program = Program.reaching(wanted)
            _store(program, _execute(program, current()))
        except Exception:
            _salvage(wanted)
            raise
        emit(Flushed(cause, len(program.steps), _site(), time.perf_counter() - started))


def _store(program: Program, results: Sequence[torch.Tensor]) -> None:
    for value, tensor in zip(program.outputs, results, strict=True):
        value.tensor, value.step = tensor, None


def _salvage(wanted: Sequence[Value]) -> None:
    """Compute natively, one by one, what the failure of another value has nothing to do with.

    What fails again is marked as lost: it would fail at every later flush, far from its cause.
    """
    natively = dataclasses.replace(current(), min_cluster_size=sys.maxsize)
    for value in wanted:
        try:
            program = Program.reaching([value])
            _store(program, _execute(program, natively))
        except Exception as error:
            value.error, value.step = error, None


def _execute(program: Program, config: Config) -> Sequence[torch.Tensor]:
    # The user's modes (a default device, inference mode) are not for what we do inside.
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        key = (config, program.key())
        plan = _plans.get(key)
        if plan is None:
            plan = _build(program, config)
            _plans[key] = plan
            while len(_plans) > _PLANS:
                _plans.popitem(last=False)
        _plans.move_to_end(key)
        return plan([value.tensor for value in program.inputs])


def _build(program: Program, config: Config) -> Execute:
    from torch_galley.capture.lazy.replay import replay  # here: it loads a part of Dynamo

    if _executor is None:
        raise CaptureError("nobody runs the lazy device", hint="call torch_galley.device() first")
    return _executor(replay(program, config))


def _site() -> Site | None:
    frames: tuple[Frame, ...] = user_frames()
    return Site(*frames[0]) if frames else None


def on_cpu(tensor: torch.Tensor, cause: str = "read") -> torch.Tensor:
    """Return a tensor's contents as a CPU tensor of the same strides, to be read only."""
    with lock:
        contents = storage.contents_of(tensor)
        if contents.value is not None and contents.value.pending:
            flush(cause)
        value = contents.value
        if value is None:
            dense = torch.zeros(contents.sizes, dtype=contents.dtype, device="cpu")
        else:
            dense = _ready(value)
    if not storage.is_whole(tensor, contents):
        dense = _view(dense, contents, tensor)
    if tensor.is_conj():
        dense = dense.conj()
    return torch.ops.aten._neg_view.default(dense) if tensor.is_neg() else dense


def _ready(value: Value) -> torch.Tensor:
    value.check()
    assert value.tensor is not None
    return value.tensor


def _view(dense: torch.Tensor, contents: storage.Contents, tensor: torch.Tensor) -> torch.Tensor:
    sizes, strides, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    flat = dense.permute(memory_order(contents.sizes, contents.strides)).reshape(-1).contiguous()
    if flat.dtype != tensor.dtype:
        flat = flat.view(tensor.dtype)
    reach = storage.extent(sizes, strides, offset)
    if reach > flat.numel():
        flat = torch.cat([flat, flat.new_zeros(reach - flat.numel())])
    return flat.as_strided(sizes, strides, offset)
