"""Can XLA take a node? None or a Reason."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_galley.cluster.candidate import candidates
from torch_galley.cluster.support import support
from torch_galley.compile.client import has_device
from torch_galley.core import reasons
from torch_galley.core.config import Config
from torch_galley.core.errors import ConfigError
from torch_galley.ops.registry import lookup

aten = torch.ops.aten


def reason_for(function, *inputs, op=None, config=None, device=has_device):
    """Return the reason for the node of `op` (the last call) in a function's graph."""
    graph = make_fx(function, tracing_mode="symbolic")(*inputs)
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    node = next(n for n in calls if n.target == op) if op else calls[-1]
    (reason,) = candidates([node], config or Config(), device)
    return reason


def test_supported():
    assert reason_for(torch.sin, torch.ones(2)) is None


@pytest.mark.parametrize("entry", ["aten.sin", "aten.sin.default"])
def test_denied_by_operator_or_overload(entry):
    config = Config(deny_ops=(entry,))
    assert reason_for(torch.sin, torch.ones(2), config=config) == reasons.DeniedByUser(
        "aten.sin.default"
    )


@pytest.mark.parametrize("entry", ["sin", "aten.nope", "nope.sin", "aten", ""])
def test_a_denied_operator_must_exist(entry):
    with pytest.raises(ConfigError, match=f"deny_ops names {entry!r}, which is no operator"):
        reason_for(torch.sin, torch.ones(2), config=Config(deny_ops=(entry,)))


def test_data_dependent_shapes_and_numbers():
    reason = reason_for(torch.nonzero, torch.ones(2), op=aten.nonzero.default)
    assert reason == reasons.DataDependentShape("aten.nonzero.default")
    assert str(reason) == "aten.nonzero.default: result depends on the data"


def test_no_lowering():
    op = aten._linalg_eigh.default
    assert lookup(op) is None
    reason = reason_for(lambda x: torch.linalg.eigh(x)[0], torch.eye(2), op=op)
    assert reason == reasons.NoLowering("aten._linalg_eigh.default")


def test_random():
    reason = reason_for(lambda x: torch.rand_like(x), torch.ones(2))
    assert reason == reasons.Random("aten.rand_like.default")


def test_writes():
    reason = reason_for(lambda x: x.add_(1), torch.ones(2))
    assert reason == reasons.SideEffect("aten.add_.Tensor")


def test_dtype():
    reason = reason_for(lambda x: x.t(), torch.ones(2, 2).to(torch.float8_e4m3fn))
    assert reason == reasons.UnsupportedDtype("float8_e4m3fn")


def test_cuda_tensors_where_jax_has_no_gpu():
    with FakeTensorMode():
        x = torch.empty(2, device="cuda")
    graph = torch.fx.Graph()
    node = graph.call_function(aten.sin.default, (graph.placeholder("x"),))
    node.args[0].meta["val"] = node.meta["val"] = x
    assert support(node, lambda device: device.type == "cpu") == reasons.NoDevice("cuda")
    assert str(reasons.NoDevice("cuda")) == "jax has no cuda device in this process"
    assert support(node, lambda device: True) is None
