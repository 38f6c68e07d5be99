"""What torch_galley.custom_call refuses, and how it says so."""

import datetime

import jax
import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

import torch_galley
from tests.e2e.ffi_library import load_handlers
from torch_galley.core.errors import ConfigError, RunError


def clipped(x: Tensor, low: float, high: float = 1.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy().clip(low, high))


@pytest.mark.parametrize(
    "name",
    [
        *(None, 5, "clip", "::b", "a::", "1a::b", "a::b::c", "a::b.c", "a b::c", "ü::b", "a::b\n"),
        *("aten::clip", "torch::b", "prims::b", "galley::b", "higher_order::b", "load_library::b"),
        *("class::b", "a::if", "a::name", "a::__init__"),
    ],
)
def test_a_name_is_refused_before_torch_keeps_it(name):
    with pytest.raises(ConfigError, match=r"can't be the name") as caught:
        torch_galley.custom_call(name, clipped, shape=torch.empty_like)
    assert repr(name) in str(caught.value)
    result = torch.compile(lambda x: x.sin() + 1, backend="galley")(torch.ones(2))
    torch.testing.assert_close(result, torch.ones(2).sin() + 1)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("clip", {}, "can't be made of a str"),
        (lambda x: x, {}, "needs a schema: .*annotate the function"),
        (clipped, {"schema": "(Tensor(a!) x) -> ()"}, r"marked with \(a\).*functions only"),
        (clipped, {"schema": "(Tensor(a) x) -> Tensor(a)"}, r"marked with \(a\).*functions only"),
        (clipped, {"schema": "(Tensor x"}, "torch can't read .*without the operator's name"),
        (clipped, {"schema": "foo(Tensor x) -> Tensor"}, r"no '\(' first.*without the operator's"),
        (clipped, {"schema": ""}, r"no '\(' first"),
        (clipped, {"schema": 5}, "5, a int, not a string"),
        (clipped, {"schema": "(Tensor x) -> int"}, "returns int.*return a Tensor"),
        (clipped, {"schema": "(Tensor x) -> Tensor?"}, r"returns Optional\[Tensor\]"),
        (clipped, {"schema": "(Tensor x) -> ()"}, "returns nothing"),
        (clipped, {"shape": None}, "shape= .* is None.*give the fake rule"),
        (None, {"shape": 5}, "shape= .* is 5"),
        (clipped, {"backward": 5}, "backward= .* is 5"),
    ],
)
def test_refused(target, options, said):
    with pytest.raises(ConfigError, match=r"(?s)" + said) as caught:
        torch_galley.custom_call("called::bad", target, **{"shape": lambda x: x} | options)
    assert "called::bad" in caught.value.message
    assert caught.value.hint
    assert not hasattr(torch.ops.called, "bad")


SOURCE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

