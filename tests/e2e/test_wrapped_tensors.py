"""Tensors without memory of their own in compiled functions: batched, dual, zero, of a subclass.

Only torch knows how to compute with those, so clusters that are given one run natively. Nested
tensors get no further than torch.compile, which takes them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._vmap_internals import _vmap
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import torch_galley
from torch_galley.core.events import GraphBuilt, listen


def layers(x, w):
    return torch.nn.functional.layer_norm(torch.tanh(x @ w), (w.shape[1],)).sin() * 2


def attention(x, w):
    scores = torch.softmax(x @ w, -1)
    return torch.where(scores > 0.2, scores, scores.exp()) @ w.t()


def cut(x, w):  # into two clusters, by an operator that stays native
    return torch.logsumexp((x @ w).tanh(), 1).cumsum(0).cos()


def moved(x, w):
    return (x @ w).t()[1:, ::2].reshape(-1).sort()[0][[2, 0, 1]] * 3


def complexes(x, w):
    return torch.view_as_real(torch.fft.fft(x @ w).conj() * 1j)


# torch's own, the first time that it differentiates forwards
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

FUNCTIONS = [layers, attention, cut, moved, complexes]


def count(cause: str) -> float:
    return torch_galley.metrics()[f"native_clusters_{cause}"]


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(4, 5)


def gradients(function: Callable[..., Any], x: Any, w: Any) -> Any:
    """Ordinary gradients and batched ones in turn."""
    x, w = x.clone().requires_grad_(), torch.nn.Parameter(w.clone())
    torch.manual_seed(1)
    found = []
    for batched in (True, False, False, True, False):
        out = function(x, w)
        given = torch.randn(3, *out.shape) if batched else torch.randn(out.shape)
        found += torch.autograd.grad(out, (x, w), given, is_grads_batched=batched)
    return found


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_batched_gradients(galley, function, dynamic, given):
    options = {"deny_ops": ["aten.cumsum"]}
    compiled = galley(function, fullgraph=True, dynamic=dynamic, options=options)
    torch.testing.assert_close(gradients(compiled, *given), gradients(function, *given))
    found = torch_galley.metrics()
    forward = 2 if function is cut else 1
    backward = found["clusters"] - forward
    assert found["executions"] == 5 * (forward + backward)
    assert found["native_clusters_wrapped"] == found["native_clusters"] == 2 * backward


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_jacobian_of_all_rows_at_once(galley, function, given):
    compiled = galley(function)
    found = jacobian(compiled, given, vectorize=True)
    torch.testing.assert_close(found, jacobian(function, given, vectorize=True))
    assert count("wrapped") > 0


@pytest.mark.parametrize("function", [layers, attention, moved], ids=lambda f: f.__name__)
def test_jacobian_in_forward_mode(galley, function, given):
    def forwards(function):
        return jacobian(function, given, vectorize=True, strategy="forward-mode")

    torch.testing.assert_close(forwards(galley(function)), forwards(function))
    assert count("tangent") > 0


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_tangents(galley, function, given):
    def derivative(function):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given[0], given[0].cos())
            return tuple(forward_ad.unpack_dual(function(dual, given[1])))

    compiled = galley(function)
    with forward_ad.dual_level():
        primal = compiled(*given)  # nothing in it has a tangent
        torch.testing.assert_close(primal, function(*given))
    assert count("tangent") == 0
    torch.testing.assert_close(derivative(compiled), derivative(function))
    assert count("tangent") > 0
    torch.testing.assert_close(compiled(*given), function(*given))


@pytest.mark.parametrize("decide", ["measure", "model"])
def test_nothing_is_decided_by_what_runs_natively(galley, decide, given):
    options = {"decide": decide, "time_all": True}
    compiled = galley(layers, options=options)
    torch.testing.assert_close(gradients(compiled, *given), gradients(layers, *given))
    found = jacobian(compiled, given, vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(found, jacobian(layers, given, vectorize=True))


TRANSFORMS = {
    "vmap": lambda f, x, w: torch.func.vmap(f, (0, None))(torch.stack([x, x + 1]), w),
    "jacrev": lambda f, x, w: torch.func.jacrev(f, (0, 1))(x, w),
    "jacfwd": lambda f, x, w: torch.func.jacfwd(f)(x, w),
    "hessian": lambda f, x, w: torch.func.hessian(lambda x: f(x, w).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_around_a_compiled_function(galley, transform):
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    compiled = galley(attention)
    compiled(x, w)
    run = TRANSFORMS[transform]
    torch.testing.assert_close(run(compiled, x, w), run(attention, x, w))


class Doubled(torch.Tensor):
    """Stands for twice the tensor that it holds."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return op(*tree_map(lambda a: a.held * 2 if isinstance(a, Doubled) else a, args))


