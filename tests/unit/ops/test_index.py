"""Reading and writing at indices: order of repeats, negatives, masks, and errors as in eager."""

from __future__ import annotations

import pytest
import torch

import torch_galley


def ints(*values):
    return torch.tensor(values)


X = torch.arange(24.0).reshape(2, 3, 4)

KEYS = {
    "neighbours": lambda i, j: (slice(None), i, j),
    "apart": lambda i, j: (i, slice(None), j),
    "negative": lambda i, j: (slice(None), -1 - i),
    "broadcast": lambda i, j: (i[:, None], j[None, :] % 3),
    "number between": lambda i, j: (i, 1, slice(1, 3)),
    "new axis": lambda i, j: (None, i, ..., j),
    "empty": lambda i, j: (slice(None), i[:0]),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_index_and_index_put(same, key):
    def f(x, i, j):
        read = x[key(i, j)]
        written = x.clone()
        written[key(i, j)] = -read
        return read * 2, written

    same(f, X, ints(1, 0, 1), ints(-4, 2, 3))
    same(f, X.to(torch.bfloat16), ints(1, 0, 1), ints(-4, 2, 3))


def test_repeats_last_write_wins_and_sums_add(same):
    def f(x, i, v):
        return (
            x.index_put((i,), v),
            x.index_put((i,), v, accumulate=True),
            x.scatter(0, i, v),
            x.scatter(0, i, 9.0),
            x.scatter_add(0, i, v),
            x.index_copy(0, i, v),
            x.index_add(0, i, v, alpha=2),
            x.put(i, v),
            x.put(i, v, accumulate=True),
        )

    index = ints(3, 1, 3, 3, 1)
    same(f, torch.zeros(5), index, torch.tensor([1.0, 2, 3, 4, 5]))


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions(same, dtype, include_self):
    def f(base, i, source):
        modes = "sum", "prod", "mean", "amax", "amin"
        kept = {"include_self": include_self}
        return [base.scatter_reduce(0, i, source, m, **kept) for m in modes] + [
            base.index_reduce(0, i, source, m, **kept) for m in modes[1:]
        ]

    base = torch.tensor([10, -3, 7, 2]).to(dtype)
    same(f, base, ints(0, 2, 0, 2, 2), torch.tensor([1, 4, 5, -6, 8]).to(dtype))


def test_reductions_carry_nan(same):
    source = torch.tensor([float("nan"), 1.0, float("inf")])
    same(lambda b, i, s: b.scatter_reduce(0, i, s, "amax"), torch.zeros(2), ints(0, 0, 1), source)


def test_bool_sums_are_or(same):
    def f(x, i, s):
        return x.index_put((i,), s, accumulate=True), x.scatter_add(0, i, s), x.index_add(0, i, s)

    same(f, torch.tensor([False, True, False]), ints(0, 0, 1), torch.tensor([True, True, False]))


def test_shorter_index_than_source(same):
    def f(x, i, s):
        return x.gather(2, i), x.scatter(1, i[:, :, :2] % 3, s)

    same(f, X, torch.tensor([[[3, 0, 1]], [[1, 1, 2]]]), -X)


@pytest.mark.parametrize("others", [[], [None], [ints(-1)]])
def test_index_of_no_dimension(same, others):
    def f(x, i):
        indices = [i, *others]
        read = torch.ops.aten.index.Tensor(x, indices)
        return read + 1, torch.ops.aten.index_put.default(x, indices, read * 2)

    same(f, X, torch.tensor(-1))


def test_no_dimension_and_zero_size(same):
    def f(s, e, i):
        return (
            s.gather(0, i),
            s.scatter(0, i, 5.0),
            s.index_select(0, i),
            s.index_add(0, i, s),
            s.index_fill(0, i, 2),
            s.take(i - 1),
            e[i * 0 + ints(0, 1)[:0]] + 1,
            e.index_select(1, ints(2, 0)) + 1,
            e.gather(1, torch.zeros(0, 2, dtype=torch.int64)) + 1,
            e.index_add(0, torch.zeros(0, dtype=torch.int64), e) + 1,
        )

    same(f, torch.tensor(3.0), torch.ones(0, 3), torch.tensor(0))


MASK = torch.tensor([[True, False, True], [False, False, True]])


def put_inside(x, mask, values):
    y = x.clone()
    y[:, mask] = values
    return y


WRITES = {
    "number": lambda x, m: x.index_put((m,), torch.tensor(0.5)),
    "row": lambda x, m: x.index_put((m,), x[0, 0] * 10),
    "one row": lambda x, m: x.index_put((m,), x[:1, 0] * 10),
    "accumulate": lambda x, m: x.index_put((m,), x[0, 0] * 10, accumulate=True),
    "counted": lambda x, m: x.index_put((m,), -x[:, 0].repeat(2, 1)[:3]),
    "first dimension": lambda x, m: x.index_put((m[:, 0],), -x[:1]),
    "inner": lambda x, m: put_inside(x, m[0], x[0, 1] * 10),
    "inner counted": lambda x, m: put_inside(x, m[0], -x[:, 1:]),
    "inner lead": lambda x, m: put_inside(x, m[0], -x[:, :1]),
    "filled": lambda x, m: x.masked_fill(m[..., None], -7),
    "scatter": lambda x, m: x.masked_scatter(m[..., None], -x.flip(0)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_at_a_mask_stay_in_xla(same, write):
    same(write, X, MASK)
    assert torch_galley.metrics()["native_ops"] == 0


def test_one_executable_serves_every_mask(galley):
    def f(x, m):
        y = x.clone()
        y[m] = 0.5
        return y

    compiled = galley(f)
    for bound in (-1.0, 3.0, 99.0):
        mask = bound < X
        assert torch.equal(compiled(X, mask), f(X, mask))
    assert torch_galley.metrics()["compiles"] == 1


def test_gradients(galley):
    def f(x, i):
        y = x[:, i].sin() + x.gather(1, i.expand(2, 4, 3).transpose(1, 2))
        (y + x.index_select(1, i) * x.masked_fill(x > 4, 0)).sum().backward()

    ours, eager = (X.clone().requires_grad_() for _ in range(2))
    galley(f)(ours, ints(1, -1 % 3, 1))
    f(eager, ints(1, -1 % 3, 1))
    torch.testing.assert_close(ours.grad, eager.grad)


OUT_OF_RANGE = {
    "index": (lambda x, i: x[:, i], 1),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), 0),
    "gather": (lambda x, i: x.gather(1, i[:, None]), 1),
    "scatter": (lambda x, i: x.scatter(1, i[:, None], x), 1),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[:, None], x), 0),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(-1, i[:, None], x, "amax"), 1),
    "index_select": (lambda x, i: x.index_select(1, i), 1),
    "index_add": (lambda x, i: x.index_add(0, i, x[:1]), 0),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:1]), 0),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3.0), 1),
    "take": (lambda x, i: x.take(i * 10), 0),
    "put": (lambda x, i: x.put(i * 10, x[0, :1]), 0),
}
NEGATIVE_TOO = {"index", "index_put", "index_fill", "take", "put"}


