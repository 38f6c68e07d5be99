"""The step of a plan that runs a cluster. The other kind, a native operator, is in run.native."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn, Protocol

import jax
import torch
from torch.autograd import forward_ad

from torch_galley.cluster.clustered import XlaCluster
from torch_galley.compile.client import Compiled, xla_error
from torch_galley.compile.engine import Engine
from torch_galley.core.errors import LoweringError, RunError
from torch_galley.core.events import ClusterRanNatively, emit
from torch_galley.core.site import site_of
from torch_galley.lower.driver import Argument, Lowered
from torch_galley.lower.symbol import Bindings, cluster_symbols
from torch_galley.ops.ffi import raised_by_call
from torch_galley.ops.registry import revision
from torch_galley.run.buffer import address, has_tangent, is_view_of, is_wrapper, to_jax
from torch_galley.run.device import OnDevice, as_tensor
from torch_galley.run.native import NativeCluster
from torch_galley.run.policy import Policy

Failed = Callable[[XlaCluster, LoweringError], None]
"""Is told of a cluster that can't be lowered, when it runs natively for that; may raise."""


class Step(Protocol):
    """One step of a plan."""

    def __call__(self, values: list[Any], bindings: dict[Any, Any]) -> Sequence[Any]:
        """Return the step's results for the values of its inputs."""
        ...


class ClusterStep:
    """Bring the inputs to XLA and run the executable.

    Results that another cluster reads stay on the device, those for torch alone are tensors. Where
    the policy gives no executable, its operators run natively, and all results are tensors. So they
    do for inputs that torch alone knows how to compute with: wrappers, and duals.
    """

    def __init__(self, policy: Policy, stays: Sequence[bool], failed: Failed):
        self.cluster = policy.cluster
        self.policy = policy
        self._stays = stays
        self._failed = failed
        self._symbols = cluster_symbols(self.cluster)
        self._ready: _Ready | None = None

    def __call__(self, values: list[Any], bindings: Bindings) -> list[Any]:
        if forward_ad._current_level >= 0 and any(map(has_tangent, values)):
            return self.natively(values, bindings, "tangent")
        ready = self._ready
        usual = ready.usual if ready is not None else None
        if ready is not None and usual is not None:
            try:
                results = usual(values)
            except jax.errors.JaxRuntimeError as error:
                self._fail(ready.compiled, error)
            if results is not None:
                return results
        try:
            brought = self.bring(values, bindings)
        except LoweringError as error:
            self._failed(self.cluster, error)
            return self.natively(values, bindings, "failed")
        if brought is None:
            return self.natively(values, bindings, self.policy.cause)
        compiled, arrays = brought
        results = self.run(compiled, arrays)
        try:
            return self.give(compiled, results)
        except jax.errors.JaxRuntimeError as error:  # a client that does not wait tells it here
            self._fail(compiled, error)

    def bring(self, values: list[Any], bindings: Bindings) -> tuple[Compiled, list[Any]] | None:
        """Return the executable for the present inputs, and these as arrays.

        None if they are to run natively.

        Raises:
            LoweringError: the cluster can't be lowered.
        """
        self.policy.runs += 1
        ready = self._ready
        if ready is None or (self._symbols and ready.bindings != self._own(bindings)):
            ready = self._make_ready(values, bindings)
        while ready is not None:
            arrays = ready.arrays(values)
            if arrays is not None:
                return ready.compiled, arrays
            ready = self._make_ready(values, bindings)  # an input is not as it was
        return None

    def natively(self, values: list[Any], bindings: Bindings, cause: str) -> list[Any]:
        """Run the cluster's operators as eager would; see ClusterRanNatively for the causes."""
        native = self._native
        emit(ClusterRanNatively(self.cluster, cause, native.operators))
        return native(values, bindings)

    @cached_property
    def _native(self) -> NativeCluster:
        return NativeCluster(self.cluster)

    def run(self, compiled: Compiled, arrays: list[Any]) -> Sequence[Any]:
        """Run the executable; raise what eager would have raised if a check failed."""
        lowered = compiled.lowered
        try:
            results = compiled.executable.run(arrays)
            if lowered.checks:
                raise_failed(compiled.lowered, compiled.engine.take(results[-1]))
        except jax.errors.JaxRuntimeError as error:
            self._fail(compiled, error)
        return results

    def _fail(self, compiled: Compiled, error: Exception) -> NoReturn:
        """Raise what a function of the user's raised that XLA called, else our error."""
        raised = raised_by_call(error)
        if raised is not None:
            raised.add_note(f"called by XLA in {self.cluster.name}{_callers(self.cluster)}")
            raise raised from raised.__cause__
        site = compiled.lowered.first_site
        raise xla_error(error, RunError, f"{self.cluster.name} failed", site) from error

    def give(self, compiled: Compiled, results: Sequence[Any]) -> list[Any]:
        """Return the executable's results as the plan wants them."""
        lowered, engine = compiled.lowered, compiled.engine
        # Not strict: the verdict of the checks is one result more.
        return [
            OnDevice(array, argument, engine) if stays else as_tensor(array, argument, engine)
            for array, argument, stays in zip(results, lowered.results, self._stays, strict=False)
        ]

    @property
    def compiled(self) -> Compiled | None:
        """The executable of the last call."""
        return self._ready.compiled if self._ready else None

    def _own(self, bindings: Bindings) -> dict[Any, Any]:
        return {symbol: bindings[symbol] for symbol in self._symbols if symbol in bindings}

    def _make_ready(self, values: list[Any], bindings: Bindings) -> _Ready | None:
        """Find the executable for inputs as these are, if any, and keep it for the next call."""
        if any(map(is_wrapper, values)):
            self.policy.cause = "wrapped"
            return None
        arguments = tuple(
            value.argument if isinstance(value, OnDevice) else Argument.like(value)
            for value in values
        )
        own = self._own(bindings)
        compiled = self.policy.executable(arguments, own)
        if compiled is None:
            return None
        slots = [
            _Slot(value, argument, compiled.engine)
            for value, argument in zip(values, arguments, strict=True)
        ]
        lowered = compiled.lowered
        plain = lowered.plain_results and not any(self._stays)
        takes = compiled.engine.take if plain else None
        self._ready = ready = _Ready(own, slots, compiled, None if self._symbols else takes)
        return ready


