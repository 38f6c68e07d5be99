"""Running what was recorded: everything that can still be read is computed in one go."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_galley.capture.fx import Captured
from torch_galley.capture.lazy import storage, stream
from torch_galley.capture.lazy.place import site_of, user_frames
from torch_galley.capture.lazy.region import memory_order
from torch_galley.capture.lazy.segment import segments
from torch_galley.capture.lazy.trace import Program, Value, made
from torch_galley.core.config import Config, current, setting
from torch_galley.core.errors import CaptureError, RunError
from torch_galley.core.events import Flushed, Warned, emit
from torch_galley.ops.running import innermost

Execute = Callable[[list[Any]], Sequence[Any]]
Executor = Callable[[Captured], Execute]

_LOOK = 16
"""Steps after which it is looked whether there are too many: looking costs a third of a step."""
_FAMILIES = 512

lock = threading.RLock()
"""Held while recording and while flushing."""
_executor: Executor | None = None
_before = 0
"""Steps recorded before the present program."""
_brought = 0
_look = 0
"""How many steps there must be for the next look."""
_endless = False
"""Whether there was too much since the last sync or read, so that it runs in pieces."""
_told = False
_tracing = False
_running = False
"""Whether recorded programs are run: who holds the lock then is called by one of them."""
_in_child = False


@dataclass
class _Family:
    """Programs that differ in their numbers alone."""

    numbers: tuple[Any, ...]
    varying: set[int] = field(default_factory=set)
    """Which numbers are inputs; the others are those above, and constants of the plan."""
    plan: Execute | None = None


_families: OrderedDict[tuple[Any, ...], _Family] = OrderedDict()


def after_fork() -> None:
    """Note that this process is a fork's child, where XLA's threads don't exist."""
    global _in_child, _running, lock
    _in_child, _running = True, False
    lock = threading.RLock()  # another thread may have held the old one


def check_process() -> None:
    """Raise in a fork's child."""
    if _in_child:
        raise CaptureError(
            "the xla device was used in a forked process, where XLA doesn't run",
            hint="start the process with the 'spawn' method, or keep its tensors on the CPU",
        )


def use_executor(executor: Executor) -> None:
    """Say who turns captured graphs into callables; torch_galley.backend does so once."""
    global _executor
    _executor = executor


def count_brought(tensor: torch.Tensor) -> None:
    """Note memory that was brought to the device, and flush if pending steps may hold too much."""
    global _brought
    _brought += tensor.nbytes
    if _brought >= setting("max_pending_bytes"):
        _at_limit(f"{_brought:,} bytes")


def _at_limit(what: str) -> None:
    """Run most of what was recorded, in pieces, and tell once."""
    global _before, _brought, _endless, _told
    _check_not_running()
    started = time.perf_counter()
    program = Program.reaching(storage.pending())
    ran = 0
    with _noted():
        for wanted in segments(program):
            ran += _run(wanted)
    _before, _brought, _endless = made() - len(program.steps) + ran, 0, True
    if ran:
        _emit("limit", ran, started)
    if not _told:
        _told = True
        message = (
            f"the xla device had recorded {what} without a sync or a read, and ran them now; call "
            "torch_galley.sync() once a step, so that each step is one program"
        )
        emit(Warned(message))
        warnings.warn(message, stacklevel=2)


def _check_not_running() -> None:
    """Raise if the caller is called by a program that is being run, which would be run again."""
    if _running:
        op = innermost()
        raise RunError(
            f"{op or 'a function'} asked the xla device to compute while the device was computing "
            f"{'it' if op else 'what calls it'}",
            site=site_of(user_frames()),
            hint="an operator gets CPU tensors: give it as an argument what it is to read "
            "(docs/extending.md)",
        )


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    """Note that programs are run meanwhile."""
    global _running
    _running = True
    try:
        yield
    finally:
        _running = False


def after_call() -> None:
    """Run what an operator call recorded if the mode is not lazy, or if there is too much."""
    global _look
    recorded = made() - _before
    if _tracing:
        return
    if recorded and (now := setting("mode")) != "lazy":
        flush(now)
    elif made() >= _look:
        _look = made() + _LOOK
        if recorded >= setting("max_pending"):
            _at_limit(f"{recorded:,} operations")


def trace(on: bool) -> None:
    """Say whether a step is being traced by jit: then nothing may run before it is over."""
    global _tracing
    _tracing = on


def tracing() -> bool:
    """Whether a step is being traced by jit."""
    return _tracing


def _check_not_tracing(cause: str) -> None:
    if _tracing:
        raise CaptureError(
            f"jit: the step asks for a value ({cause}), which is known only when it runs",
            site=site_of(user_frames()),
            hint="return the tensor and read it after the call",
        )


