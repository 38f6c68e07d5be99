"""torch_galley.custom_call: operators that XLA calls, in Python and in C++."""

import sys
import threading
import traceback

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor

import torch_galley
from tests.e2e.ffi_library import load_handlers
from torch_galley.compile import engine as engines
from torch_galley.compile.programs import background, executables
from torch_galley.core.errors import CompileError, ConfigError, RunError


def clipped(x: Tensor, low: float, high: float = 1.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy().clip(low, high))


clip = torch_galley.custom_call(
    "called::clip",
    clipped,
    shape=lambda x, low, high: torch.empty_like(x),
    backward=lambda grad, x, low, high: grad * ((x > low) & (x < high)),
)


@torch_galley.custom_call(
    "called::mixed",
    shape=lambda xs, bias, axes, *, flip: (torch.empty_like(xs[0]), xs[0].new_empty(0, 3)),
    backward=lambda grad, _, xs, bias, axes, *, flip: (
        [grad.flip(axes) if flip else grad for _ in xs],
        grad if bias is not None else None,
    ),
)
def mixed(
    xs: list[Tensor], bias: Tensor | None, axes: list[int], *, flip: bool = False
) -> tuple[Tensor, Tensor]:
    total = sum(x.flip(axes) if flip else x for x in xs)
    return total + (0 if bias is None else bias), total.new_empty(0, 3)


def uses_clip(x):
    return (clip(x.sin() * 2, -0.5) ** 2).cos()


def uses_mixed(x):
    first, empty = mixed([x + 1, x.sin()], x.cos(), [0], flip=True)
    return first * 2 + empty.sum() + mixed([x], None, [0, 1])[0]


def compiled(function, *args, **options):
    return torch.compile(function, backend="galley", fullgraph=True, options=options)(*args)


def on_device(function, *args):
    return function(*(arg.to(torch_galley.device()) for arg in args)).cpu()


@pytest.fixture(params=["own", "public"])
def client(request, monkeypatch):
    """Both ways to XLA."""
    if request.param == "public":
        monkeypatch.setattr(engines, "_engine", lambda platform: engines.PublicEngine())
        executables().clear()
        yield
        executables().clear()
    else:
        yield


@pytest.mark.parametrize("way", [compiled, on_device])
@pytest.mark.parametrize("function", [uses_clip, uses_mixed])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_equal_to_eager(function, way, dtype, client):
    if dtype is torch.float16 and function is uses_clip:
        pytest.skip("numpy's clip rounds float16 otherwise than torch's sine")
    x = torch.randn(5, 4, dtype=dtype)
    torch_galley.reset_metrics()
    torch.testing.assert_close(way(function, x), function(x))
    assert torch_galley.metrics()["native_ops"] == 0
    assert torch_galley.metrics()["executions"] > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # gradcheck's, where Dynamo looks
@pytest.mark.parametrize("function", [uses_clip, uses_mixed])
def test_gradients(function):
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradcheck(torch.compile(function, backend="galley"), x)
    (wanted,) = torch.autograd.grad(function(x).sum(), x)
    moved = x.detach().to(torch_galley.device()).requires_grad_()
    (grad,) = torch.autograd.grad(function(moved).sum(), moved)
    torch.testing.assert_close(grad.cpu(), wanted)


def define(function, **options):
    return torch_galley.custom_call(
        "called::defined",
        function,
        shape=lambda x: torch.empty_like(x),
        schema="(Tensor x) -> Tensor",
        **options,
    )


def raises(x):
    raise KeyError("no such key")  # here


@pytest.mark.parametrize("way", [compiled, on_device])
def test_what_the_function_raises_arrives(way, client):
    op = define(raises)

    def model(x):
        return op(x + 1) * 2

    with pytest.raises(KeyError, match="no such key") as caught:
        way(model, torch.ones(3))
    told = "".join(traceback.format_exception(caught.value))
    assert 'raise KeyError("no such key")  # here' in told
    assert "in model" in told
    assert "JaxRuntimeError" not in told


def test_it_runs_again_after_an_error():
    def picky(x):
        if x[0] > 1:
            raise ValueError("too large")
        return x * 2

    op = define(picky)
    function = torch.compile(lambda x: op(x + 0) + 1, backend="galley", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(function(torch.ones(2)), torch.full((2,), 3.0))
        with pytest.raises(ValueError, match="too large"):
            function(torch.full((2,), 5.0))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x[:1].clone(), r"gave float32\[1\], its shape rule says float32\[4\]"),
        (lambda x: x.double(), r"gave float64\[4\], its shape rule says float32\[4\]"),
        (lambda x: 3, r"gave a int, its schema says Tensor"),
        (lambda x: x.add_(1), "writes its arguments"),
    ],
)
def test_wrong_results(function, said):
    op = define(function)
    with pytest.raises(RunError, match=said):
        compiled(lambda x: op(x.sin()), torch.ones(4))