class _Ready:
    """What the last call found out, so that the next one with equal inputs need not."""

    def __init__(
        self,
        bindings: dict[Any, Any],
        slots: list[_Slot],
        compiled: Compiled,
        take: Callable[[Any], torch.Tensor] | None,
    ):
        self.bindings = bindings
        self.compiled = compiled
        self._slots = slots
        self._take = take
        """What makes a result a tensor, if that is all that is to be done with results."""
        self._moved: Callable[[list[Any]], list[Any] | None] | None = None
        self.usual: Callable[[list[Any]], list[torch.Tensor] | None] | None = None
        """The whole call as one function; gives None if an input is not as it was."""

    def arrays(self, values: list[Any]) -> list[Any] | None:
        """Return the inputs as arrays, None if one is not like those this was made for."""
        moved = self._moved
        if moved is not None and (arrays := moved(values)) is not None:
            return arrays
        arrays = [slot.array(value) for slot, value in zip(self._slots, values, strict=True)]
        if any(array is None for array in arrays):
            return None
        kept = _kept(values, arrays)
        self._moved = _mover(kept, self._slots)
        if self._take is not None:
            lowered = self.compiled.lowered
            check = partial(raise_failed, lowered) if lowered.checks else None
            self.usual = _mover(kept, self._slots, self.compiled.executable.run, self._take, check)
        return arrays


def _kept(values: list[Any], arrays: list[Any]) -> dict[int, tuple[int, Any]]:
    """Return the address and array of each parameter that is viewed, by its place.

    An array that views the very memory shows whatever was written there meanwhile. It also keeps
    that memory alive until the next call finds the parameter elsewhere, so that an equal address is
    the same memory. (A weak reference would end that sooner, but torch can't swap a parameter that
    has one.) That its shape is the same is guarded by who calls us.
    """
    return {
        place: (value.data_ptr(), array)
        for place, (value, array) in enumerate(zip(values, arrays, strict=True))
        if isinstance(value, torch.nn.Parameter) and is_view_of(array, value)
    }


