"""Programs that write, view, share and return, against eager: values, identities, memory."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import torch_galley

Pair = namedtuple("Pair", ["first", "second"])


def views_of_the_input(x, w):
    return x.t(), x[1], x.view(-1), x[:, ::2], x.detach(), x * w


def pieces_of_the_input(x, w):
    return (*x.chunk(2), *x.split(1, 1), x.unbind(0)[1], x * w)


def views_of_each_other(x, w):
    y = (x * w).exp()
    a = y[1:]
    return a.t(), a, y.view(-1), y.chunk(2)


def expanded_and_strided(x, w):
    y = x * 2
    return y[:, :1].expand(4, 4), y.sum(0).expand(3, 4), (x + 1)[::2, ::2], y.t()


def the_input_itself(x, w):
    return x, w, x.contiguous(), x.float(), x.expand(4, 4), x * 2


def one_result_twice(x, w):
    y = x * w
    return [y, {"a": y}], (y, x, x), None, 3, "text"


def a_named_pair(x, w):
    return Pair(x * w, x), torch.max(x, 1), torch.sort(x, 0)


def sizes(x, w):
    return x.shape, x.stride(), x.size(0), x.dtype, x.sum()


def written(x, w):
    x.add_(1).mul_(2)
    x[1] = 5
    return x, x * w


def written_through_views(x, w):
    x.t()[1].mul_(3)
    x.view(-1)[2:5].zero_()
    x.diagonal().fill_(7)
    return x[1], x.sum()


def written_in_overlapping_windows(x, w):
    v = x.view(-1).unfold(0, 2, 2)
    v.mul_(2)
    x.as_strided((2, 3), (4, 1), 1).add_(10)
    return v, x


def written_by_index(x, w):
    x[[0, 2], [1, 3]] = 9
    x[x > 1] = 0
    x[..., -1] += 1
    return x


def written_by_copies(x, w):
    y = torch.zeros(4, 4, dtype=torch.int64)
    y.copy_(x * 3)
    half = torch.zeros(4, dtype=torch.bfloat16).copy_(x[0])
    x.copy_(half)
    return y, half, x


def written_by_out(x, w):
    values, places = torch.empty(4), torch.empty(4, dtype=torch.int64)
    torch.max(x, 1, out=(values, places))
    torch.add(x, 1, out=x)
    return values, places, x


def pieces_written(x, w):
    for row in x.unbind(0):
        row.mul_(2)
    x.view(torch.int32)[0].zero_()
    return x


def transposed_in_place(x, w):
    x.t_()
    return x, x * 2


def written_under_no_grad(x, w):
    with torch.no_grad():
        w[1].mul_(3)
        w[:, 0].zero_()
    return (w * x).sum()


def written_intermediates(x, w):
    y = x * w
    y.add_(1)
    y[0].mul_(3)
    z = y.clone()
    z[1:3, 1:3] = x[:2, :2]
    return y.sum(), z


def written_by_a_gradient(x, w):
    x.mul_(w)
    return x.chunk(2)[0] * 1, (x * w).sum()


def broken_in_two(x, w):
    y = x * w
    v = y[0]
    torch._dynamo.graph_break()
    v.add_(1)
    return (y * v).sum(), y


def gradient_inside(x, w):
    leaf = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf**3).sum(), leaf)
    return gradient, gradient * w


def mixed_modes(x, w):
    with torch.no_grad():
        y = x * w
        v = x[1:]
    return y, v, y + w


def transforms(x, w):
    return (
        torch.func.vmap(torch.func.grad(torch.sin))(x[0]),
        torch.func.jacrev(lambda a: a**2)(x[0]),
        torch.func.jvp(torch.sin, (x,), (x,)),
        torch.func.vmap(lambda a, b: (a * b).sum())(x, x),
    )


def complex_views(x, w):
    c = torch.complex(x, x + 1)
    c.real.copy_(x)
    c.imag.add_(1)
    return c, c.conj(), torch.view_as_real(c), c.mH


def a_hook(x, w):
    y = x * w
    y.register_hook(lambda gradient: gradient * 3)
    return (y * y).sum()


def nothing_and_little(x, w):
    return x[:0], x[:0] * 2, x.new_empty(0, 3), x[0, 0], x.sum().expand(2)


pytestmark = [  # of torch's own, while it traces
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning"),
]

PROGRAMS: list[Callable[..., Any]] = [
    value
    for value in list(globals().values())
    if getattr(value, "__module__", "") == __name__ and value is not Pair
]


def observed(run: Callable[..., Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return what there is to see of a call, and all values before and after writing results."""
    torch.manual_seed(0)
    inputs = [torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)]
    leaves = tree_leaves(run(*inputs))
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    known = [*results, *inputs]
    memory = [t.untyped_storage().data_ptr() if t.numel() else None for t in known]
    seen = {
        "others": [(type(leaf), leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)],
        "layout": [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in results],
        "identity": [[one is other for other in known] for one in results],
        "memory": [[one == other for other in memory] for one in memory],
        "gradient": [(t.requires_grad, t.is_leaf, t.is_conj()) for t in known],
        "written": [t._version > 0 for t in inputs],
    }
    values = [t.detach().clone() for t in known]
    wanting = [t for t in results if t.requires_grad and t.is_floating_point()]
    if wanting:
        sum((t * t * (i + 1)).sum() for i, t in enumerate(wanting)).backward()
        values += [t.grad for t in inputs if t.grad is not None]
    with torch.no_grad():
        for i, t in enumerate(results):
            if t.is_floating_point() and 0 not in t.stride():
                t.add_(i + 1)
    return seen, values + [t.detach().clone() for t in known]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_leaves_what_eager_leaves(galley, program):
    given, wanted = observed(galley(program)), observed(program)
    assert torch_galley.metrics()["executions"] >= 1
    assert given[0] == wanted[0]
    torch.testing.assert_close(given[1], wanted[1])


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda x, w: w.add_(1), "a leaf Variable that requires grad is being used in an in-place"),
        (lambda x, w: w[0].add_(1), "a view of a leaf Variable that requires grad is being used"),
        (lambda x, w: w.exp().add_(1).sum().backward(), "modified by an inplace operation"),
    ],
)
def test_a_write_that_eager_refuses_is_refused(galley, program, words):
    for run in (program, galley(program)):
        with pytest.raises(RuntimeError, match=words):
            run(torch.ones(2), torch.ones(2, requires_grad=True))