class Counted(torch.Tensor):
    """Has memory of its own, and negates what is computed with it."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_subclass(cls, held)

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return -op(*args, **(kwargs or {}))


def _fakes(run, x):
    with FakeTensorMode() as mode:
        result = run(mode.from_tensor(x))
    return torch.zeros(result.shape)


WRAPPERS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], Any]] = {
    "legacy vmap": lambda run, x: _vmap(run)(torch.stack([x, x + 1])),
    "legacy vmap of one": lambda run, x: _vmap(run)(x[None]),
    "vmap": lambda run, x: torch.func.vmap(run)(torch.stack([x, x + 1])),
    "vmap of the last": lambda run, x: torch.func.vmap(run, 2)(torch.stack([x, x + 1], 2)),
    "vmap in vmap": lambda run, x: torch.func.vmap(torch.func.vmap(run))(x.expand(2, 3, *x.shape)),
    "grad": lambda run, x: torch.func.grad(lambda x: run(x).sum())(x),
    "jvp": lambda run, x: torch.func.jvp(run, (x,), (x.cos(),)),
    "functionalize": lambda run, x: torch.func.functionalize(run)(x),
    "a wrapper subclass": lambda run, x: run(Doubled(x)),
    "a subclass with memory": lambda run, x: run(Counted(x.clone())).as_subclass(torch.Tensor),
    "fake tensors": _fakes,
    "a parameter's": lambda run, x: torch.func.grad(lambda x: run(x).sum())(torch.nn.Parameter(x)),
}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # in kind parameter
@pytest.mark.parametrize("kind", ["tensor", "parameter", "dynamic"])
@pytest.mark.parametrize("size", [4, 90])  # copied to memory of ours, and viewed
def test_every_wrapper_runs_natively(galley, size, kind):
    """Given to the plan itself: Dynamo leaves most of these to eager before they get here."""
    plans: list[Any] = []
    stop = listen(lambda e: plans.append(e.plan) if isinstance(e, GraphBuilt) else None)
    x = torch.randn(size, size)

    def function(x):
        return x.sin() * torch.arange(x.shape[1])

    compiled = galley(function, dynamic=kind == "dynamic")
    with torch.no_grad():
        for _ in range(2):  # the second call finds the quick way
            compiled(torch.nn.Parameter(x) if kind == "parameter" else x)
    stop()
    (plan,) = plans

    def run(x):
        return plan([x.shape[0], x] if kind == "dynamic" else [x])[0]

    for name, wrapped in WRAPPERS.items():
        before = torch_galley.metrics()["native_clusters"]
        wanted, found = wrapped(function, x), wrapped(run, x)
        torch.testing.assert_close(found, wanted, msg=lambda m, name=name: f"{name}: {m}")
        now = torch_galley.metrics()["native_clusters"]
        assert now > before, name
        torch.testing.assert_close(run(x), function(x))
    assert count("wrapped") + count("tangent") == now


@pytest.mark.parametrize("size", [4, 90])
def test_zeros_without_memory(galley, size):
    """What torch makes where a derivative is known to be zero."""
    compiled = galley(lambda x, y: (x * 2 + 1).t() + y)
    x, zero = torch.randn(size, size), torch._efficientzerotensor(size, size)
    for given in ((x, x), (zero, x), (x, zero), (zero, zero)):
        torch.testing.assert_close(compiled(*given), (given[0] * 2 + 1).t() + given[1])
    assert torch_galley.metrics()["native_clusters"] == 0


@pytest.mark.parametrize("way", ["recorded", "compiled"])
def test_on_the_device(galley, way, given):
    function = galley(layers) if way == "compiled" else layers
    there = [value.to(torch_galley.device()) for value in given]
    for strategy in ("reverse-mode", "forward-mode"):
        wanted = jacobian(layers, given, vectorize=True, strategy=strategy)
        found = jacobian(function, tuple(there), vectorize=True, strategy=strategy)
        torch.testing.assert_close([f.cpu() for f in found], list(wanted))
    out = function(there[0].requires_grad_(), there[1])
    directions = torch.randn(2, *out.shape)
    found = torch.autograd.grad(out, there[0], directions.to(out.device), is_grads_batched=True)
    here = given[0].requires_grad_()
    wanted = torch.autograd.grad(layers(here, given[1]), here, directions, is_grads_batched=True)
    torch.testing.assert_close(found[0].cpu(), wanted[0])


RAGGED = [(2, 3, 4), (5, 1, 2)]


def nested(lengths: tuple[int, ...], requires_grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(lengths))
    parts = [torch.randn(length, 8, generator=generator) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)


def dense(value: Any) -> Any:
    return list(value.unbind()) if value is not None and value.is_nested else value


def gradients_of(result: torch.Tensor, x: torch.Tensor) -> list[Any]:
    """Of the input and of the weight, if it is used."""
    values = result.values() if result.is_nested else result
    direction = torch.arange(values.numel()).view(values.shape) / values.numel()
    found = torch.autograd.grad(values, (x, WEIGHT), direction, allow_unused=True)
    return [dense(gradient) for gradient in found]


WEIGHT = torch.nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))


JAGGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: torch.where(x > 0, (x * 2).sin(), x.exp() + torch.arange(8)),
    "linear": lambda x: F.gelu(F.linear(x, WEIGHT, WEIGHT[0])),
    "normalised": lambda x: F.layer_norm(x @ WEIGHT, (8,)).softmax(-1),
    "joined": lambda x: torch.cat([x, x * 2], -1).chunk(4, -1)[1].unsqueeze(-1) * 3,
    "made anew": lambda x: torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets()),
    "taken apart": lambda x: x.values().sin() * x.offsets().diff().sum(),
    "padded": lambda x: (x * 2).to_padded_tensor(0.5).cumsum(1),
    "the largest": lambda x: x.sin().amax(1),
    "all added": lambda x: (x * 2).sum(),
}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged_tensors(galley, name):
    function = JAGGED[name]
    compiled = galley(function, fullgraph=True)
    for lengths in RAGGED:
        mine, eagers = nested(lengths), nested(lengths)
        found, wanted = compiled(mine), function(eagers)
        assert found.is_nested == wanted.is_nested
        torch.testing.assert_close(dense(found), dense(wanted))
        torch.testing.assert_close(gradients_of(found, mine), gradients_of(wanted, eagers))
    assert torch_galley.metrics()["executions"] >= 2 * len(RAGGED)


@pytest.mark.parametrize("dim", [1, 2, (0, 1)], ids=["ragged", "last", "first two"])
def test_sums_of_jagged_tensors(galley, dim):
    """Without gradients: eager has none."""

    def function(x):
        return x.sin().sum(dim)

    compiled = galley(function, fullgraph=True)
    for lengths in RAGGED:
        x = nested(lengths, requires_grad=False)
        torch.testing.assert_close(dense(compiled(x)), dense(function(x)))
    assert torch_galley.metrics()["executions"] >= len(RAGGED)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_attention_of_jagged_tensors(galley):
    """torch itself leaves that operator to eager: what is around it is compiled."""

    def function(x):
        heads = F.linear(x, WEIGHT).unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2).sin()

    compiled = galley(function)
    for lengths in RAGGED:
        mine, eagers = nested(lengths), nested(lengths)
        found, wanted = compiled(mine), function(eagers)
        torch.testing.assert_close(dense(found), dense(wanted))
        torch.testing.assert_close(gradients_of(found, mine), gradients_of(wanted, eagers))
    assert torch_galley.metrics()["executions"] > 0


def test_jagged_tensors_explained():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
    assert "coverage η = 100.0%" in str(torch_galley.explain(model, nested((2, 3, 4))))
    forward, backward = torch_galley.stages(model, nested((2, 3, 4)))
    assert "9x8xf32" in forward.lowered[0].text()
    assert backward.lowered
