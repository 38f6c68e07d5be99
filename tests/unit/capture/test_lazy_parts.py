"""The parts of torch that the xla device takes care of: cells, autocast, torch.compile, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_galley
from tests.unit.capture.alike import both
from torch_galley.core.events import Flushed, GraphBuilt, listen
from torch_galley.core.site import site_of


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(cell: type[nn.RNNBase], xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        torch.manual_seed(0)
        layer = cell(3, 4, 2, bidirectional=True, batch_first=True).to(dev)
        result, _ = layer(torch.randn(2, 5, 3).to(dev))
        result.square().sum().backward()
        return (result.detach(), *[p.grad for p in layer.parameters()])

    both(program, xla)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch.mul(x, 2, out=torch.empty(0)),
        lambda x: torch.sum(x, 0, out=torch.empty(())),
        lambda x: torch.ones(3).add_(x),
        lambda x: torch.ones(3).masked_fill_(x > 0, 1.0),
        lambda x: torch._foreach_add_([torch.ones(3)], [x]),
    ],
)
def test_the_cpu_is_not_written_from_the_device(
    write: Callable[[torch.Tensor], object], xla: torch.device
) -> None:
    with pytest.raises(RuntimeError, match=r"to be on the same device, but found .* xla:0 and cpu"):
        write(torch.ones(3, device=xla))


FOREACH: list[Callable[[torch.Tensor, torch.Tensor], None]] = [
    lambda a, b: torch._foreach_add_([a, b], 1),
    lambda a, b: torch._foreach_add_([a, b], [b, a]),
    lambda a, b: torch._foreach_mul_([a, a], 2.0),
    lambda a, b: torch._foreach_add_([a, a[1:]], 1),
    lambda a, b: torch._foreach_mul_([a[0], b[0]], a[0]),
    lambda a, b: torch._foreach_addcdiv_([a, b], [b, b], [a, a]),
]


@pytest.mark.parametrize("write", FOREACH)
def test_lists_are_written_in_turn(
    write: Callable[[torch.Tensor, torch.Tensor], None], xla: torch.device
) -> None:
    versions = []

    def program(dev: torch.device) -> tuple[torch.Tensor, ...]:
        a, b = torch.tensor([1.0, 2.0], device=dev), torch.tensor([3.0, 4.0], device=dev)
        weight = torch.ones(2, device=dev, requires_grad=True)
        product = weight * a
        write(a, b)
        versions.append((a._version, b._version))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
        return a, b

    both(program, xla)
    assert versions[0] == versions[1]


@pytest.mark.parametrize("where", [2, [1, 4], [4, 1, 9]])
def test_tensor_split_where_a_tensor_says(where: object, xla: torch.device) -> None:
    def program(dev: torch.device) -> tuple[torch.Tensor, ...]:
        x = torch.arange(12.0).reshape(6, 2).to(dev).requires_grad_()
        parts = x.tensor_split(torch.tensor(where).to(dev))
        parts[1].sum().backward()
        assert x.grad is not None
        return *(part.detach() for part in parts), x.grad

    both(program, xla)
    with pytest.raises(RuntimeError, match="to have dtype of long, but got Float"):
        torch.ones(4, device=xla).tensor_split(torch.ones(1, device=xla))


def test_compiled_functions_join_the_program(flushes: list[Flushed], xla: torch.device) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.sin().mul_(2)[1:]

    x = torch.arange(4.0, device=xla).requires_grad_()
    y = torch.compile(double, backend="galley", fullgraph=True)(x)
    y.sum().backward()
    assert flushes == []
    wanted = torch.arange(4.0).requires_grad_()
    double(wanted).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), wanted.grad)
    torch.testing.assert_close(y.detach().cpu(), double(torch.arange(4.0)))
    assert len(flushes) == 1


FACTORIES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.tensor([1.5, 2.5, 3.5], device=x.device),
    lambda x: torch.tensor(2, device=x.device),
    lambda x: torch.as_tensor([1, 2, 3], device=x.device, dtype=torch.float64),
    lambda x: x.new_tensor([1, 2, 3]),
    lambda x: x.new_tensor(x.shape),
    lambda x: x.new_zeros(3),
    lambda x: x.new_full((3,), 2.5),
    lambda x: torch.scalar_tensor(1.5, device=x.device),
    lambda x: torch.arange(3, device=x.device),
    lambda x: torch.tensor([0, 2, 1]).to(x.device),
    lambda x: x[[2, 0, 1]],
    lambda x: x.clone().index_fill_(0, torch.tensor([1], device=x.device), 7.0),
]


@pytest.mark.parametrize("factory", FACTORIES)
def test_new_tensors_under_dispatch_modes(
    factory: Callable[[torch.Tensor], torch.Tensor], xla: torch.device
) -> None:
    """torch makes them with modes set aside: then a fallback kernel is out of its reach."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + factory(x)

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    x = torch.arange(3.0)
    wanted = program(x)
    compiled = torch.compile(program, backend="galley", fullgraph=True)(x.to(xla))
    with Passing():
        passed = program(x.to(xla))
    for given in (compiled, passed):
        assert given.device == xla
        torch.testing.assert_close(given.cpu(), wanted)


