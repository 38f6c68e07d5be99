"""Operators that users define with torch.library: native, lowered, or called from XLA."""

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

import torch_galley
from torch_galley.compile.programs import background
from torch_galley.core.errors import LoweringError
from torch_galley.ops import registry

lib = torch.library.Library("own", "FRAGMENT")


@torch.library.custom_op("own::scaled", mutates_args=())
def scaled(x: Tensor, by: float, shift: float = 1.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * by + shift)  # as nothing that is recorded could


@scaled.register_fake
def _(x, by, shift=1.0):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.by, None, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


@torch.library.custom_op("own::halves", mutates_args=())
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    middle = x.shape[0] // 2
    return x[:middle].sin(), x[middle:].cos()


@halves.register_fake
def _(x):
    middle = x.shape[0] // 2
    return x.new_empty(middle, *x.shape[1:]), x.new_empty(x.shape[0] - middle, *x.shape[1:])


@torch.library.custom_op("own::doubled", mutates_args=())
def doubled(xs: list[Tensor]) -> list[Tensor]:
    return [x * 2 for x in xs]


@doubled.register_fake
def _(xs):
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op("own::increase_", mutates_args={"x"})
def increase_(x: Tensor, by: float) -> None:
    x.add_(by)


lib.define("tripled(Tensor x) -> Tensor")
lib.impl("tripled", lambda x: x * 3, "CPU")
lib.impl("tripled", lambda x: torch.empty_like(x), "Meta")
lib.define("negated(Tensor x) -> Tensor")
lib.impl("negated", lambda x: torch.from_numpy(-x.numpy()), "CompositeExplicitAutograd")
lib.impl("negated", lambda x: torch.empty_like(x), "Meta")


def uses_scaled(x):
    return scaled(x.sin(), 2.5).cos()


def uses_halves(x):
    first, second = halves(x + 1)
    return first.sum() * second


def uses_doubled(x):
    return doubled([x + 1, x.sin()])[1] - x


def uses_increase_(x):
    y = x * 2
    increase_(y, 3.0)
    return y.sin()


def uses_defined(x):
    return torch.ops.own.negated(torch.ops.own.tripled(x.sin())) + 1