@pytest.mark.parametrize("op", OUT_OF_RANGE)
def test_index_out_of_range(galley, op):
    function, dim = OUT_OF_RANGE[op]
    x, compiled = torch.ones(3, 3), galley(function)
    for value in (3, -4) if op in NEGATIVE_TOO else (3, -1):
        with pytest.raises((IndexError, RuntimeError)) as eager:
            function(x, ints(value))
        with pytest.raises(IndexError) as ours:
            compiled(x, ints(value))
        assert isinstance(ours.value, eager.type)
        shown = value * 10 if op in ("take", "put") else value
        assert f"{op}: index {shown} is out of bounds for dimension {dim}" in str(ours.value)
        torch.testing.assert_close(compiled(x, ints(0)), function(x, ints(0)))


def test_mask_must_match_the_number_of_values(galley):
    compiled = galley(lambda x, m, v: x.index_put((m,), v))
    with pytest.raises(IndexError, match="index_put: 2 values for a mask that selects 3"):
        compiled(X[0, 0], X[0, 0] > 0, ints(1, 2).float())
    scatter = galley(lambda x, m, v: x.masked_scatter(m, v))
    with pytest.raises(RuntimeError, match="masked_scatter: 3 elements to write"):
        scatter(X[0, 0], X[0, 0] > 0, ints(1, 2).float())


def test_a_mask_of_bytes_is_refused(galley):
    function = galley(lambda x, m, v: x.masked_scatter(m, v))
    with pytest.raises(RuntimeError, match="only supports boolean masks"):
        function(X, (X > 2).byte(), X)


def test_selection_by_mask(galley):
    def f(x):  # a graph break for each: what is around it is compiled
        found = torch.nonzero(x > 5)
        return found * 2, x[x > 5] + 1, torch.masked_select(x, x < 3) + 1

    assert all(map(torch.equal, galley(f)(X), f(X)))


def test_static_nonzero(same):
    same(lambda x: torch.nonzero_static(x > 5, size=20, fill_value=-7) * 2, X)
    same(lambda x: torch.nonzero_static(x > 5, size=3) * 2, X)
    same(lambda x: torch.nonzero_static(x > 5, size=3) * 2, X[:, :0])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("behind", [(), (2,)])
def test_a_mask_that_selects_nothing_takes_no_values(same, behind, accumulate):
    mask = torch.zeros(4, dtype=torch.bool)

    def put(x, mask, values):
        return x.index_put((mask,), values, accumulate=accumulate)

    same(put, torch.randn(4, *behind), mask, torch.empty(0, *behind))