static ffi::Error Filled(ffi::RemainingArgs, ffi::RemainingRets results, ffi::Dictionary) {
  auto result = results.get<ffi::BufferR1<ffi::F32>>(0);
  if (!result.has_value()) return ffi::Error::InvalidArgument("no float32[n]");
  for (size_t i = 0; i < (*result)->element_count(); ++i) (*result)->typed_data()[i] = 7;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(FilledHandler, Filled,
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

static ffi::Error One(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) {
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(OneHandler, One,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
"""


@pytest.fixture(scope="module")
def handlers(tmp_path_factory):
    return load_handlers(tmp_path_factory.mktemp("ffi"), SOURCE)


def define(target, schema, shape=lambda x, *rest: torch.empty_like(x)):
    return torch_galley.custom_call("refused::handler", target, shape=shape, schema=schema)


def eager(function, x):
    return function(x)


def compiled(function, x):
    return torch.compile(function, backend="galley", options={"min_cluster_size": 1})(x)


def device(function, x):
    with torch_galley.config(min_cluster_size=1):
        return function(x.to(torch_galley.device())).cpu()


@pytest.mark.parametrize("kind", ["Tensor?", "Tensor?[]"])
def test_a_handler_gets_no_optional_tensors(kind, handlers):
    with pytest.raises(ConfigError, match=r"bias of refused::handler.* may be None.*move up"):
        define(handlers.FilledHandler, f"(Tensor x, {kind} bias) -> Tensor")


@pytest.mark.parametrize(
    "kind",
    [
        *("str[]", "str[]?", "bool[]", "int?[]", "complex", "ScalarType", "ScalarType?"),
        *("Device", "Layout", "MemoryFormat", "Generator?"),
    ],
)
def test_types_that_are_no_attributes(kind, handlers):
    with pytest.raises(ConfigError, match=r"a of refused::handler.* is of type .* attributes"):
        define(handlers.FilledHandler, f"(Tensor x, {kind} a) -> Tensor")


@pytest.mark.parametrize("way", [eager, compiled, device])
@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        *[("Scalar", value, True) for value in (1, 2**63 - 1, 1.5, float("nan"), True)],
        *[("Scalar[]", value, True) for value in ([1, -(2**40)], [1.5], [1, 2.5])],
        *[("int?", None, True), ("str", "\u00fc", True), ("str", "", True), ("bool", False, True)],
        *[("Scalar", 1 + 2j, False)],
        *[("Scalar[]", value, False) for value in ([1 + 2j], [True], [])],
        *[("int[]", [], False), ("float[]", [], False), ("int[]?", [], False)],
    ],
)
def test_attributes(kind, value, taken, way, handlers):
    op = define(handlers.FilledHandler, f"(Tensor x, {kind} a) -> Tensor")
    if taken:
        result = way(lambda x: op(x + 1, value), torch.ones(3))
        torch.testing.assert_close(result, torch.full((3,), 7.0))
        return
    with pytest.raises((ConfigError, BackendCompilerFailed)) as caught:
        way(lambda x: op(x + 1, value), torch.ones(3))
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, ConfigError)
    assert f"refused.handler.default was given a={value!r}" in str(error)


@pytest.mark.parametrize("way", [eager, compiled, device])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.float8_e4m3fn])
def test_dtypes_that_xla_is_not_given(dtype, way, handlers):
    argument = define(handlers.FilledHandler, "(Tensor x) -> Tensor")
    said = rf"refused\.handler\.default .* {str(dtype).removeprefix('torch.')} can't be passed"
    with pytest.raises(ConfigError, match=said):
        way(lambda x: argument(x.to(dtype)), torch.ones(3))
    result = define(
        handlers.FilledHandler, "(Tensor x) -> Tensor", lambda x: torch.empty_like(x, dtype=dtype)
    )
    with pytest.raises(ConfigError, match=said):
        way(result, torch.ones(3))


def test_capsules_of_something_else(handlers):
    for capsule in (datetime.datetime_CAPI, torch.utils.dlpack.to_dlpack(torch.ones(3))):
        with pytest.raises(ConfigError, match=r"refused::handler can't be made of a PyCapsule of"):
            define(capsule, "(Tensor x) -> Tensor")
    define(jax.ffi.pycapsule(handlers.OneHandler), "(Tensor x) -> Tensor")


def test_a_handler_of_other_buffers_is_named_in_eager(handlers):
    op = define(handlers.OneHandler, "(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(
        RunError, match=r"refused\.handler\.default failed: .* expected 1 but got 2"
    ):
        op(torch.ones(3), torch.ones(3))


def test_a_backward_that_gives_a_list():
    op = torch_galley.custom_call(
        "refused::two",
        lambda x, y: x + y,
        shape=lambda x, y: torch.empty_like(x),
        schema="(Tensor x, Tensor y) -> Tensor",
        backward=lambda grad, x, y: [grad, grad],
    )
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ConfigError, match="gave a list, and there are 2 tensor arguments"):
        op(x, x).sum().backward()
