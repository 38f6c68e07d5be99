"""A later write must never reach an earlier result: Note [Aliasing] in run/execute.py."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import torch_galley
from torch_galley.core.spec import XLA_DTYPE


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(6):
        y = ((y @ x) * 0.02).sin()
    return y


def test_caller_writes_an_input_right_after_the_call(galley):
    compiled = galley(chain)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(500, 500)
        wanted = chain(x.clone())
        given = compiled(x)
        x.fill_(float("nan"))  # XLA runs asynchronously on x's own memory
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [4, 400])  # 4: copied to memory of ours; 400: too large for that
def test_calls_with_inputs_of_all_kinds_in_turn(galley, size):
    def function(x):
        return x.sum(0), x * 2

    compiled = galley(function, dynamic=False)
    x = torch.randn(size, size, dtype=torch.complex64)
    with torch.inference_mode():
        inference = x + 1
    kinds = [x, x.clone(), x.conj(), x.mT, torch.nn.Parameter(x), x.clone().requires_grad_()]
    kinds += [inference, x.imag, x[:1], x[::2], x.to(torch.complex128)]
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=len(kinds)):
        wanted = [function(value) for value in kinds * 3]
        given = [compiled(value) for value in kinds * 3]
    assert torch_galley.metrics()["executions"] == len(given)
    torch.testing.assert_close(given, wanted)
    assert [r.stride() for pair in given for r in pair] == [
        r.stride() for pair in wanted for r in pair
    ]


def test_parameter_stepped_in_place_and_rebound(galley):
    parameter = torch.nn.Parameter(torch.ones(4))
    compiled = galley(lambda: parameter * 2)
    with torch.no_grad():
        first = compiled()
        parameter.add_(1)
        second = compiled()
        parameter.data = torch.zeros(4)
        third = compiled()
        parameter.data.numpy()[:] = 5  # bumps no version counter
        fourth = compiled()
    assert [t[0].item() for t in (first, second, third, fourth)] == [2, 4, 0, 10]


def test_results_own_their_memory(galley):
    def f(x):
        y = x * 1
        return y, y.clone(), x.clone(), torch.ones(3)

    x = torch.arange(3.0)
    compiled = galley(f)
    results = compiled(x)
    for value, result in enumerate(results):
        result.fill_(float(value + 10))
    assert [r[0].item() for r in results] == [10, 11, 12, 13]
    assert x.tolist() == [0, 1, 2]
    assert compiled(x)[3].tolist() == [1, 1, 1]  # nor was the executable's constant written


def test_result_is_the_argument_where_eager_says_so(galley):
    x = torch.ones(3)
    same, view, other = galley(lambda x: (x, x.view(-1), x + 0))(x)
    assert same is x
    view[0] = 7
    assert x[0] == 7
    assert other.tolist() == [1, 1, 1]


def test_argument_written_through_a_view(galley):
    def f(x, k):
        x.t().mul_(10.0)
        k[1:3].copy_(x[0, :2])
        return x.view(-1), k, x.shape[0], None

    x, k = torch.arange(6.0).reshape(2, 3), torch.zeros(4)
    out = galley(f)(x, k)
    out[0][0] = -1.0
    assert x.tolist() == [[-1, 10, 20], [30, 40, 50]]
    assert out[1] is k
    assert k.tolist() == [0, 0, 10, 0]
    assert out[2:] == (2, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4),
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        lambda: torch.arange(3.0).expand(4, 3),
        lambda: torch.arange(3.0)[:, None].expand(3, 4),
        lambda: torch.arange(24.0).reshape(4, 6)[:, ::2],
        lambda: torch.arange(25.0)[1:].reshape(4, 6),  # not aligned to 64 bytes
        lambda: torch.zeros(0, 3),
        lambda: torch.tensor(2.0),
    ],
    ids=[
        "plain",
        "transposed",
        "permuted",
        "expanded",
        "expanded_inner",
        "gaps",
        "misaligned",
        "empty",
        "scalar",
    ],
)
def test_inputs_and_results_of_every_layout(galley, make):
    x = make()
    wanted = (x * 2, x.clone())
    given = galley(lambda x: (x * 2, x.clone()))(x)
    for got, want in zip(given, wanted, strict=True):
        assert torch.equal(got, want)
        if want.numel() > 1:
            assert got.stride() == want.stride()


@pytest.mark.parametrize(
    "dtype",
    sorted(XLA_DTYPE, key=str),
)
def test_every_dtype_crosses_the_border(galley, dtype):
    x = torch.tensor([1, 0, 1]).to(dtype)
    given = galley(lambda x: x.clone())(x)
    assert given.dtype is dtype
    assert torch.equal(given, x)


def test_conjugated_and_negated_views(same):
    x = torch.tensor([1 + 2j, 3 - 1j])
    same(lambda c, n: (c * 1, n * 1), x.conj(), x.conj().imag)


def test_results_that_share_memory_in_eager_share_it_here(galley):
    def f(x):
        y = x * 2
        a, b = y.chunk(2)
        return y, y.view(-1), a.t(), b + 1, x.sin()

    x = torch.arange(8.0).reshape(4, 2)
    wanted, given = f(x), galley(f)(x)
    for results in (wanted, given):
        results[0].add_(1)
        results[1][1] = 50
        results[2][0, 0] = -7
        results[4].zero_()
    for got, want in zip(given, wanted, strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()


@pytest.mark.parametrize(
    "view",
    [lambda x: x.unbind(0)[1], lambda x: x.chunk(2, 1)[1].t(), lambda x: x.split([1, 3])[1]],
    ids=["unbind", "chunk", "split"],
)
def test_a_view_of_an_input_that_requires_a_gradient(galley, view):
    x = torch.randn(4, 4, requires_grad=True)
    compiled = galley(lambda x: (view(x), x.sin()), options={"require_full": True})
    given, wanted = compiled(x)[0], view(x)
    assert (given._is_view(), given.stride()) == (True, wanted.stride())
    given.square().sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(wanted.square().sum(), x)[0])
    with torch.no_grad():
        x.add_(1)
    assert torch.equal(given, view(x))
    assert torch_galley.metrics()["executions"] == 2


def test_an_input_that_is_given_other_memory(galley):
    def function(x, y):
        x.data = y.detach() * 2
        return (x * y).sum()

    results = []
    for run in (galley(function, fullgraph=True), function):
        x, y = torch.ones(3, requires_grad=True), torch.arange(3.0, requires_grad=True)
        if run is function:
            result = run(x, y)
        else:
            with pytest.warns(UserWarning, match=r"at .*test_aliasing.* runs natively: write"):
                result = run(x, y)
        result.backward()
        results.append((result, x, x.grad, y.grad))
    torch.testing.assert_close(*results)
    with pytest.raises(BackendCompilerFailed, match=r"CaptureError: .*other memory"):
        galley(function, options={"require_full": True})(x, y)


def test_a_lone_view_stays_in_the_cluster(galley):
    galley(lambda x: ((x * 2).t(), x.sin()))(torch.ones(2, 3))
    assert torch_galley.metrics()["native_ops"] == 0


def test_checkpoint_with_dropout(galley):
    from torch.utils.checkpoint import checkpoint

    def f(x):
        def inner(x):
            return torch.nn.functional.dropout(x * 2, 0.5).sin()

        return checkpoint(inner, x, use_reentrant=False)

    x = torch.ones(100, requires_grad=True)
    y = galley(f)(x)
    y.sum().backward()
    assert torch.equal(y != 0, (x.grad - 2).abs() > 1e-6) or torch.equal(y != 0, x.grad != 0)
    assert 20 < (y != 0).sum() < 80


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[:, :3],
        lambda y: y.diagonal(),
        lambda y: y.unfold(0, 2, 1),
        lambda y: y[:1].expand(3, 4),
        lambda y: y[::2].t(),
        lambda y: y.chunk(2, 1)[1],
    ],
    ids=["slice", "diagonal", "unfold", "expand", "step", "chunk"],
)
def test_a_lone_view_keeps_its_strides(galley, view):
    x = torch.randn(4, 4)
    wanted = view((x * 2).sin())
    given = galley(lambda x: view((x * 2).sin()))(x)
    assert given.stride() == wanted.stride()
    torch.testing.assert_close(given, wanted)


def test_a_result_without_elements_can_be_given_some(galley):
    x = torch.ones(3)
    result, sums = galley(lambda x: (x[:0] * 2, x.sum()))(x)
    assert torch.equal(torch.mul(x, 2, out=result), x * 2)
    assert sums == 3
    assert torch_galley.metrics()["executions"] == 1


@pytest.mark.parametrize(
    "function",
    [lambda x: (x * 2).mT, lambda x: x.exp().contiguous(memory_format=torch.channels_last)],
    ids=["transposed", "channels_last"],
)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_a_result_of_any_layout_can_be_written_in_place(galley, function, needs_gradient):
    results = []
    for run in (galley(function), function):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 4, 4, requires_grad=needs_gradient)
        weight = torch.full((1,), 3.0, requires_grad=True)
        y = run(x)
        y.mul_(weight)
        y.square().sum().backward()
        results.append((y, weight.grad, x.grad))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[:, :2],
        lambda y: y.select(1, 0),
        lambda y: y[y > 0].view(-1, 1)[::2],
        lambda y: torch.stack([y, y]).select(2, 0),
        torch.t,
    ],
)
def test_a_lone_view_of_varying_sizes_keeps_its_strides(galley, view):
    compiled = galley(lambda x: view(x * 2), dynamic=True)
    for shape in ((3, 4), (5, 6)):
        x = torch.randn(shape)
        wanted, given = view(x * 2), compiled(x)
        assert given.stride() == wanted.stride()
        assert torch.equal(given, wanted)


def test_writes_after_a_graph_break_reach_the_other_result(galley):
    def f(x):
        y = (x * 2 + 1).sin()
        head = y[:2]
        torch._dynamo.graph_break()
        head.add_(100)
        return y * 1

    x = torch.ones(4)
    torch.testing.assert_close(galley(f)(x), f(x))


def test_training_keeps_views_in_the_cluster(galley):
    x = torch.randn(4, 3, requires_grad=True)
    y = galley(lambda x: (x.sin().t() @ x).exp())(x)
    y.sum().backward()
    assert torch_galley.metrics()["native_ops"] == 0
