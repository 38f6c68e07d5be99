"""The plan: what is left of a graph at run time, one short generated function.

Note [Aliasing]. Inputs reach XLA as views of torch's memory (run.buffer), and XLA may run
asynchronously (our own CPU client does not, see compile.engine). Three rules keep a later write
of the caller from changing an earlier result:
1. A call returns only when every executable it started has finished. A cluster has results only
   if something outside needs them: torch, whose export waits for them, or a later cluster, which
   cannot finish before them. So waiting for what torch sees is waiting for all.
2. XLA never hands an input's memory out as a result: inputs are not donated, and the driver copies
   an output that is an input or another output.
3. What crosses the border keeps eager's strides (lower.layout), so that native operators and
   AOTAutograd's replayed views see the memory they expect.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from torch_galley.capture.body import attribute
from torch_galley.capture.fx import is_shape_number
from torch_galley.cluster.clustered import Clustered, XlaCluster
from torch_galley.compile import client
from torch_galley.compile.programs import Programs
from torch_galley.core.errors import LoweringError
from torch_galley.core.events import GraphRecut, NativeExecuted, PlanExecuted, emit
from torch_galley.lower.symbol import bind, mentions_symbols, value_of
from torch_galley.ops import registry
from torch_galley.run import draw
from torch_galley.run.device import as_torch
from torch_galley.run.native import NativeStep
from torch_galley.run.policy import Policy
from torch_galley.run.step import ClusterStep, Step

Recut = Callable[[Clustered, LoweringError | None], Clustered]
"""Cuts a graph anew, with one operation native that could not be lowered, if any; may raise
instead."""


@dataclass(frozen=True)
class Instruction:
    """A step and the slots that it reads, writes and is the last to need."""

    step: Step
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]

    def text(self, number: int) -> str:
        """Return it as lines of the plan's function, where it is step `number`.

        Example:
            >>> print(Instruction(lambda values, bindings: [1], (0, 1), (2,), (0,)).text(3))
            [v2] = step3([v0, v1], bindings)
            v0 = None
        """
        step = f"{_list(self.writes)} = step{number}({_list(self.reads)}, bindings)"
        return "\n".join([step, *(f"v{slot} = None" for slot in self.frees)])


def _list(slots: Iterable[int]) -> str:
    return "[" + ", ".join(f"v{slot}" for slot in slots) + "]"


class Plan:
    """A callable made of a clustered graph. Call it with a list of inputs, which it empties.

    It is one generated function, see `text`. Safe to call from several threads: what it keeps
    between calls is replaced whole, never changed in place.
    """

    def __init__(self, clustered: Clustered, recut: Recut):
        captured = clustered.captured
        self._dry = captured.config.dry_run
        self._recut = recut
        self._cutting = threading.Lock()
        nodes = list(captured.graph.graph.nodes)
        self._slot = {node: slot for slot, node in enumerate(nodes)}
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        (output,) = (node for node in nodes if node.op == "output")
        self._results: Sequence[Any] = output.args[0]
        self._symbolic = any(mentions_symbols(node.meta.get("val")) for node in nodes)
        self._adopt(clustered)

    def _adopt(self, clustered: Clustered) -> None:
        """Run the graph as it is cut here, from the next call on."""
        self.clustered = clustered
        self.executions = len(clustered.clusters)
        """Clusters that one run runs."""
        self.native_operators = tuple(node.target for node in clustered.native)
        """The operators that one run calls outside clusters."""
        self._changes = registry.changes
        self._revisions = self._present_revisions()
        self._on_device = {n for cluster in clustered.clusters for n in cluster.inputs}
        """What a cluster reads, and so stays on the device if a cluster makes it."""
        self.instructions = self._made(Programs(clustered))

    def _failed(self, cluster: XlaCluster, error: LoweringError) -> None:
        """Keep an operation native that can't be lowered, from the next call on.

        Raises:
            LoweringError: the setting `strict` is on.
        """
        with self._cutting:
            before = self.clustered
            if cluster not in before.clusters:  # another thread was here
                return
            self._adopt(self._recut(before, error))
        emit(GraphRecut(self, before))

    def _present_revisions(self) -> list[int]:
        """Return which users' lowerings the graph's operations have."""
        return [registry.revision(node.target) for node in self._slot]

    def _renew(self) -> None:
        """Cut the graph anew if a user has changed the lowering of an operator in it."""
        with self._cutting:
            changes, before = registry.changes, self.clustered
            if self._present_revisions() == self._revisions:
                self._changes = changes
                return
            self._adopt(self._recut(before, None))
        emit(GraphRecut(self, before))

    @property
    def cluster_steps(self) -> list[ClusterStep]:
        """The steps that run clusters."""
        steps = [instruction.step for instruction in self._instructions]
        return [step for step in steps if isinstance(step, ClusterStep)]

    @contextlib.contextmanager
    def compiling_at_once(self) -> Iterator[None]:
        """Have clusters compiled before they run meanwhile, whatever the settings say."""
        policies = [step.policy for step in self.cluster_steps]
        for policy in policies:
            policy.at_once = True
        try:
            yield
        finally:
            for policy in policies:
                policy.at_once = False

    @property
    def instructions(self) -> Sequence[Instruction]:
        """The steps in order. Setting others makes the plan run those."""
        return self._instructions

    @instructions.setter
    def instructions(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        graph = self.clustered.captured.graph
        constants = {slot: node for node, slot in self._slot.items() if node.op == "get_attr"}
        names: dict[str, Any] = {f"step{n}": i.step for n, i in enumerate(instructions)}
        names |= {f"v{slot}": attribute(graph, str(c.target)) for slot, c in constants.items()}
        names |= {f"result{n}": item for n, item in enumerate(self._results)}
        names |= {"as_torch": as_torch, "value_of": value_of}
        exec(self.text(), names)  # the text is ours; no name in it comes from outside
        self._function: Callable[[list[Any], Any], list[Any]] = names["run"]

    def _made(self, programs: Programs) -> list[Instruction]:
        kept = {node for node in self._slot if node.op == "get_attr"}
        fx.map_arg(self._results, kept.add)
        made: list[tuple[Step, Sequence[fx.Node], Sequence[fx.Node]]] = []
        for part in self.clustered.steps:
            if isinstance(part, XlaCluster):
                stays = [node in self._on_device for node in part.outputs]
                step = ClusterStep(Policy(part, programs), stays, self._failed)
                made.append((step, part.inputs, part.outputs))
            else:
                native = NativeStep(part)
                made.append((native, native.inputs, (part,)))
        last_use = {node: number for number, (_, reads, _) in enumerate(made) for node in reads}
        slot = self._slot
        return [
            Instruction(
                step,
                tuple(slot[node] for node in reads),
                tuple(slot[node] for node in writes),
                tuple(slot[n] for n in set(reads) if last_use[n] == number and n not in kept),
            )
            for number, (step, reads, writes) in enumerate(made)
        ]

    def text(self) -> str:
        """Return the function's source: v are values, by their nodes' place in the graph."""
        body = [f"{_list(self._slot[node] for node in self._inputs)} = inputs"]
        body += ["inputs.clear()  # so that what a step is the last to need is really freed"]
        for number, instruction in enumerate(self._instructions):
            body += instruction.text(number).split("\n")
        results = ", ".join(self._result(*pair) for pair in enumerate(self._results))
        body += [f"return [{results}]"]
        return "\n    ".join(["def run(inputs, bindings):", *body])

    def _result(self, number: int, item: Any) -> str:
        """Return the expression for a result of the graph."""
        if not isinstance(item, fx.Node):
            return f"result{number}"
        if is_shape_number(item):  # follows from sizes, and is computed by no step
            return f"value_of(result{number}.meta['val'], bindings)"
        value = f"v{self._slot[item]}"
        return f"as_torch({value})" if item in self._on_device else value

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if client.forked or self._dry:
            return self._natively(inputs)
        if self._changes != registry.changes:
            self._renew()
        started = time.perf_counter()
        bindings: dict[Any, Any] = {}
        if self._symbolic:
            for node, value in zip(self._inputs, inputs, strict=True):
                bind(node.meta.get("val"), value, bindings)
        results = self._function(inputs, bindings)
        emit(PlanExecuted(self, time.perf_counter() - started))
        return results

    def _natively(self, inputs: list[Any]) -> list[Any]:
        """Run the captured graph in torch: in a dry run, or in a fork of a process with XLA."""
        given = list(inputs)
        inputs.clear()
        emit(NativeExecuted(self.clustered.operations))
        with draw.without_xla():
            return list(self.clustered.captured.graph(*given))
