"""What a call costs, term by term."""

from __future__ import annotations

import pytest
import torch

from torch_galley.core.errors import ToolError
from torch_galley.core.events import GraphBuilt, listen
from torch_galley.tools.measure import alternate, measure


def test_the_terms_of_each_cluster(galley):
    plans = []
    stop = listen(lambda event: plans.append(event.plan) if isinstance(event, GraphBuilt) else None)
    compiled = galley(lambda x: ((x * 2).sin() + 1).cos(), options={"deny_ops": ["aten.sin"]})
    x = torch.randn(64, 64)
    wanted = compiled(x)
    stop()
    steps = list(plans[0].instructions)
    costs = measure(lambda: compiled(x), plans, repeats=2)
    assert [cost.name for cost in costs.clusters] == [
        cluster.name for cluster in plans[0].clustered.clusters
    ]
    assert all(cost.terms.t_ops > 0 < cost.terms.t_fused for cost in costs.clusters)
    borders = sum(cost.terms.t_sync for cost in costs.clusters)
    assert costs.overhead == pytest.approx(costs.around + borders)
    assert plans[0].instructions == steps  # measuring leaves no trace
    assert torch.equal(compiled(x), wanted)


def test_a_call_that_runs_no_cluster():
    with pytest.raises(ToolError, match="no cluster ran"):
        measure(lambda: None, [], repeats=1)


def test_contenders_take_turns():
    calls = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
