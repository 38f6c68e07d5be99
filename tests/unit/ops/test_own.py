"""torch_galley.lowers: what it takes, and what it says of what it doesn't."""

import re

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor

from torch_galley import lowers
from torch_galley.core.errors import ConfigError
from torch_galley.ops.registry import lookup

lib = torch.library.Library("ownunit", "FRAGMENT")
lib.define("one(Tensor x, float eps=1e-5, *, bool flag=False) -> Tensor")
lib.define("two.a(Tensor x) -> Tensor")
lib.define("two.b(Tensor x, Tensor y) -> Tensor")
lib.define("writes_(Tensor(a!) x) -> ()")
lib.define("view(Tensor(a) x) -> Tensor(a)")
lib.define("nothing(Tensor x) -> ()")
lib.define("implicit(Tensor x) -> Tensor")
lib.impl("implicit", lambda x: x + 1, "CompositeImplicitAutograd")
own = torch.ops.ownunit


@torch.library.custom_op("ownunit::custom", mutates_args=())
def custom(x: Tensor) -> Tensor:
    return x.clone()


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (own.one, lambda x, eps, *, flag: x),
        (own.one.default, lambda array, eps=0.0, flag=True: array),
        (own.two.b, jnp.add),
        (custom, jnp.sin),
    ],
)
def test_taken_and_withdrawn(op, body):
    assert lowers(op)(body) is body
    overload = getattr(op, "_opoverload", getattr(op, "default", op))
    assert lookup(overload) is not None
    lowers(op)(None)
    assert lookup(overload) is None


@pytest.mark.parametrize(
    ("op", "body", "said"),
    [
        ("ownunit::one", lambda x: x, "'ownunit::one' is no operator of torch's"),
        (own.two, lambda x: x, "ownunit.two has 2 overloads.*name one of torch.ops.ownunit.two.a"),
        (own.writes_, lambda x: x, "writes its argument x, .*runs natively"),
        (own.view, lambda x: x, "returns a view of its argument"),
        (own.nothing, lambda x: x, "returns nothing"),
        (own.implicit, lambda x: x, "taken apart by torch"),
        (own.one, lambda x: x, r"can't be called with \(x, eps, flag\).*the schema is"),
        (own.one, lambda x, eps: x, "unexpected keyword argument 'flag'"),
        (own.one, lambda eps, x, *, flag: x, "calls eps what the schema calls x: are they in"),
        (own.one, 3, "is a int, not a function"),
        (torch.ops.aten.sin, jnp.sin, "torch-galley has a lowering of aten.sin.default.*replace"),
    ],
)
def test_refused(op, body, said):
    if op is torch.ops.aten.sin:
        op = op.default
    with pytest.raises(ConfigError) as caught:
        lowers(op)(body)
    assert re.search(said, str(caught.value), re.S)


def test_a_cell_may_run_twice_but_not_another():
    def body(x):
        return x

    def other(x):
        return x + 1

    lowers(custom)(body)
    again = type(body)(body.__code__, body.__globals__, "body")
    again.__qualname__ = body.__qualname__
    lowers(custom)(again)
    with pytest.raises(ConfigError, match=f"has a lowering already, body at {__file__}:"):
        lowers(custom)(other)
    lowers(custom, replace=True)(other)
    lowers(custom)(None)


def test_one_of_ours_comes_back():
    op = torch.ops.aten.sin.default
    ours = lookup(op)
    lowers(op, replace=True)(lambda x: jnp.sin(x))
    assert lookup(op) is not ours
    lowers(op)(None)
    assert lookup(op) is ours
