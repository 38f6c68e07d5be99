"""Embeddings, bags and the likelihood of targets: padding, ignored targets, bad indices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

IDS = torch.tensor([[2, 0, 2], [5, 0, 3]])


@pytest.mark.parametrize(
    "settings", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}], ids=str
)
def test_embedding(galley, settings):
    weight = torch.randn(6, 4)
    twins = weight.clone().requires_grad_(), weight.clone().requires_grad_()

    def f(w, i):
        return F.embedding(i, w, **settings)

    outputs = f(twins[0], IDS), galley(f, fullgraph=True)(twins[1], IDS)
    torch.testing.assert_close(outputs[1], outputs[0])
    for output in outputs:
        (output * output).sum().backward()
    torch.testing.assert_close(twins[1].grad, twins[0].grad)


@pytest.mark.parametrize("bad", [6, -1])
def test_a_bad_index_raises(galley, bad):
    run = galley(lambda w, i: F.embedding(i, w))
    with pytest.raises(IndexError, match=f"embedding: index {bad} is out of bounds"):
        run(torch.randn(6, 4), torch.tensor([1, bad]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bag(same, mode, dtype):
    weight = torch.randn(6, 4, dtype=dtype)
    ids, offsets = IDS.ravel(), torch.tensor([0, 3, 3, 5])  # the second is empty
    same(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode), weight, ids, offsets)
    same(
        lambda w, i, o: F.embedding_bag(
            i, w, o, mode=mode, padding_idx=0, include_last_offset=True
        ),
        weight,
        ids,
        torch.tensor([0, 3, 3, 6]),
    )


def test_weighted_bag(same):
    weight, factors = torch.randn(6, 4), torch.randn(6)
    same(
        lambda w, f: F.embedding_bag(
            IDS.ravel(), w, torch.tensor([0, 3]), mode="sum", per_sample_weights=f
        ),
        weight,
        factors,
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bag_gradient(galley, mode):
    weight = torch.randn(6, 4)
    twins = weight.clone().requires_grad_(), weight.clone().requires_grad_()

    def f(w, i):
        return F.embedding_bag(i, w, torch.tensor([0, 4]), mode=mode)

    for output in (f(twins[0], IDS.ravel()), galley(f)(twins[1], IDS.ravel())):
        (output * output).sum().backward()
    torch.testing.assert_close(twins[1].grad, twins[0].grad)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3, 3), (5,)], ids=str)
def test_nll_loss(galley, shape, weighted, reduction):
    x, w = torch.randn(shape), torch.rand(5) if weighted else None
    target = torch.randint(0, 5, [*shape[:1], *shape[2:]] if len(shape) > 1 else [])
    if target.dim():
        target[0] = -100  # ignored
    twins = x.clone().requires_grad_(), x.clone().requires_grad_()

    def f(x, t, w):
        return F.nll_loss(x.log_softmax(min(x.dim() - 1, 1)), t, w, reduction=reduction)

    outputs = f(twins[0], target, w), galley(f, fullgraph=True)(twins[1], target, w)
    torch.testing.assert_close(outputs[1], outputs[0])
    for output in outputs:
        (output * output).sum().backward()
    torch.testing.assert_close(twins[1].grad, twins[0].grad)


def test_all_targets_ignored_gives_nan(same):
    same(F.cross_entropy, torch.randn(3, 5), torch.full((3,), -100))


def test_a_target_out_of_bounds_raises(galley):
    with pytest.raises(IndexError, match=r"nll_loss_forward: target 7 is out of bounds for"):
        galley(F.cross_entropy)(torch.randn(3, 5), torch.tensor([1, 7, 9]))