def test_arguments_may_be_kept():
    kept = []
    op = define(lambda x: kept.append(x) or x * 2)
    for value in (1.0, 2.0, 3.0):
        compiled(lambda x: op(x.exp()), torch.full((1000,), value))
    torch._dynamo.reset()
    executables().clear()
    for value, x in zip((1.0, 2.0, 3.0), kept, strict=True):
        torch.testing.assert_close(x, torch.full((1000,), value).exp())


def test_a_function_may_use_torch_and_us_again():
    """A call of XLA inside a call that XLA makes, with products that its threads share."""
    inner = torch.compile(lambda x: (x @ x).softmax(-1), backend="galley")
    op = define(lambda x: inner(x) + torch.mm(x, x))
    outer = torch.compile(lambda x: op(x @ x) @ op(x.sin()), backend="galley")
    x = torch.randn(300, 300) / 300
    for _ in range(3):
        torch.testing.assert_close(outer(x), op(x @ x) @ op(x.sin()))


def test_many_threads():
    op = define(lambda x: x * 2)
    function = torch.compile(lambda x: op(x @ x).sum(), backend="galley")
    function(torch.ones(64, 64))
    wrong = []

    def work(number):
        x = torch.full((64, 64), float(number))
        wanted = (x @ x * 2).sum()
        wrong.extend(number for _ in range(20) if function(x) != wanted)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_defined_anew():
    for factor in (2.0, 3.0):
        op = define(lambda x, factor=factor: x * factor)
        for way in (compiled, on_device):
            result = way(lambda x, op=op: op(x + 1), torch.ones(3))
            torch.testing.assert_close(result, torch.full((3,), 2 * factor))


@pytest.mark.parametrize("function", [uses_clip, lambda x: torch.linalg.qr(x)[1].abs()])
def test_compiled_in_the_background(function):
    """The other process does not know what this one has registered."""
    x = torch.randn(4, 4)
    fast = torch.compile(function, backend="galley", options={"compile": "background"})
    fast(x)
    background().wait()
    torch_galley.reset_metrics()
    torch.testing.assert_close(fast(x), function(x))
    assert torch_galley.metrics()["executions"] == 1


def test_dynamic_shapes_and_constants():
    function = torch.compile(
        lambda x, low: clip(x.sin(), low) + 1, backend="galley", dynamic=True, fullgraph=True
    )
    for size, low in [(3, 0.0), (5, 0.25), (7, 0.5)]:
        x = torch.randn(size)
        torch.testing.assert_close(function(x, low), clip(x.sin(), low) + 1)


def test_measured_checkpointed_saved(tmp_path):
    x = torch.randn(6, 6, requires_grad=True)
    measured = compiled(uses_clip, x, decide="measure", time_all=True)
    torch.testing.assert_close(measured, uses_clip(x))

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(uses_clip, x, use_reentrant=False)

    (wanted,) = torch.autograd.grad(uses_clip(x).sum(), x)
    (grad,) = torch.autograd.grad(compiled(checkpointed, x).sum(), x)
    torch.testing.assert_close(grad, wanted)
    stages = torch_galley.stages(uses_clip, x.detach())[0]
    assert 'op = "called::clip"' in stages.lowered[0].text()
    assert "torch_galley_call" in stages.compiled[0].text()
    loaded = type(stages.compiled[0]).load(stages.compiled[0].save(tmp_path / "compiled"))
    assert loaded.text() == stages.compiled[0].text()
    report = torch_galley.report(uses_clip, x.detach())
    assert "called.clip.default" in str(report)


def test_never_kept_on_a_disk(tmp_path, monkeypatch):
    """jax's cache on a disk, which another process would read, gets no program with our calls."""
    monkeypatch.setattr(engines, "_engine", lambda platform: engines.PublicEngine())
    executables().clear()
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compiled(uses_clip, torch.randn(7))
        assert list(tmp_path.iterdir()) == []
        compiled(lambda x: x.sin() + 1.5, torch.randn(7))
        assert list(tmp_path.iterdir()) != []
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        executables().clear()


