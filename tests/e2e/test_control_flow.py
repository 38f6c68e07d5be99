"""torch.cond, while_loop, scan, associative_scan and map: XLA's work, with eager's results."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as each
from torch.utils._pytree import tree_leaves

import torch_galley

# torch's own: Dynamo looks at .grad, and a trace of scan imports inductor, which scripts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pred is a Python constant"),
]

cond = torch.cond
ROWS, COLUMNS = 5, 4


class Net(torch.nn.Module):
    """Control flow among ordinary layers, over parameters and a buffer that it closes over."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.first = torch.nn.Linear(COLUMNS, COLUMNS)
        self.inner = torch.nn.Linear(COLUMNS, COLUMNS)
        self.register_buffer("shift", torch.randn(COLUMNS))

    def forward(self, x):
        return self.body(self, self.first(x))


def branches(net, x):
    return cond(x.sum() > 0, lambda x: net.inner(x).sin(), lambda x: x.cos() + net.shift, (x,))


def nested(net, x):
    def outer(x):
        return cond(x.max() > 1, lambda x: net.inner(x), lambda x: x * x, (x,))

    return cond(x.sum() > 0, outer, lambda x: outer(-x).exp(), (x,)).relu()


def several_results(net, x):
    yes, no = cond(
        x[0, 0] > 0,
        lambda x: (x.exp(), {"k": net.inner(x).sum(0)}),
        lambda x: (x.log1p(), {"k": x.prod(0)}),
        (x.abs(),),
    )
    return yes + no["k"]


def rnn(net, x):
    def cell(state, row):
        state = (net.inner(state) + row + net.shift).tanh()
        return state, state * 2

    last, all_states = scan(cell, torch.zeros(COLUMNS, dtype=x.dtype), x)
    return last, net.inner(all_states)


def reverse_scan(net, x):
    return scan(lambda c, x: (c * 0.5 + x, c.sin()), x[:, 0] * 0, x, dim=1, reverse=True)


def tree_scan(net, x):
    def step(state, rows):
        before = [state["mean"].sin(), (state["power"].view(2, 2).t().exp(),)]
        return {"mean": state["mean"] + rows[0], "power": state["power"] * rows[1]}, before

    start = {"mean": torch.zeros(COLUMNS), "power": torch.ones(COLUMNS)}
    return scan(step, start, (x, x + 1))


def scan_in_scan(net, x):
    def step(state, row):
        inner, _ = scan(lambda c, r: (c * r, c.sin()), state, torch.stack([row, row + 1]))
        return inner.tanh() + row, inner * 1

    return scan(step, torch.ones(COLUMNS), x)


def mapped(net, x):
    def row(r):
        return cond(r.sum() > 0, lambda r: net.inner(r).sin(), lambda r: r * net.shift, (r,))

    return each(row, x).softmax(-1)


def cumulative(net, x):
    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    return associative_scan(combine, (x.sigmoid(), x), 0, combine_mode="generic")


def pointwise_operator(net, x):
    return torch.ops.higher_order.associative_scan(lambda a, b: (a * b.sin(),), (x,), ())


TRAINED = [branches, nested, several_results, rnn, reverse_scan, tree_scan, scan_in_scan]
TRAINED += [mapped, cumulative, pointwise_operator]


def trained(net, call, x):
    net.zero_grad()
    x = x.clone().requires_grad_()
    results = tree_leaves(call(x))
    sum((2 * result).sum() for result in results if result.requires_grad).backward()
    return [*results, x.grad, *(parameter.grad for parameter in net.parameters())]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("body", TRAINED)
def test_forward_and_backward(body, dynamic):
    net = Net(body)
    compiled = torch.compile(net, backend="galley", dynamic=dynamic, fullgraph=True)
    for rows, sign in itertools.product((ROWS, ROWS + 2) if dynamic else (ROWS,), (1, -1)):
        x = sign * torch.randn(rows, COLUMNS)
        torch.testing.assert_close(trained(net, compiled, x), trained(net, net, x))
    metrics = torch_galley.metrics()
    assert metrics["native_ops"] == 0
    assert metrics["executions"] == 2 * 2 * (2 if dynamic else 1)  # forward and backward, one each


def newton(x):
    """Square roots: iterate until no element moves."""

    def moves(step, root, before):
        return ((root - before).abs().max() > 1e-6) & (step < 50)

    def better(step, root, before):
        return step + 1, 0.5 * (root + x / root), root.clone()

    return while_loop(moves, better, (torch.tensor(0), x + 1, x * 0))