LOWERINGS = {
    uses_scaled: [(scaled, lambda x, by, shift: x * by + shift)],
    uses_halves: [
        (halves, lambda x: (jnp.sin(x[: len(x) // 2]), jnp.cos(x[len(x) // 2 :]))),
    ],
    uses_doubled: [(doubled, lambda xs: [x * 2 for x in xs])],
    uses_defined: [
        (torch.ops.own.tripled.default, lambda x: x * 3),
        (torch.ops.own.negated, jnp.negative),
    ],
    uses_increase_: [],
}


@pytest.fixture
def lower():
    """torch_galley.lowers, undone after the test."""
    ops = []

    def register(op, function, **options):
        ops.append(op)
        return torch_galley.lowers(op, **options)(function)

    yield register
    for op in ops:
        torch_galley.lowers(op)(None)


def on_device(function, x):
    """Call on the xla device, where all operators are recorded."""
    moved = x.detach().to(torch_galley.device()).requires_grad_(x.requires_grad)
    result = function(moved)
    if x.requires_grad:
        (grad,) = torch.autograd.grad(result.sum(), moved)
        return result.detach().cpu(), grad.cpu()
    return result.cpu(), None


def compiled(function, x, **options):
    result = torch.compile(function, backend="galley", fullgraph=True, options=options)(x)
    grad = torch.autograd.grad(result.sum(), x)[0] if x.requires_grad else None
    return result.detach(), grad


@pytest.mark.parametrize("way", [on_device, compiled])
@pytest.mark.parametrize("lowered", [False, True], ids=["native", "lowered"])
@pytest.mark.parametrize("function", LOWERINGS, ids=lambda f: f.__name__)
def test_equal_to_eager(function, lowered, way, lower):
    for op, body in LOWERINGS[function] if lowered else ():
        lower(op, body)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=function is uses_scaled)
    wanted = function(x)
    torch_galley.reset_metrics()
    result, grad = way(function, x)
    torch.testing.assert_close(result, wanted.detach())
    if grad is not None:
        torch.testing.assert_close(grad, torch.autograd.grad(wanted.sum(), x)[0])
    if lowered and LOWERINGS[function]:
        assert torch_galley.metrics()["native_ops"] == 0
        assert torch_galley.metrics()["executions"] > 0
    else:
        assert torch_galley.metrics()["native_ops"] > 0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (uses_scaled, "torch_galley.lowers takes one"),
        (uses_increase_, "XLA takes one that returns them"),
    ],
)
def test_the_reason_tells_the_way_out(function, said):
    told = torch_galley.explain(function, torch.ones(4))
    assert said in str(told)
    assert "docs/extending.md" in str(told)


def test_an_edited_lowering_is_never_served_from_a_cache(lower, galley):
    x = torch.randn(4, dtype=torch.float64)
    both = [galley(uses_scaled), lambda x: on_device(uses_scaled, x)[0]]

    def results():
        return [function(x) for function in both]

    def times(factor):
        return lambda x, by, shift: x * by * factor + shift

    lower(scaled, times(1))
    torch.testing.assert_close(results(), [uses_scaled(x)] * 2)
    for factor in (3, 1, 3):
        lower(scaled, times(factor))  # the same name, other constants
        wanted = (x.sin() * 2.5 * factor + 1).cos()
        torch.testing.assert_close(results(), [wanted] * 2)
    lower(scaled, None)
    torch_galley.reset_metrics()
    torch.testing.assert_close(results(), [uses_scaled(x)] * 2)
    assert torch_galley.metrics()["native_ops"] == 2


def test_an_operator_defined_anew_needs_a_lowering_anew(galley):
    def define(factor):
        @torch.library.custom_op("own::again", mutates_args=())
        def again(x: Tensor) -> Tensor:
            return x * factor

        again.register_fake(lambda x: torch.empty_like(x))
        torch_galley.lowers(again)(lambda x: x * factor)
        return again

    x = torch.randn(3)
    for factor in (2, 5):
        again = define(factor)
        for way in (compiled, on_device):
            result, _ = way(lambda x, op=again: op(x + 1), x)
            torch.testing.assert_close(result, (x + 1) * factor)


def test_when_keeps_calls_native(lower):
    lower(
        scaled,
        lambda x, by, shift: x * by + shift,
        when=lambda x, by, shift: "only vectors" if x.dim() != 1 else None,
    )
    for shape, native in [((3,), 0), ((3, 3), 1)]:
        told = torch_galley.explain(uses_scaled, torch.ones(shape))
        assert str(told).count("only vectors") == native


def fails(x, by, shift):
    raise ValueError("no such norm")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (fails, "ValueError: no such norm"),
        (lambda x, by, shift: x[:2], "it gave float32[2], and the fake rule says float32[4]"),
        (lambda x, by, shift: x > by, "it gave bool[4], and the fake rule says float32[4]"),
        (lambda x, by, shift: 3.0, "it gave a float, and the fake rule says float32[4]"),
        (lambda x, by, shift: None, "it gave a NoneType, and the fake rule says float32[4]"),
        (lambda x, by, shift: torch.ones(4), "it gave a torch tensor, not a jax array; "),
    ],
)
@pytest.mark.parametrize("way", ["now", "lazy", "background", "device"])
def test_a_wrong_lowering_is_an_error(body, said, way, lower, monkeypatch):
    monkeypatch.setenv("GALLEY_STRICT", "0")
    lower(scaled, body)
    x = torch.ones(4)

    def run():
        if way == "device":
            on_device(uses_scaled, x)
            return
        function = torch.compile(uses_scaled, backend="galley", options={"compile": way})
        for _ in range(2):  # what fails in the background is told at the next call
            function(x)
            background().wait()

    with pytest.raises((LoweringError, BackendCompilerFailed)) as caught:
        run()
    error = getattr(caught.value, "inner_exception", caught.value)
    assert said in str(error)
    line = body.__code__.co_firstlineno + (body is fails)
    assert f"{__file__}:{line}" in str(error)
    assert f"in {uses_scaled.__name__}" in str(error)
    assert "withdraw it" in str(error)


