"""Tensors of the xla device in files and copies: what shares memory there, beside eager's."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _utils, nn

import torch_galley
from torch_galley.core.events import Flushed

Tensors = list[torch.Tensor]
CPU = torch.device("cpu")


def views(dev: torch.device) -> Tensors:
    base = torch.arange(12.0, device=dev)
    return [base, base[1:], base.view(3, 4).t(), base[::2], base.detach()]


def one_view_of_much(dev: torch.device) -> Tensors:
    return [torch.arange(12.0, device=dev).view(3, 4)[1:, 2]]


def alike_but_apart(dev: torch.device) -> Tensors:
    x = torch.arange(4.0, device=dev)
    return [x, torch.empty(4, device=dev).copy_(x), x.clone(), torch.arange(4.0, device=dev)]


def written(dev: torch.device) -> Tensors:
    x = torch.zeros(2, 3, device=dev)
    x[:, 1].add_(2)
    x.t()[0].mul_(3).sub_(1)
    return [x[:, 1], x]


def expanded(dev: torch.device) -> Tensors:
    x = torch.arange(3.0, device=dev)
    return [x.expand(2, 3), x[:1].expand(4), x]


def small(dev: torch.device) -> Tensors:
    x = torch.arange(3.0, device=dev)
    return [x[1], x[3:], torch.tensor(5.0, device=dev), torch.empty(0, 3, device=dev), x]


def leaves(dev: torch.device) -> Tensors:
    weight = nn.Parameter(torch.ones(2, 2, device=dev))
    x = torch.arange(3.0, device=dev).requires_grad_()
    return [weight, weight, weight.detach(), x, x.detach()[1:], nn.Buffer(x.detach()[:2])]


def data_replaced(dev: torch.device) -> Tensors:
    x, y = torch.zeros(3, device=dev), torch.arange(4.0, device=dev)
    x.data = y[1:]
    return [x, y]


def resized(dev: torch.device) -> Tensors:
    x = torch.arange(2.0, device=dev)
    first = x[:1]
    x.resize_(4)[2:].fill_(7)
    return [first, x, x.view(2, 2)[1]]


def conjugated(dev: torch.device) -> Tensors:
    z = torch.tensor([1 + 2j, 3 - 1j, 0.5j], device=dev)
    return [z, z.conj(), z[1:].conj(), z.real.to(z.dtype)]


def negative(dev: torch.device) -> Tensors:
    z = torch.tensor([1 + 2j, 3 - 1j], device=dev)
    return [z.conj().imag, z.imag, z.real]


def of_dtype(dtype: torch.dtype) -> Callable[[torch.device], Tensors]:
    def make(dev: torch.device) -> Tensors:
        x = torch.arange(6, dtype=torch.int32).to(dtype).to(dev)
        return [x, x[2:], x.view(2, 3)]

    make.__name__ = str(dtype).removeprefix("torch.")
    return make


def state_of_optimizer(dev: torch.device) -> Tensors:
    net = nn.Linear(3, 2, device=dev)
    optimizer = torch.optim.Adam(net.parameters(), betas=(0.5, 0.5))
    net(torch.ones(1, 3, device=dev)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()["state"]
    return [found for of_one in state.values() for name, found in of_one.items() if name != "step"]


DTYPES = [torch.bfloat16, torch.float64, torch.bool, torch.int64, torch.complex64]
NEWER = [torch.uint16, torch.float8_e4m3fn]
"""For which torch has only its newer way of saving."""
MAKE = [
    *(views, one_view_of_much, alike_but_apart, written, expanded, small, leaves, data_replaced),
    *(resized, conjugated, negative, state_of_optimizer, *map(of_dtype, DTYPES)),
]


def saved(data: Any, **how: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(data, file, **how)
    file.seek(0)
    return file


OLD = {"_use_new_zipfile_serialization": False}
CARRY: dict[str, Callable[[Any], Any]] = {
    "file": lambda data: torch.load(saved(data)),
    "code": lambda data: torch.load(saved(data), weights_only=False),
    "old torch's": lambda data: torch.load(saved(data, **OLD)),
    "pickle": lambda data: pickle.loads(pickle.dumps(data)),
    "deepcopy": copy.deepcopy,
    "copy": lambda data: [copy.copy(x) for x in data],
    "map cpu": lambda data: torch.load(saved(data), map_location="cpu"),
    "old map cpu": lambda data: torch.load(saved(data, **OLD), map_location="cpu"),
    "map by name": lambda data: torch.load(saved(data), map_location={"xla:0": "cpu"}),
    "map by call": lambda data: torch.load(saved(data), map_location=lambda memory, at: memory),
    "map xla": lambda data: torch.load(saved(data), map_location="xla"),
    "map none": lambda data: torch.load(saved(data), map_location=lambda memory, at: None),
    "old map xla": lambda data: torch.load(saved(data, **OLD), map_location=torch.device("xla:0")),
}
NEW = ["file", "code", "deepcopy", "map cpu", "map xla"]
STAY = {"map cpu", "old map cpu", "map by name", "map by call"}
"""What comes back on the CPU."""


def pattern(tensors: Tensors) -> list[Any]:
    """Return what each is and how it lies on its memory, which is the first's that has the same."""
    firsts: dict[int, int] = {}
    found = []
    for i, x in enumerate(tensors):
        memory = x.untyped_storage()
        # Memory of no bytes has no identity that torch keeps.
        place = firsts.setdefault(memory._cdata, i) if memory.nbytes() else None
        layout = (x.shape, x.stride(), x.storage_offset(), x.dtype, memory.nbytes())
        bits = (x.is_conj(), x.is_neg(), x.requires_grad, x.is_leaf)
        found.append((type(x), place, *layout, *bits))
    return found


