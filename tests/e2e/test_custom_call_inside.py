"""What runs inside a custom call: compiled functions, the xla device, and what it raises."""

import pytest
import torch
from torch import Tensor

import torch_galley
from torch_galley.core.errors import CaptureError, RunError
from torch_galley.ops.running import DEEPEST


def define(function, name="inside::defined"):
    return torch_galley.custom_call(
        name, function, shape=torch.empty_like, schema="(Tensor x) -> Tensor"
    )


def test_calls_of_compiled_functions_end_at_a_depth():
    """XLA waits for ever where more are in flight than it has room for."""
    left = 0

    def deeper(x):
        nonlocal left
        left -= 1
        return function(x) if left else x.clone()

    op = define(deeper)
    function = torch.compile(lambda x: op(x + 1), backend="galley")
    for depth in (1, DEEPEST, DEEPEST + 1, 1):
        left = depth
        if depth > DEEPEST:
            with pytest.raises(RunError, match=r"inside\.defined\.default .* 16 levels deep"):
                function(torch.zeros(2))
        else:
            torch.testing.assert_close(function(torch.zeros(2)), torch.full((2,), float(depth)))


@torch.library.custom_op("inside::library", mutates_args=())
def library(x: Tensor) -> Tensor:
    return x + asked[0]()


library.register_fake(torch.empty_like)
asked = []


@pytest.mark.parametrize("how", ["custom_call", "library"])
def test_the_device_is_not_asked_while_it_computes(how):
    """It would run what it runs already, for ever."""
    x = torch.ones(3).to(torch_galley.device())
    other = x * 7
    asked[:] = [lambda: (x * 2).cpu()]
    op = library if how == "library" else define(lambda x: x + asked[0]())
    said = "a function asked" if how == "library" else r"inside\.defined\.default asked"
    with pytest.raises(RunError, match=said + " the xla device to compute") as caught:
        op(x + 1).cpu()
    assert __file__ in str(caught.value)
    torch.testing.assert_close(other.cpu(), torch.full((3,), 7.0))
    asked[:] = [lambda: other.cpu()]  # there already: nothing is to be computed
    torch.testing.assert_close(op(x + 1).cpu(), torch.full((3,), 9.0))


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit])
def test_what_is_raised_concerns_its_own_result_alone(error):
    def raises(x):
        raise error

    x = torch.ones(3).to(torch_galley.device())
    lost, other = define(raises)(x + 1), x * 3
    with pytest.raises(error):
        other.cpu()
    for _ in range(2):
        torch.testing.assert_close(other.cpu(), torch.full((3,), 3.0))
    with pytest.raises(CaptureError, match=f"computing it failed: {error.__name__}"):
        lost.cpu()
    torch.testing.assert_close((x * 5).cpu(), torch.full((3,), 5.0))


def test_what_ctrl_c_cuts_short_is_computed_at_the_next_read():
    interrupt = [True]

    def interrupted(x):
        if interrupt:
            interrupt.clear()
            raise KeyboardInterrupt
        return x * 2

    result = define(interrupted)(torch.ones(3).to(torch_galley.device()))
    with pytest.raises(KeyboardInterrupt):
        result.cpu()
    torch.testing.assert_close(result.cpu(), torch.full((3,), 2.0))


def eager(op, x):
    return op(x)


def compiled(op, x):
    return torch.compile(lambda x: op(x + 1), backend="galley")(x)


def device(op, x):
    return op(x.to(torch_galley.device())).cpu()


def device_natively(op, x):
    with torch_galley.config(min_cluster_size=1000):
        return device(op, x)


@pytest.mark.parametrize("way", [eager, compiled, device, device_natively])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "a NoneType"),
        (3, "a int"),
        (torch.ones(3, device="meta"), "a tensor of device meta"),
        (torch.ones(3).to_sparse(), r"a tensor of layout torch\.sparse_coo"),
        ([torch.ones(3)], r"a list of \(a tensor of device cpu\)"),
        ((torch.ones(3),), r"a tuple of \(a tensor of device cpu\)"),
        ({"a": torch.ones(3)}, "a dict"),
    ],
)
def test_one_tensor_is_one_in_every_way(way, result, said):
    op = define(lambda x: result)
    with pytest.raises(RunError, match=rf"inside\.defined\.default gave {said}, its schema says"):
        way(op, torch.ones(3))