def flush(cause: str) -> None:
    """Compute every pending value that can still be read; does nothing if there is none."""
    global _before, _brought, _endless
    check_process()
    with lock:
        _check_not_tracing(cause)
        _check_not_running()
        pieces, _endless, _before, _brought = _endless, False, made(), 0
        stream.end()
        wanted = storage.pending()
        if not wanted:
            return
        started, ran = time.perf_counter(), 0
        with _noted():
            if pieces:
                ran += sum(map(_run, segments(Program.reaching(wanted))))
            ran += _run([value for value in wanted if value.pending])
        _emit(cause, ran, started)


def _run(wanted: Sequence[Value]) -> int:
    """Compute pending values; return how many steps it took."""
    try:
        program = Program.reaching(wanted)
        store(program, _execute(program, current()))
    except KeyboardInterrupt:  # at once, and nothing is lost: the next read computes it
        raise
    except BaseException:  # an operator may raise SystemExit
        _salvage(wanted)
        raise
    return len(program.steps)


def _emit(cause: str, nodes: int, started: float) -> None:
    seconds = time.perf_counter() - started
    emit(Flushed(cause, nodes, site_of(user_frames()), seconds))


def store(program: Program, results: Sequence[torch.Tensor]) -> None:
    """Give a program's outputs their tensors."""
    for value, tensor in zip(program.outputs, results, strict=True):
        if tensor.shape != value.shape or tensor.dtype is not value.dtype:
            step = value.step
            raise CaptureError(
                f"{step and step.recipe.op} gave {tensor.dtype}{list(tensor.shape)}, recorded as "
                f"{value.dtype}{list(value.shape)}: a bug in torch-galley",
                site=site_of(step.place) if step else None,
                hint="please report it; .cpu() before this operator is a way around",
            )
        value.tensor, value.step = tensor, None


def _salvage(wanted: Sequence[Value]) -> None:
    """Compute what the failure of some value has nothing to do with, by halving.

    What fails alone, natively too, is marked as lost: it would fail at every later flush, far from
    its cause.
    """
    wanted = [value for value in wanted if value.pending]
    half = len(wanted) // 2
    for some in (wanted[:half], wanted[half:]):
        if not some:
            continue
        config = current()
        if len(wanted) == 1:
            config = dataclasses.replace(config, min_cluster_size=sys.maxsize)
        try:
            program = Program.reaching(some)
            store(program, _execute(program, config))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if len(wanted) > 1:
                _salvage(some)
            else:
                some[0].error, some[0].step = error, None


def _execute(program: Program, config: Config) -> Sequence[torch.Tensor]:
    plan = plan_of(program, config)
    return execute(plan, [value.tensor for value in program.inputs])


def execute(plan: Execute, inputs: list[Any]) -> Sequence[torch.Tensor]:
    """Run a plan; the user's modes (a default device, inference mode) are not for us."""
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        return plan(inputs)


def plan_of(program: Program, config: Config) -> Execute:
    """Return a plan for a program, its numbers given, that shares what is compiled with others."""
    family = _family(program, config)
    plan, packed = family.plan, pack([program.numbers[i] for i in sorted(family.varying)])
    assert plan is not None
    return lambda inputs: plan([*inputs, *packed])


def _family(program: Program, config: Config) -> _Family:
    """Return the family that a program belongs to, its plan made for the program's numbers."""
    key, numbers = (config, program.key), program.numbers
    family = _families.get(key)
    if family is None:
        volatile = [s.recipe.volatile for s in program.steps for _ in s.numbers]
        varying = {i for i, others in enumerate(volatile) if others}
        family = _Family(numbers, varying)
    elif numbers != family.numbers:
        pairs = zip(numbers, family.numbers, strict=True)
        changed = {i for i, (new, old) in enumerate(pairs) if new != old or str(new) != str(old)}
        if not changed <= family.varying:
            family.varying |= changed
            family.plan = None
    if family.plan is None:
        family.numbers = numbers
        family.plan = _build(program, config, family.varying)
        _families[key] = family
        while len(_families) > _FAMILIES:
            _families.popitem(last=False)
    _families.move_to_end(key)
    return family


def pack(numbers: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return Python numbers as inputs of a plan: two tensors, of the floats and of the integers."""
    if not numbers:
        return ()
    floats = [number for number in numbers if type(number) is float]
    whole = [number for number in numbers if type(number) is int]
    return (
        torch.tensor(floats, dtype=torch.float64, device="cpu"),
        torch.tensor(whole, dtype=torch.int64, device="cpu"),
    )


def _build(program: Program, config: Config, varying: set[int]) -> Execute:
    from torch_galley.capture.lazy.replay import replay  # here: it loads a part of Dynamo

    if _executor is None:
        raise CaptureError("nobody runs the lazy device", hint="call torch_galley.device() first")
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        return _executor(replay(program, config, varying))


def on_cpu(tensor: torch.Tensor, cause: str = "read") -> torch.Tensor:
    """Return a tensor's contents as a CPU tensor of the same strides, to be read only."""
    with lock:
        _check_not_tracing(cause)
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