def test_a_traced_value_of_another_call_is_an_error(lower):
    kept = []
    lower(scaled, lambda x, by, shift: kept.append(x) or x + kept[0])
    compiled(uses_scaled, torch.ones(4))
    with pytest.raises(
        BackendCompilerFailed, match="a traced value kept from another call"
    ) as caught:
        compiled(lambda x: uses_scaled(x + 1), torch.ones(4))
    assert isinstance(caught.value.inner_exception, LoweringError)


def test_a_wrong_fake_rule_is_an_error():
    @torch.library.custom_op("own::misled", mutates_args=())
    def misled(x: Tensor) -> Tensor:
        return x[:2].clone()

    misled.register_fake(lambda x: torch.empty_like(x))
    for way in (compiled, on_device):
        with pytest.raises(torch_galley.errors.RunError, match=r"gave .*\[2\], its fake rule says"):
            way(lambda x: misled(x + 1) * 2, torch.ones(4))


def test_no_fake_rule():
    @torch.library.custom_op("own::ruleless", mutates_args=())
    def ruleless(x: Tensor) -> Tensor:
        calls.append(x.clone())
        return x * 2

    calls = []
    x = torch.randn(3)
    result, _ = on_device(lambda x: ruleless(x + 1) + 1, x)
    torch.testing.assert_close(result, (x + 1) * 2 + 1)
    assert len(calls) == 1  # with the data, and not to see whether it raises
    with pytest.raises(Exception, match="no fake impl registered"):
        compiled(lambda x: ruleless(x + 1) + 1, x)


def test_dynamic_shapes(lower, galley):
    lower(scaled, lambda x, by, shift: x * by + shift)
    function = galley(uses_scaled, dynamic=True, fullgraph=True)
    for size in (3, 5, 8):
        x = torch.randn(size)
        torch.testing.assert_close(function(x), uses_scaled(x))
    assert torch_galley.metrics()["native_ops"] == 0


def test_checkpoint(lower, galley):
    lower(scaled, lambda x, by, shift: x * by + shift)
    x = torch.randn(5, requires_grad=True)

    def function(x):
        return torch.utils.checkpoint.checkpoint(uses_scaled, x, use_reentrant=False).sum()

    (wanted,) = torch.autograd.grad(function(x), x)
    (grad,) = torch.autograd.grad(galley(function)(x), x)
    torch.testing.assert_close(grad, wanted)


def test_measured_and_saved(lower, galley, tmp_path):
    lower(scaled, lambda x, by, shift: x * by + shift)
    x = torch.randn(64)
    options = {"decide": "measure", "time_all": True}
    torch.testing.assert_close(galley(uses_scaled, options=options)(x), uses_scaled(x))
    (stages,) = torch_galley.stages(uses_scaled, x)
    loaded = type(stages.captured).load(stages.captured.save(tmp_path / "graph"))
    assert loaded.text() == stages.captured.text()
    assert "stablehlo.multiply" in stages.lowered[0].text()


def test_the_compiled_graph_is_kept_when_another_operator_changes(lower, galley):
    function, x = galley(torch.sin), torch.ones(3)
    function(x)
    lower(scaled, lambda x, by, shift: x)
    before = torch_galley.metrics()["compiles"]
    function(x)
    assert torch_galley.metrics()["compiles"] == before
    assert registry.changes > 0
