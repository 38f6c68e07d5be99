"""A training graph, split into forward and backward so that neither reads what the other wrote.

torch's min-cut split keeps for the backward graph what is cheapest, and recomputes the rest from
it. An input costs nothing to keep. But one that the forward overwrites (running statistics, a
counter, a moving average) shows its new value by then, and autograd refuses the backward of a
program that eager accepts. So what may be kept of such an input is a copy of its old value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten

_OLD_VALUE = "galley_old_value"
"""Marks, in a node's meta, the copy of an input that the forward overwrites."""


def split(
    joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **settings: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a joint one: a partition_fn of AOTAutograd's.

    Example: `aot_autograd(..., partition_fn=split)`
    """
    _read_copies(joint.graph)
    forward, backward = min_cut_rematerialization_partition(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **settings
    )
    _read_originals(forward)
    return forward, backward


def _read_copies(graph: fx.Graph) -> None:
    """Have copies read in place of the inputs that are overwritten when the forward ends.

    A copy can't be made again afterwards, but what is computed from it can.
    """
    (output,) = graph.find_nodes(op="output")
    descriptions = output.meta["desc"]
    written = {d.mutated_input for d in descriptions if isinstance(d, InputMutationAOTOutput)}
    inputs = graph.find_nodes(op="placeholder")
    for node in inputs:
        if node.meta.get("desc") not in written or not _is_dense(node.meta["val"]):
            continue  # of another layout, its copy would not be laid out like it
        with graph.inserting_after(inputs[-1]):
            copy = graph.call_function(aten.clone.default, (node,))
        copy.meta = {"val": node.meta["val"].clone(), "recompute": CheckpointPolicy.MUST_SAVE}
        copy.meta[_OLD_VALUE] = True
        node.replace_all_uses_with(copy, lambda user, copy=copy: user not in (copy, output))


def _is_dense(val: Any) -> bool:
    return isinstance(val, torch.Tensor) and is_non_overlapping_and_dense_or_false(val)


def _read_originals(forward: fx.GraphModule) -> None:
    """Leave in the forward only those copies that it keeps for the backward."""
    for node in list(forward.graph.nodes):
        if node.meta.get(_OLD_VALUE):
            node.replace_all_uses_with(node.args[0], lambda user: user.op != "output")
            if not node.users:
                forward.graph.erase_node(node)
    forward.recompile()