def test_graph_breaks_leave_us_alone(xla: torch.device) -> None:
    def picked(x: torch.Tensor) -> torch.Tensor:
        keep = torch.nonzero(x * 2 > 3).squeeze(1)
        return x[keep] * 2

    x = torch.arange(4.0)
    before = torch_galley.metrics()["executions"]
    given = torch.compile(picked, backend="galley")(x.to(xla))
    assert torch.equal(given.cpu(), picked(x))
    assert torch_galley.metrics()["executions"] > before
    traced = {str(key) for key in torch._dynamo.utils.counters["graph_break"]}
    assert not [reason for reason in traced if "torch_galley" in reason]


def test_backward_operations_have_their_forward_lines(xla: torch.device) -> None:
    seen = []
    stop = listen(lambda event: seen.append(event) if isinstance(event, GraphBuilt) else None)
    x = torch.ones(3, device=xla).requires_grad_()
    y = x.tanh()
    y.sum().backward()
    assert x.grad.sum().item() < 3
    stop()
    graph = seen[0].plan.clustered.captured.graph.graph
    (node,) = (node for node in graph.nodes if "tanh_backward" in str(node.target))
    first = test_backward_operations_have_their_forward_lines.__code__.co_firstlineno
    assert site_of(node.meta).line == first + 4


def test_streams_events_and_generators(xla: torch.device) -> None:
    device = torch.xla  # type: ignore[attr-defined]
    start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
    with device.stream(device.Stream()):
        start.record()
        x = torch.ones(2, device=xla) + 1
        end.record(device.current_stream())
    device.current_stream().wait_stream(device.default_stream())
    torch.accelerator.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert x.tolist() == [2, 2]
    wanted = torch.randn(3, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator("xla").manual_seed(7)
    assert torch.equal(torch.randn(3, device=xla, generator=generator).cpu(), wanted)
    assert isinstance(torch.default_generator, torch.Generator)


def test_the_default_dtype_may_change(xla: torch.device) -> None:
    def dtypes() -> list[torch.dtype]:
        x = torch.arange(3, device=xla)
        made = [x / 2, x * 0.5, torch.ones(2, device=xla), torch.full((2,), 0.5, device=xla)]
        assert made[0].tolist() == [0, 0.5, 1]
        return [tensor.dtype for tensor in made]

    assert dtypes() == [torch.float32] * 4
    torch.set_default_dtype(torch.float64)
    try:
        assert dtypes() == [torch.float64] * 4
    finally:
        torch.set_default_dtype(torch.float32)
    assert dtypes() == [torch.float32] * 4


def test_storages_have_their_size(xla: torch.device) -> None:
    x = torch.ones(3, 4, device=xla)
    assert x.untyped_storage().nbytes() == x[1:].untyped_storage().nbytes() == 48
    assert torch.ones(3).untyped_storage().nbytes() == 12


def test_a_copy_that_torch_leaves_out_has_memory_of_its_own(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        x = torch.arange(4.0).to(dev)
        some, one, copied = x[1:].repeat(1), x[1].repeat(1, 1), x[2].clone().tile(1)
        y = x + 1
        again = y.repeat(1)
        torch_galley.sync()
        again.add_(1)
        some[0] = 9
        return x, some, one, copied, y, again

    both(program, xla)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_number_beside_a_tensor_without_dimensions(xla: torch.device, dtype, shape) -> None:
    def program(dev: torch.device) -> object:
        x = torch.ones(shape, dtype=dtype).to(dev)
        found = [2 - x, x - 2, 2.5 - x, 2 / x, x * 2, x + True]
        if not dtype.is_floating_point:
            found += [x << 2, 2 << x, x >> 1, 5 >> x, x & 2, 2 & x, 2 | x, 2 ^ x]
        return tuple(found)

    both(program, xla)


def test_a_number_among_booleans(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        x = torch.tensor([False, True]).to(dev)
        return torch.bucketize(2, x), torch.searchsorted(x, 1), torch.bucketize(0, x, right=True)

    both(program, xla)