def test_pure_callback_of_jax_is_refused_with_a_way_out():
    op = define(lambda x: x * 2)

    def calls_python(x):
        return jax.pure_callback(lambda x: x * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    torch_galley.lowers(op, replace=True)(calls_python)
    with pytest.raises(Exception, match=r"torch_galley\.custom_call") as caught:
        compiled(lambda x: op(x + 1), torch.ones(2))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), CompileError)


def test_a_lowering_may_take_its_place():
    op = define(lambda x: x * 2)
    torch_galley.lowers(op, replace=True)(lambda x: jnp.multiply(x, 2))
    (stages,) = torch_galley.stages(lambda x: op(x + 1), torch.ones(2))
    assert "custom_call" not in stages.lowered[0].text()


def test_a_backward_of_another_count():
    op = define(lambda x: x * 2, backward=lambda grad, x: (grad, grad))
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ConfigError, match="gave 2 gradients, and there are 1 tensor arguments"):
        op(x).sum().backward()


SOURCE = """
#include <cmath>
#include <cstdint>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

static ffi::Error Norm(ffi::Buffer<ffi::F32> x, double eps, int64_t power, bool negate,
                       ffi::Span<const int64_t> unused, ffi::ResultBuffer<ffi::F32> y,
                       ffi::ResultBuffer<ffi::F32> scales) {
  if (eps < 0) return ffi::Error::InvalidArgument("eps is negative");
  auto dims = x.dimensions();
  int64_t width = dims.back(), rows = x.element_count() / width;
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x.typed_data() + r * width;
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += std::pow(std::fabs(in[i]), power);
    double scale = 1 / std::pow(sum / width + eps, 1.0 / power) * (negate ? -1 : 1);
    scales->typed_data()[r] = scale;
    for (int64_t i = 0; i < width; ++i) y->typed_data()[r * width + i] = in[i] * scale;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(NormHandler, Norm, ffi::Ffi::Bind()
    .Arg<ffi::Buffer<ffi::F32>>().Attr<double>("eps").Attr<int64_t>("power").Attr<bool>("negate")
    .Attr<ffi::Span<const int64_t>>("unused")
    .Ret<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""


@pytest.fixture(scope="module")
def handler(tmp_path_factory):
    return load_handlers(tmp_path_factory.mktemp("ffi"), SOURCE).NormHandler


def norm_of(target):
    def norm_shape(
        x: Tensor, eps: float, power: int = 2, *, negate: bool = False, unused: list[int]
    ) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), x.new_empty(x.shape[:-1])

    def backward(grad, _, x, eps, power, *, negate, unused):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x * reference(x, eps, negate)[1].unsqueeze(-1)
        return torch.autograd.grad(y, x, grad)[0]

    return torch_galley.custom_call("called::norm", target, shape=norm_shape, backward=backward)


def reference(x, eps, negate=False):
    scale = (x.square().mean(-1) + eps).rsqrt() * (-1 if negate else 1)
    return x * scale.unsqueeze(-1), scale


@pytest.mark.skipif(sys.platform == "win32", reason="the handler is built as a Unix library")
@pytest.mark.parametrize("way", [compiled, on_device, lambda function, x: function(x)])
def test_a_handler_of_xlas(handler, way, client):
    x = torch.randn(5, 8)
    for target in (handler, jax.ffi.pycapsule(handler)):
        norm = norm_of(target)
        y, scale = reference(x.sin(), 0.5, negate=True)
        result = way(lambda x, norm=norm: norm(x.sin(), 0.5, negate=True, unused=[1, 2])[0] + 1, x)
        torch.testing.assert_close(result, y + 1)
        result = way(lambda x, norm=norm: norm(x.sin(), 0.5, negate=True, unused=[1, 2])[1], x)
        torch.testing.assert_close(result, scale)


def test_a_handler_that_fails(handler):
    norm = norm_of(handler)
    with pytest.raises(RunError, match="eps is negative"):
        compiled(lambda x: norm(x + 1, -1.0, unused=[0])[0], torch.ones(2, 2))


def test_a_handler_with_a_gradient(handler):
    norm = norm_of(handler)
    x = torch.randn(3, 4, requires_grad=True)
    (wanted,) = torch.autograd.grad(reference(x, 0.1)[0].cos().sum(), x)
    for function in (norm, torch.compile(norm, backend="galley")):
        (grad,) = torch.autograd.grad(function(x, 0.1, unused=[3])[0].cos().sum(), x)
        torch.testing.assert_close(grad, wanted)
