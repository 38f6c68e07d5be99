"""The models that docs/models.md measures, shrunk: all in XLA, equal to eager, trained alike."""

from __future__ import annotations

import pytest
import torch

from benchmarks import judging, zoo

SLOW = {"ConvNeXt-T", "MobileNetV2", "T5-small"}
OPTIONS = {"min_cluster_size": 1, "strict": True}


@pytest.fixture(autouse=True)
def _as_in_the_zoo():
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in zoo.SMALL],
)
def test_inference(name):
    model, inputs = zoo.SMALL[name]()
    wanted = judging.tensors(judging.run(model, inputs))
    seen = judging.Seen()
    compiled = torch.compile(model, backend="galley", fullgraph=True, options=OPTIONS)
    given = judging.tensors(seen.watch(lambda: judging.run(compiled, inputs)))
    assert judging.error(given, wanted) <= judging.LIMIT
    assert seen.unexcused() == []
    assert (len(seen.graphs), seen.clusters) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.TRAINED)
def test_training(name):
    wanted = zoo.losses(name, 3, lambda model: model, small=True)
    seen = judging.Seen()
    given = seen.watch(
        lambda: zoo.losses(
            name,
            3,
            lambda model: torch.compile(model, backend="galley", fullgraph=True, options=OPTIONS),
            small=True,
        )
    )
    assert given == pytest.approx(wanted, rel=1e-3)
    assert wanted[-1] < wanted[0]
    assert seen.unexcused() == []
    assert seen.runs == 6
    assert {graph.captured.role for graph in seen.graphs} == {"forward", "backward"}


def test_there_are_twelve_models_small_and_full():
    assert list(zoo.SMALL) == list(zoo.FULL)
    assert len(zoo.FULL) == 12


def test_a_result_far_off_is_told():
    truth = [torch.tensor([1.0, -2.0]), torch.tensor([3])]
    off = [torch.tensor([1.0, -2.1]), torch.tensor([3])]
    assert judging.error(off, truth) == pytest.approx(0.05, rel=1e-5)
    assert judging.error([truth[0], torch.tensor([4])], truth) == float("inf")
    assert judging.error([torch.tensor([1.0, float("nan")]), truth[1]], truth) == float("inf")
    assert judging.error(truth[:1], truth) == float("inf")
