"""What torch_galley.custom_call refuses, and how it says so."""

import pytest
import torch
from torch import Tensor

import torch_galley
from torch_galley.core.errors import ConfigError


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