def collatz(x):
    def one(n, steps):
        half = n % 2 == 0
        return torch.where(half, n // 2, 3 * n + 1), steps + 1

    count = (x.abs() * 10).long().sum() + 2
    return while_loop(lambda n, steps: n != 1, one, (count, torch.tensor(0, dtype=torch.int16)))


def never(x):
    return while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x.exp()), (torch.tensor(0), x))


def flags(x):
    def step(go, k, x):
        return ~(k > 3), k + 1, (x * 2).to(torch.bfloat16).float()

    return while_loop(lambda go, k, x: go & (k < 9), step, (torch.tensor(True), torch.tensor(0), x))


def counted(x):
    """The number that is carried indexes, is computed with, and is not asked for."""

    def step(i, total):
        return i + 1, total + x[i] * (i % 3) - i // 2

    return while_loop(lambda i, total: i < x.shape[0], step, (0, torch.zeros(COLUMNS)))[1]


def loops_in_a_loop(x):
    def outer(i, x):
        inner = while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y + i), (i * 0, x))
        return i + 1, inner[1] * 0.5

    return while_loop(lambda i, x: i < 4, outer, (torch.tensor(0), x))


def constants(x):
    return cond(x.sum() > 0, lambda x: x * torch.tensor([2.0, 3.0, 4.0, 5.0]), torch.sin, (x,))


def sizes(x):
    return cond(x.shape[0] > 5, lambda x: x.sin() * x.shape[0], lambda x: x.cos(), (x,))


INFERRED = [newton, collatz, never, flags, counted, loops_in_a_loop, constants, sizes]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", INFERRED)
def test_without_gradients(function, dynamic):
    compiled = torch.compile(function, backend="galley", dynamic=dynamic, fullgraph=True)
    with torch.no_grad():
        for rows in (ROWS, ROWS + 2) if dynamic else (ROWS,):
            x = torch.rand(rows, COLUMNS) + 0.5
            torch.testing.assert_close(compiled(x), function(x))
    metrics = torch_galley.metrics()
    assert (metrics["native_ops"], metrics["executions"]) == (0, 2 if dynamic else 1)


def test_a_number_that_is_asked_for_is_read_once():
    def function(x):
        i, x = while_loop(lambda i, x: x.sum() > 1, lambda i, x: (i + 2, x / 2), (1, x))
        return i, x.sin()

    with torch.no_grad():
        x = torch.ones(ROWS, COLUMNS)
        compiled = torch.compile(function, backend="galley", fullgraph=True)
        torch.testing.assert_close(compiled(x), function(x))
    assert torch_galley.metrics()["native_ops"] == 1  # the reading


def test_gradients_through_a_while_loop():
    """Forward keeps every turn, how many is data: natively. Backward is XLA's."""
    layer = torch.nn.Linear(COLUMNS, COLUMNS)

    def step(i, x):
        return i + 1, layer(x).sin()

    def function(x):
        return while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))[1]

    found = []
    for call in (function, torch.compile(function, backend="galley", fullgraph=True)):
        layer.zero_grad()
        x = torch.ones(ROWS, COLUMNS, requires_grad=True)
        result = call(x)
        result.sum().backward()
        found.append([result, x.grad, layer.weight.grad, layer.bias.grad])
    torch.testing.assert_close(*reversed(found))
    assert torch_galley.metrics()["native_ops"] == 2  # the forward loop, and a view of it


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_dtypes(dtype):
    def function(x):
        step = (lambda a, b: a ^ b) if dtype is torch.bool else (lambda a, b: a * b + a)
        last, rows = scan(lambda c, x: (step(c, x), step(x, c)), x[0].clone(), x)
        return cond(x.any(), lambda a, b: step(a, b), lambda a, b: a + b, (last, rows))

    x = (3 * torch.randn(ROWS, COLUMNS)).to(dtype)
    with torch.no_grad():
        compiled = torch.compile(function, backend="galley", fullgraph=True)
        torch.testing.assert_close(compiled(x), function(x))
    assert torch_galley.metrics()["native_ops"] == 0


def looked_up(x, places):
    return scan(lambda c, i: (c + x[i.view(1)][0].sin(), c * 2), torch.zeros(COLUMNS), places)


def looked_up_while(x, places):
    def step(i, total):
        return i + 1, total + x[places[i]][0].abs()

    start = torch.zeros(1, dtype=torch.int64), torch.zeros(COLUMNS)
    return while_loop(lambda i, total: total.sum() < 1e6, step, start)


def looked_up_to_go_on(x, places):
    def goes_on(i, total):
        return x[places[i]].sum() < 1e6

    start = torch.zeros(1, dtype=torch.int64), torch.zeros(COLUMNS)
    return while_loop(goes_on, lambda i, total: (i + 1, total + 1), start)


