"""A custom call that is defined again, as a notebook's cell that is run again does."""

import pytest
import torch

import torch_galley


def define(factor, schema="(Tensor x) -> Tensor", shape=torch.empty_like, **options):
    return torch_galley.custom_call(
        "anew::scaled", lambda x, *rest: x * factor, shape=shape, schema=schema, **options
    )


def compiled(function):
    return torch.compile(function, backend="galley", options={"min_cluster_size": 1})


def eager(function):
    return function


def dynamic(function):
    return torch.compile(function, backend="galley", dynamic=True, options={"min_cluster_size": 1})


def on_device(function):
    return lambda x: function(x.to(torch_galley.device())).cpu()


def jitted(function):
    return on_device(torch_galley.jit(function))


@pytest.mark.parametrize("handle", ["first", "overload"])
@pytest.mark.parametrize("way", [eager, compiled, dynamic, on_device, jitted])
def test_a_handle_that_was_kept_means_the_present_definition(way, handle):
    first = define(2.0)
    op = first if handle == "first" else torch.ops.anew.scaled.default
    function = way(lambda x: op(x + 1) + 1)
    x = torch.ones(3)
    torch.testing.assert_close(function(x), torch.full((3,), 5.0))
    for factor in (5.0, 7.0, 2.0):
        latest = define(factor)
        for _ in range(2):
            torch.testing.assert_close(function(x), torch.full((3,), 2 * factor + 1))
        torch.testing.assert_close(latest(x), first(x))
        torch.testing.assert_close(way(lambda x: op(x * 3))(x), torch.full((3,), 3 * factor))


@pytest.mark.parametrize("way", [eager, compiled, on_device])
def test_with_another_shape_rule_schema_and_gradient(way):
    op = define(2.0, backward=lambda grad, x: grad * 2)
    function = way(lambda x: op(x + 1))
    x = torch.ones(3, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(function(x).sum(), x)[0], torch.full((3,), 2.0))
    define(5.0, backward=lambda grad, x: grad * 5)
    torch.testing.assert_close(torch.autograd.grad(function(x).sum(), x)[0], torch.full((3,), 5.0))
    define(3.0, "(Tensor x, int by=1) -> Tensor", lambda x, by: torch.empty_like(x))
    torch.testing.assert_close(function(x.detach()), torch.full((3,), 6.0))
    torch_galley.custom_call(
        "anew::scaled",
        lambda x: x[:1].double(),
        shape=lambda x: x.new_empty(1, dtype=torch.float64),
        schema="(Tensor x) -> Tensor",
    )
    torch.testing.assert_close(function(x.detach()), torch.full((1,), 2.0, dtype=torch.float64))