def _mover(
    kept: dict[int, tuple[int, Any]],
    slots: list[_Slot],
    execute: Callable[[list[Any]], Sequence[Any]] | None = None,
    take: Callable[[Any], torch.Tensor] | None = None,
    check: Callable[[torch.Tensor], None] | None = None,
) -> Callable[[list[Any]], list[Any] | None]:
    """Return a function that brings inputs, but not parameters that lie where they lay.

    It gives arrays; with `execute` and `take` it goes on to the results: one function, since each
    further one would be a tenth of a small network's call. As nothing reads the inputs after that,
    it has memory of its own for small ones: to copy them there is quicker than to make an array.
    `check` is given the last result, the verdicts, and raises if one is bad.
    """
    places = list(kept)
    addresses = [address for address, _ in kept.values()]
    template = [kept[place][1] if place in kept else None for place in range(len(slots))]
    others = [(place, slot) for place, slot in enumerate(slots) if place not in kept]
    copies_small = execute is not None
    copied = [(place, slot) for place, slot in others if slot.small and copies_small]
    viewed = [(place, slot.array) for place, slot in others if not (slot.small and copies_small)]
    idle: list[list[tuple[int, _Slot, torch.Tensor, Any]]] = []
    """Memory for small inputs that no call is using now: several threads may call."""

    def move(values: list[Any]) -> list[Any] | None:
        try:
            if [values[place].data_ptr() for place in places] != addresses:
                return None
            arrays = template.copy()
            for place, array_of in viewed:
                array = array_of(values[place])
                if array is None:
                    return None
                arrays[place] = array
            if execute is None or take is None:
                return arrays
            try:
                copies = idle.pop()
            except IndexError:
                copies = [(place, slot, *slot.memory()) for place, slot in copied]
            for place, slot, memory, array in copies:
                if not slot.fits(values[place]):
                    return None
                memory.copy_(values[place])
                arrays[place] = array
        except RuntimeError:  # a wrapper has no address, and can't be copied to where we want it
            return None
        results = [take(array) for array in execute(arrays)]
        idle.append(copies)
        if check is not None:
            check(results.pop())
        return results

    return move


_SMALL = 1 << 14
"""Bytes that are copied in less time than it takes to make an array that views them."""


class _Slot:
    """One input of a cluster: what it must be like, and the way to its array."""

    __slots__ = (
        "_argument",
        "_complex",
        "_dtype",
        "_engine",
        "_plain",
        "_shape",
        "_stride",
        "small",
    )

    def __init__(self, value: Any, argument: Argument, engine: Engine):
        self._argument = argument
        self._engine = engine
        self._shape = argument.spec.shape
        self._stride = self._dtype = None
        self._plain = self._complex = self.small = False
        if isinstance(value, torch.Tensor):
            self._stride, self._dtype = value.stride(), value.dtype
            self._complex = value.is_complex()
            self._plain = value.is_contiguous() and 1 not in self._shape
            dense = argument.layout is None and value.is_contiguous()
            self.small = value.is_cpu and dense and value.nbytes <= _SMALL and self.fits(value)

    def fits(self, value: Any) -> bool:
        """Whether a value is an ordinary tensor like the one this slot was made for."""
        return (
            type(value) is torch.Tensor
            and value.stride() == self._stride
            and value.shape == self._shape
            and value.dtype is self._dtype
            and not value.requires_grad
        )

    def memory(self) -> tuple[torch.Tensor, Any]:
        """Return new memory for such a value, as a tensor and as an array."""
        with torch.inference_mode(False):  # so that it can be written outside that mode, too
            tensor = torch.empty(self._shape, dtype=self._dtype, device="cpu")
        return tensor, to_jax(tensor, None, self._engine)

    def array(self, value: Any) -> Any:
        """Return the array for a value, None if it is not like the one this slot was made for."""
        if type(value) is OnDevice:
            # Usually the very object, since it comes from another cluster's Lowered.
            same = value.argument is self._argument or value.argument == self._argument
            return value.array if same else None
        if value.stride() != self._stride or value.shape != self._shape:
            return None
        ordinary = type(value) is torch.Tensor and not value.requires_grad
        lazy = value.is_neg() or (self._complex and value.is_conj())
        if self._plain and ordinary and not lazy and address(value):
            return self._engine.bring(value)  # what to_jax comes down to
        if is_wrapper(value):
            return None
        return to_jax(value, self._argument.layout, self._engine)


def _callers(cluster: XlaCluster) -> str:
    """Return the places in the user's code of the operators that are the user's."""
    own = [n for n in cluster.nodes if revision(n.target)]
    return "".join(f"\n  {node.target} at {site_of(node.meta)}" for node in own)


def raise_failed(lowered: Lowered, verdicts: torch.Tensor) -> None:
    """Raise what eager would have raised for the first check that failed."""
    for check, (count, value) in zip(lowered.checks, verdicts.tolist(), strict=True):
        if count:
            site = lowered.sites.get(check.node)
            place = f"\n  at {site}" if site else ""
            raise check.error(check.message.format(value=value) + place)
