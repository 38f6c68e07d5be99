"""`torch_xla.core.xla_model`, usually imported as `xm`. With one process, a collective is an
identity."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import torch_galley
from torch_galley.compat import rng
from torch_galley.compat.finder import missing
from torch_galley.compat.nested import moved
from torch_galley.compat.step import add_closure
from torch_galley.compat.step import mark_step as _mark_step

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR = "sum", "mul", "and", "or"
REDUCE_MIN, REDUCE_MAX = "min", "max"


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the xla device."""
    return torch_galley.device(n or 0)


def xla_device_hw(device: Any) -> str:
    """Return what computes behind a device: "CPU"."""
    return "CPU"


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """Return the names of what computes behind devices."""
    return ["CPU:0" for _ in devices or [0]]


def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    """Return the names of all devices of a kind: one of the kind "CPU", none of another."""
    return ["xla:0"] if devkind in (None, "CPU") else []


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the xla device."""
    return tensor.device.type == "xla"


def get_ordinal() -> int:
    """Return 0."""
    return 0


def get_local_ordinal() -> int:
    """Return 0."""
    return 0


def xrt_world_size() -> int:
    """Return 1."""
    return 1


def is_master_ordinal(local: bool = True) -> bool:
    """Return True."""
    return True


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print."""
    print(*args, file=fd or sys.stdout, flush=flush)


def do_on_ordinals(
    target: Callable[..., Any], data: Sequence[Any] = (), ordinals: Sequence[int] = (0,)
) -> None:
    """Call `target(*data)` if 0 is among the ordinals."""
    if 0 in ordinals:
        target(*moved(tuple(data), "cpu"))


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run what was recorded, then the step closures."""
    _mark_step()


def wait_device_ops(devices: Sequence[Any] = ()) -> None:
    """Run what was recorded and wait for it."""
    torch_galley.sync()


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Run what was recorded."""
    torch_galley.sync()


def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Call `closure(*args)` at the next mark_step, after everything has run."""
    add_closure(closure, args)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Step the optimizer and run what was recorded; with `barrier`, the step closures too."""
    loss = optimizer.step(**(optimizer_args or {}))
    torch_galley.sync()
    if barrier:
        _mark_step()
    return loss


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Any = None, cctx: Any = None, pin_layout: bool = True
) -> None:
    """Do nothing: the gradients are those of all processes."""


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in parameters if p.grad is not None]


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Save data with its tensors on the CPU, so that it loads where there is no xla device."""
    torch.save(moved(data, "cpu"), file_or_path)


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Return data with its tensors on the device."""
    return moved(datas, device)


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return moved(data, "cpu") if convert else data


def get_rng_state(device: Any = None) -> int:
    """Return a number for the state of torch's generator, from which the xla device draws."""
    return rng.get_state()


def set_rng_state(seed: int, device: Any = None) -> None:
    """Bring back a state that get_rng_state returned, or seed the generator."""
    rng.set_state(int(seed))


def set_replication(device: Any, devices: Any) -> None:
    """Do nothing: there is one device."""


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Return the payloads of all processes: of this one."""
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Return `reduce_fn` of the data of all processes: of this one's, on the CPU."""
    return reduce_fn([moved(data, "cpu")])


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    cctx: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Return the tensor times `scale`; scale a list of tensors in place and return None."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale if scale != 1.0 else inputs.clone()
    if scale != 1.0:
        for tensor in inputs:
            tensor.mul_(scale)
    return None


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Any = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Return the tensor, or copy it into `output`."""
    return value.clone() if output is None else output.copy_(value)


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Return the tensor times `scale`: its only shard; or copy it into `output`."""
    return input * scale if output is None else output.copy_(input * scale)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Return the tensor."""
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the tensor where it is sent to itself, zeros where nothing is sent here."""
    return value.clone() if [0, 0] in map(list, pairs) else torch.zeros_like(value)


def collective_broadcast(
    tensors: Sequence[torch.Tensor],
    root_ordinal: int = 0,
    groups: Any = None,
    pin_layout: bool = True,
) -> None:
    """Do nothing: every process has the tensors."""


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Run what was recorded: every process has the master's parameters already."""
    torch_galley.sync()


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Return the memory of this process, in which the device's tensors are."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024  # Linux counts in KiB
    page, used = os.sysconf("SC_PAGE_SIZE"), peak
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[1]) * page
    limit = page * os.sysconf("SC_PHYS_PAGES")
    return {"bytes_used": used, "peak_bytes_used": peak, "bytes_limit": limit}


class RateTracker:
    """Counts samples; tells how many a second, lately and since it was made.

    Args:
        smooth_factor: how much of the last rate to keep when a new one is taken, 0 to 1.
    """

    def __init__(self, smooth_factor: float = 0.4):
        self._smooth = smooth_factor
        self._start = self._marked = time.monotonic()
        self._count = self._total = 0.0
        self._rate = 0.0

    def add(self, count: float) -> None:
        """Count so many more."""
        self._count += count
        self._total += count

    def rate(self) -> float:
        """Return the rate since it was last asked for, smoothed."""
        now = time.monotonic()
        if now > self._marked and self._count:
            fresh = self._count / (now - self._marked)
            kept = self._smooth if self._rate else 0.0
            self._rate = kept * self._rate + (1 - kept) * fresh
            self._marked, self._count = now, 0.0
        return self._rate

    def global_rate(self) -> float:
        """Return the rate since the tracker was made."""
        return self._total / max(time.monotonic() - self._start, 1e-9)


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Do nothing: it changes no value."""


def __getattr__(name: str) -> Any:
    missing(__name__, name)