def looked_up_in_a_branch(x, places):
    def step(c, i):
        found = cond(i > 5, lambda c, i: c + x[i.view(1)][0], lambda c, i: c * 2, (c, i))
        return found, c * 1

    return scan(step, torch.zeros(COLUMNS), places)


def beyond_the_end(x, places):
    start = (4, torch.zeros(COLUMNS))
    return while_loop(lambda i, t: t.sum() < 1e6, lambda i, t: (i + 1, t + x[i].abs()), start)


def by_zero(x, places):
    return while_loop(lambda i, t: i < 9, lambda i, t: (i + 1, t + 5 % (7 - i)), (0, x[0] * 0))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (looked_up, IndexError, "index 7 is out of bounds"),
        (looked_up_while, IndexError, "index 7 is out of bounds"),
        (looked_up_to_go_on, IndexError, "index 7 is out of bounds"),
        (looked_up_in_a_branch, IndexError, "index 7 is out of bounds"),
        (beyond_the_end, IndexError, "select: index 5 is out of bounds"),
        (by_zero, ZeroDivisionError, "by zero"),
    ],
)
def test_the_first_bad_index_raises(function, error, message):
    """The first in eager's order; a later turn may have another, or never end."""
    x, bad = torch.randn(ROWS, COLUMNS), torch.tensor([0, 3, 7, 9, 1])
    with torch.no_grad():
        with pytest.raises(error, match=r"by zero|index \d"):
            function(x, bad)
        with pytest.raises(error, match=message):
            torch.compile(function, backend="galley", fullgraph=True)(x, bad)
        if function is looked_up:
            good = torch.tensor([0, 3, 4])
            compiled = torch.compile(function, backend="galley", fullgraph=True)
            torch.testing.assert_close(compiled(x, good), function(x, good))
    assert torch_galley.metrics()["native_ops"] == 0


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_predicate_of_several_elements(count):
    def function(x):
        return cond(x > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(RuntimeError, match=rf"its predicate has {count}\n  at .*in function\n"):
        torch.compile(function, backend="galley")(torch.ones(count))
    torch.testing.assert_close(
        torch.compile(function, backend="galley")(torch.ones(1)), torch.full((1,), 2.0)
    )


def test_drawing_bodies_run_natively_and_draw_anew():
    def function(x):
        rows = scan(lambda c, x: (c + torch.rand(COLUMNS), c + x), torch.zeros(COLUMNS), x)[1]
        return cond(x.sum() > 0, lambda x: torch.dropout(x, 0.5, True), lambda x: x + 1, (rows,))

    x = torch.ones(ROWS, COLUMNS)
    found = []
    for call in (function, torch.compile(function, backend="galley", fullgraph=True)):
        torch.manual_seed(3)
        with torch.no_grad():
            found.append([call(x), torch.rand(1)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    told = torch_galley.explain(function, x)
    assert "in scan_combine_graph_0, aten.rand.default draws random numbers" in str(told)


def test_a_branch_that_writes_runs_natively():
    def function(x):
        return cond(x.sum() > 0, lambda x: x.add_(1).sin(), lambda x: x.cos(), (x,))

    given, wanted = torch.ones(3), torch.ones(3)
    with torch.no_grad():
        ours = torch.compile(function, backend="galley", fullgraph=True)(given)
        torch.testing.assert_close([ours, given], [function(wanted), wanted])


@pytest.mark.parametrize("compiled", [False, True], ids=["eagerly", "openxla"])
@pytest.mark.parametrize("body", [branches, rnn, mapped])
def test_on_the_xla_device(body, compiled):
    found = []
    x = torch.randn(ROWS, COLUMNS)
    for device in ("cpu", torch_galley.device()):
        net = Net(body).to(device)
        given = x.clone().to(device).detach().requires_grad_()
        with torch.device(device):  # for the tensors that the bodies make
            call = torch.compile(net, backend="openxla") if compiled and device != "cpu" else net
            results = tree_leaves(call(given))
            sum(result.sum() for result in results).backward()
        found.append([t.cpu() for t in (*results, given.grad, net.inner.weight.grad)])
    torch.testing.assert_close(*reversed(found))


def test_a_loop_on_the_xla_device():
    def function(x):
        return while_loop(lambda i, x: x.sum() > 1, lambda i, x: (i + 1, x / 2), (0, x))

    with torch.no_grad():
        x = torch.ones(ROWS, COLUMNS)
        turns, result = function(x.to(torch_galley.device()))
        torch.testing.assert_close((turns, result.cpu()), function(x))