def values(tensors: Tensors) -> list[Any]:
    return [x.detach().cpu().to(torch.complex128).tolist() for x in tensors]


def writing(tensors: Tensors) -> list[Any]:
    """Return what all are after each in turn is written."""
    seen = []
    for x in tensors:
        if x.numel() and 0 not in x.stride():
            x.detach().zero_()
            seen.append(values(tensors))
    return seen


CASES = [(make, how) for make in MAKE for how in CARRY]
CASES += [(of_dtype(dtype), how) for dtype in NEWER for how in NEW]


@pytest.mark.parametrize(("make", "how"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_what_shared_memory_shares_it_after(
    make: Callable[[torch.device], Tensors], how: str, xla: torch.device
) -> None:
    given, wanted = make(xla), make(CPU)
    assert pattern(given) == pattern(wanted)
    carried = CARRY[how](given)
    expected = CARRY["file" if "map" in how else how](wanted)
    assert {x.device for x in carried} == {CPU if how in STAY else xla}
    assert pattern(carried) == pattern(expected)
    assert values(carried) == values(expected) == values(wanted)
    assert writing(carried) == writing(expected)
    assert values(given) == values(wanted)  # changed as eager's, by copy.copy alone
    assert writing(given) == writing(wanted)
    assert values(carried) == values(expected)


def tied_model(dev: torch.device | str) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    net.register_buffer("table", torch.arange(4.0))
    net = net.to(dev)
    net.register_buffer("rows", net.get_buffer("table")[1:])
    return net


@pytest.mark.parametrize("how", ["code", "pickle", "deepcopy"])
def test_tied_modules_stay_tied(how: str, xla: torch.device) -> None:
    def program(dev: torch.device) -> list[Any]:
        net = tied_model(dev)
        net(torch.ones(1, 3, device=dev)).sum().backward()
        twin = CARRY[how](net)
        assert twin[0].weight is twin[2].weight
        assert twin[0].weight is not net[0].weight
        with torch.no_grad():
            twin[0].weight.zero_()
            twin.table.add_(1)
        assert {p.device for p in twin.parameters()} == {dev}
        x = torch.arange(3.0, device=dev)
        return [
            values([twin.rows, net.rows]),
            pattern([twin.table, twin.rows, *twin.parameters()]),
            [None if p.grad is None else values([p.grad]) for p in twin.parameters()],
            [round(y, 4) for y in twin(x).tolist()],
        ]

    assert program(xla) == program(CPU)


def test_a_state_dict_of_tied_weights_is_tied(xla: torch.device) -> None:
    state = torch.load(saved(tied_model(xla).state_dict()))
    state["0.weight"].zero_()
    assert state["2.weight"].abs().sum().item() == 0
    assert {x.device for x in state.values()} == {xla}
    net = tied_model(xla)
    net.load_state_dict(state)
    assert net[2].weight.abs().sum().item() == 0


def test_a_deep_copy_has_grad_and_attributes(xla: torch.device) -> None:
    def program(dev: torch.device) -> list[Any]:
        x = torch.arange(3.0, device=dev).requires_grad_()
        grads = torch.ones(2, 3, device=dev)
        x.grad = grads[1]
        x.note = grads  # pyright: ignore[reportAttributeAccessIssue]
        twin = copy.deepcopy({"x": x, "grad": grads[1], "again": x})
        assert twin["again"] is twin["x"]
        twin["x"].note.mul_(5)
        (twin["x"] * 2).sum().backward()
        found = [twin["x"], twin["x"].grad, twin["grad"], twin["x"].note, x, x.grad, grads]
        return [pattern(found), values(found)]

    assert program(xla) == program(CPU)


def test_a_deep_copy_of_what_was_computed_is_refused_as_in_eager(xla: torch.device) -> None:
    told = []
    for dev in (CPU, xla):
        with pytest.raises(RuntimeError) as refused:
            copy.deepcopy(torch.ones(2, device=dev, requires_grad=True) * 2)
        told.append(str(refused.value))
    assert told[0] == told[1]


class Marked(torch.Tensor):
    """A tensor of the user's own."""


@pytest.mark.parametrize("how", ["code", "pickle", "copy"])
def test_subclasses(how: str, xla: torch.device) -> None:
    def program(dev: torch.device) -> list[Any]:
        base = torch.arange(4.0, device=dev)
        x, y = base.as_subclass(Marked), base[1:].as_subclass(Marked)
        x.note = "x"  # pyright: ignore[reportAttributeAccessIssue]
        carried = CARRY[how]([x, y])
        carried[0].zero_()
        plain = [t.as_subclass(torch.Tensor) for t in carried]
        return [carried[0].note, [type(t) for t in carried], pattern(plain), values(plain)]

    assert program(xla) == program(CPU)


def test_two_types_of_one_memory_are_refused_as_in_eager(xla: torch.device) -> None:
    for dev in (CPU, xla):
        z = torch.zeros(2, dtype=torch.complex64, device=dev)
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            saved([z, z.real])
    twin = copy.deepcopy([z, z.real])
    twin[1].add_(1)
    assert twin[0].tolist() == [1, 1]
    assert z.tolist() == [0, 0]


def test_a_later_file_has_what_was_written_since(xla: torch.device) -> None:
    x = torch.zeros(3, device=xla)
    first, earlier = saved([x, x[1:]]), copy.deepcopy(x)
    x[2] = 5
    second, later = saved([x[1:], x]), copy.deepcopy(x)
    x[0] = 1
    assert values(torch.load(first)) == [[0, 0, 0], [0, 0]]
    assert values(torch.load(second)) == [[0, 5], [0, 0, 5]]
    assert values([earlier, later, x]) == [[0, 0, 0], [0, 0, 5], [1, 0, 5]]


def test_what_is_loaded_twice_is_apart(xla: torch.device) -> None:
    x = torch.zeros(3, device=xla)
    file = saved([x, x[1:]])
    first = torch.load(file)
    file.seek(0)
    second = torch.load(file)
    first[0].fill_(1)
    assert values([*first, *second, x]) == [[1, 1, 1], [1, 1], [0, 0, 0], [0, 0], [0, 0, 0]]


def test_a_copy_runs_nothing(xla: torch.device, flushes: list[Flushed]) -> None:
    x = torch.arange(3.0, device=xla) * 2
    twin = copy.deepcopy([x, x[1:]])
    twin[1].add_(1)
    assert not flushes
    assert values([*twin, x]) == [[0, 3, 5], [3, 5], [0, 2, 4]]


LOADS = """\
import sys, torch
for path in sys.argv[1:]:
    for options in {}, {"map_location": "cpu"}, {"weights_only": False}:
        x, rows, conj, weight = torch.load(path, **options)
        rows.zero_()
        print(x.tolist(), x.device, conj.imag.tolist(), type(weight).__name__, weight.requires_grad)
assert "torch_galley" not in sys.modules
"""


def test_without_us_they_are_cpu_tensors_that_share(xla: torch.device, tmp_path: Path) -> None:
    x, z = torch.arange(4.0, device=xla), torch.tensor([1j, 2], device=xla)
    data = [x, x[1:3], z.conj(), nn.Parameter(torch.ones(1, device=xla))]
    torch.save(data, tmp_path / "new.pt")
    torch.save(data, tmp_path / "old.pt", **OLD)
    program = f"import sys; sys.path[:] = {sys.path!r}\n{LOADS}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, tmp_path / "new.pt", tmp_path / "old.pt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0.0, 0.0, 0.0, 3.0] cpu [-1.0, -0.0] Parameter True\n" * 6


class Earlier:
    """Pickles as a tensor of the device did before files kept sharing."""

    def __init__(self, value: torch.Tensor, requires_grad: bool = False):
        self.args = (value, value.dtype, None, requires_grad)

    def __reduce__(self) -> Any:
        return _utils._rebuild_device_tensor_from_cpu_tensor, self.args


@pytest.mark.parametrize("how", ["file", "old torch's", "pickle", *sorted(STAY - {"map by call"})])
def test_earlier_files_load_and_nothing_is_tied(how: str, xla: torch.device) -> None:
    value = torch.arange(4.0)
    data = [Earlier(value[:], True), Earlier(value), Earlier(value), Earlier(value[1:])]
    found = CARRY[how](data)
    assert {x.device for x in found} == {CPU if how in STAY else xla}
    whole, part = [0, 1, 2, 3], [1, 2, 3]
    assert values(found) == [whole, whole, whole, part]
    assert [x.requires_grad for x in found] == [True, False, False, False]
    if how not in STAY:  # there they shared memory before
        found[1].zero_()
        assert values(found) == [whole, [0, 0, 0, 0], whole, part]


def test_a_mapped_file(xla: torch.device, tmp_path: Path) -> None:
    x = torch.arange(3.0, device=xla)
    torch.save([x, x[1:]], tmp_path / "file.pt")
    for where in (None, "xla", "cpu"):
        found = torch.load(tmp_path / "file.pt", mmap=True, map_location=where)
        found[1].zero_()
        assert values(found) == [[0, 0, 0], [0, 0]]
    assert values(torch.load(tmp_path / "file.pt")) == [[0, 1, 2], [1, 2]]


def test_a_loaded_weight_is_a_plain_input(xla: torch.device, flushes: list[Flushed]) -> None:
    file = saved({"w": torch.ones(2, 3, device=xla), "x": torch.ones((), device=xla)})
    flushes.clear()
    for where in (None, "xla"):
        file.seek(0)
        for weight in torch.load(file, map_location=where).values():
            assert (weight + 1).flatten().tolist() == [2.0] * weight.numel()
    assert [flush.nodes for flush in flushes] == [1, 1, 1, 1]


def test_a_storage_in_a_file_is_the_cpus(xla: torch.device) -> None:
    memory = torch.tensor([1.0, 2.0], device=xla).untyped_storage()
    found = torch.load(saved(memory))._untyped_storage
    assert found.device == CPU
    assert found.tolist() == memory.tolist()


def test_in_a_traced_step_a_copy_is_no_read(xla: torch.device) -> None:
    @torch_galley.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        twin = copy.deepcopy([x, x[1:]])
        twin[1].add_(1)
        return twin[0] * 2

    for start in (0.0, 5.0):
        x = torch.arange(3.0, device=xla) + start
        assert step(x).tolist() == [2 * start, 2 * start + 4, 2 * start + 6]
        assert x.tolist() == [start, start + 1, start + 2]
