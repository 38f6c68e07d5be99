"""torch_xla's names: what each does with one process and one device, and what isn't there."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torch_galley
from torch_galley.compat import finder
from torch_galley.compat.nested import moved

PATH = Path(inspect.getfile(finder.install)).parent / "path"


@pytest.fixture(scope="module", autouse=True)
def _installed(forgets_torch_xla: None) -> None:
    finder.install()


@pytest.fixture
def xla() -> torch.device:
    return torch_galley.device()


@pytest.fixture
def xm() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


@pytest.fixture
def tx() -> Any:
    return importlib.import_module("torch_xla")


def modules() -> list[str]:
    return [info.name for info in pkgutil.walk_packages([str(PATH)])]


def test_every_module_has_its_submodules_and_a_clear_end(tx: Any) -> None:
    names = modules()
    assert {"torch_xla", "torch_xla.core", "torch_xla.runtime", "torch_xla.amp.syncfree"} <= {
        *names
    }
    for name in names:
        found: Any = tx
        for part in name.split(".")[1:]:
            found = getattr(found, part)  # as after `import torch_xla` alone
        assert found is importlib.import_module(name)
        with pytest.raises(AttributeError, match=rf"{name}\.no_such isn't provided"):
            found.no_such  # noqa: B018
        assert not hasattr(found, "no_such")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("from torch_xla import no_such", "torch_xla.no_such isn't", "leave it out"),
        ("from torch_xla.core import no_such", "torch_xla.core.no_such isn't", "leave it out"),
        (
            "from torch_xla.core.xla_model import xla_device, get_stablehlo",
            "torch_xla.core.xla_model.get_stablehlo isn't",
            "torch_galley.stages",
        ),
        ("from torch_xla.distributed.spmd import Mesh", "spmd.Mesh isn't", "one device"),
        ("import torch_xla.distributed.fsdp.wrap", "torch_xla.distributed.fsdp isn't", "the model"),
        ("from torch_xla.stablehlo import x", "torch_xla.stablehlo isn't", "torch_galley.stages"),
    ],
)
def test_imports_of_what_is_not_there(line: str, message: str, hint: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(line, {})
    assert message in str(raised.value)
    assert hint in str(raised.value)


def test_every_name_has_a_word_of_documentation() -> None:
    for name in modules():
        found = importlib.import_module(name)
        for key, value in vars(found).items():
            if not key.startswith("_") and inspect.isfunction(value) and value.__module__ == name:
                assert value.__doc__, f"{name}.{key}"


def test_the_real_torch_xla_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(torch_galley.errors.ConfigError, match="imported already"):
        finder.install()


def test_devices(tx: Any, xm: Any, xla: torch.device) -> None:
    assert tx.device() == tx.devices()[0] == xm.xla_device() == xla
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xm.get_xla_supported_devices("TPU") == []
    assert (tx.device_count(), xm.xla_device_hw(xla), xm.xla_real_devices()) == (
        1,
        "CPU",
        ["CPU:0"],
    )
    assert xm.is_xla_tensor(torch.ones(1, device=xla))
    for call in (tx.device, xm.xla_device):
        with pytest.raises(torch_galley.errors.ConfigError, match="xla:1"):
            call(1)


def test_runtime(tx: Any) -> None:
    xr = tx.runtime
    assert xr.device_type() == "CPU"
    assert xr.world_size() == xr.global_runtime_device_count() == xr.local_device_count() == 1
    assert xr.global_ordinal() == xr.process_index() == 0
    xr.set_device_type("cpu")
    with pytest.raises(torch_galley.errors.ConfigError, match="no TPU"):
        xr.set_device_type("TPU")


def test_collectives_are_identities(xm: Any, xla: torch.device) -> None:
    x = torch.arange(4.0, device=xla)
    for given in (
        xm.all_reduce(xm.REDUCE_SUM, x),
        xm.all_gather(x),
        xm.all_to_all(x, 0, 0, 1),
        xm.reduce_scatter("sum", x, 1.0, 0, 1),
        xm.collective_permute(x, [[0, 0]]),
        xm.mesh_reduce("tag", x, sum),
    ):
        assert given is not x
        assert given.tolist() == [0, 1, 2, 3]
    assert xm.all_reduce("sum", x, scale=0.5).tolist() == [0, 0.5, 1, 1.5]
    assert xm.all_reduce("sum", [x], scale=2.0) is None
    assert x.tolist() == [0, 2, 4, 6]
    out = torch.zeros(4, device=xla)
    assert xm.all_gather(x, output=out) is out
    assert out.tolist() == x.tolist()
    assert xm.collective_permute(x, []).tolist() == [0] * 4
    assert xm.rendezvous("tag", b"p") == [b"p"]


def test_processes(tx: Any, xm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    xmp = importlib.import_module("torch_xla.distributed.xla_multiprocessing")
    seen: list[Any] = []
    tx.launch(lambda *args: seen.append(args), args=("a",))
    xmp.spawn(lambda *args: seen.append(args), args=("b",), nprocs=1)
    xm.do_on_ordinals(lambda *args: seen.append(args), ("c",))
    xm.do_on_ordinals(lambda *args: seen.append(args), ("d",), ordinals=(3,))
    assert seen == [(0, "a"), (0, "b"), ("c",)]
    with pytest.raises(torch_galley.errors.ConfigError, match="nprocs=8"):
        xmp.spawn(print, nprocs=8)
    model = xmp.MpModelWrapper(nn.Linear(2, 2)).to("xla")
    assert model.weight.device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: 3) == 3
    assert (xm.get_ordinal(), xm.xrt_world_size(), xm.is_master_ordinal()) == (0, 1, True)
    xm.master_print("one", 2)
    assert capsys.readouterr().out == "one 2\n"


def test_steps_and_their_closures(tx: Any, xm: Any, xla: torch.device) -> None:
    model = nn.Linear(2, 1).to(xla)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order: list[str] = []
    xm.add_step_closure(
        lambda loss: order.append(f"{loss.item():.0f}"), (torch.ones((), device=xla),)
    )
    model(torch.ones(1, 2, device=xla)).sum().backward()
    before = torch_galley.metrics()["flushes"]
    xm.optimizer_step(optimizer)
    assert torch_galley.metrics()["flushes"] == before + 1
    assert order == []
    assert [g.shape for g in xm._fetch_gradients(optimizer)] == [(1, 2), (1,)]
    xm.optimizer_step(optimizer, barrier=True)
    assert order == ["1"]
    xm.add_step_closure(order.append, ("2",))
    tx.sync()
    xm.add_step_closure(order.append, ("3",))
    with tx.step():
        assert order == ["1", "2", "3"]
        xm.add_step_closure(order.append, ("4",))
    assert order == ["1", "2", "3", "4"]


def test_compiled_functions_are_graphs_of_their_own(tx: Any, xla: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if read:
            y.sum().item()
        return y + 1

    x = torch.ones(3, device=xla) + 1
    read = False
    call = tx.compile(function, full_graph=True, max_different_graphs=1)
    assert call.__name__ == "function"
    assert call(x).tolist() == call(x * 2 - 2).tolist() == [5.0] * 3
    with pytest.raises(
        torch_galley.errors.CaptureError, match="function became 2 different graphs"
    ):
        call(torch.ones(5, device=xla))
    read = True
    with pytest.raises(torch_galley.errors.CaptureError, match="more than one graph") as raised:
        call(x)
    assert raised.value.site is not None
    assert raised.value.site.file == __file__
    with tx.compile():
        y = x + 5
    assert y.tolist() == [7.0] * 3


def test_loader(xla: torch.device) -> None:
    pl = importlib.import_module("torch_xla.distributed.parallel_loader")
    data = torch.utils.data.TensorDataset(torch.arange(6.0).view(6, 1), torch.arange(6))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    total = torch.zeros((), device=xla)
    torch_galley.sync()
    for device_loader in (
        pl.MpDeviceLoader(loader, xla, loader_prefetch_size=4),
        pl.ParallelLoader(loader, [xla]).per_device_loader(xla),
    ):
        assert len(device_loader) == 3
        before = torch_galley.metrics()["flushes"]
        for x, y in device_loader:
            assert x.device == y.device == xla
            total += (x[:, 0] * y).sum()
        assert torch_galley.metrics()["flushes"] == before + 3
    assert total.item() == 2 * sum(i * i for i in range(6))
    twos = pl.MpDeviceLoader([torch.ones(2)] * 4, xla, batches_per_execution=2)
    before = torch_galley.metrics()["flushes"]
    for x in twos:
        total += x.sum()
    assert torch_galley.metrics()["flushes"] == before + 2
    with pytest.raises(TypeError, match="no len"):
        len(pl.MpDeviceLoader(iter([]), xla))
    with pytest.raises(AttributeError, match="shards no input"):
        pl.MpDeviceLoader([], xla, input_sharding=object())


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    name: str


Pair = collections.namedtuple("Pair", "a b")


def test_nested_tensors_move(xla: torch.device) -> None:
    x = torch.ones(2)
    data = {
        "list": [x, 1],
        "pair": Pair(x, "b"),
        "batch": Batch(x, "n"),
        "packed": nn.utils.rnn.pack_sequence([x]),
        "ordered": collections.OrderedDict(k=x),
        "model": nn.Linear(2, 2),
    }
    there = moved(data, xla)
    assert there["pair"].b == "b"
    assert there["list"][1] == 1
    found = [there["list"][0], there["pair"].a, there["batch"].x, there["packed"].data]
    found += [there["ordered"]["k"], there["model"].weight]
    assert {t.device for t in found} == {xla}
    assert type(there["ordered"]) is collections.OrderedDict
    assert data["model"].weight.device.type == data["ordered"]["k"].device.type == "cpu"
    back = moved(there, "cpu")
    torch.testing.assert_close(back["model"].weight, data["model"].weight)


def test_saved_files_load_without_us(xm: Any, xla: torch.device, tmp_path: Path) -> None:
    xser = importlib.import_module("torch_xla.utils.serialization")
    model = nn.Linear(2, 2).to(xla)
    for save in (xm.save, xser.save):
        save({"model": model.state_dict(), "epoch": 3}, tmp_path / "file")
        state = torch.load(tmp_path / "file")  # weights only
        assert state["model"]["weight"].device.type == "cpu"
        torch.testing.assert_close(state["model"]["weight"], model.weight.detach().cpu())
    assert xser.load(tmp_path / "file")["epoch"] == 3


def test_the_page_tells_what_is_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "compat.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)` \| \d+ \| \d+ \| (.*) \|$", page, re.M)
    assert len(rows) > 60
    for name, attribute, here in rows:
        try:
            there = hasattr(importlib.import_module(name), attribute)
        except ImportError:
            there = False
        assert there is not here.startswith("**no**"), f"{name}.{attribute}"


def test_random_state(tx: Any, xm: Any, xla: torch.device) -> None:
    for seed in (tx.manual_seed, xm.set_rng_state):
        seed(7)
        torch.rand(3)
        state = xm.get_rng_state()
        first = torch.rand(3, device=xla)
        xm.set_rng_state(torch.tensor(state).item())  # through a tensor, as accelerate does
        assert torch.equal(first, torch.rand(3, device=xla))
        seed(7)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(7)))


def test_eager_mode_runs_each_operation(
    tx: Any, xla: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLEY_MODE", "lazy")
    x = torch.ones(3, device=xla)

    def flushes() -> float:
        before = torch_galley.metrics()["flushes"]
        y = x + 1
        z = y * 2
        torch_galley.sync()
        assert z.tolist() == [4, 4, 4]
        return torch_galley.metrics()["flushes"] - before

    torch_galley.sync()
    assert (flushes(), tx.experimental.is_eager_mode()) == (1, False)
    tx.experimental.eager_mode(True)
    assert (flushes(), tx.experimental.is_eager_mode()) == (2, True)
    assert tx.compile(flushes)() == 1
    with tx.experimental.eager_mode_context(False):
        assert flushes() == 1
    tx.experimental.eager_mode(False)
    assert flushes() == 1


def test_gradients_pass_through_collectives(xla: torch.device) -> None:
    xf = importlib.import_module("torch_xla.core.functions")
    x = torch.ones(2, device=xla, requires_grad=True)
    xf.all_gather(xf.all_reduce("sum", x, scale=3.0)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_rate_and_memory(xm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 3.0, 3.0, 4.0])
    monkeypatch.setattr(xm.time, "monotonic", lambda: next(clock))
    tracker = xm.RateTracker(smooth_factor=0.5)
    tracker.add(10)
    assert tracker.rate() == 5
    tracker.add(10)
    assert tracker.rate() == 7.5
    assert tracker.rate() == 7.5
    assert tracker.global_rate() == 5
    found = xm.get_memory_info("xla:0")
    assert 0 < found["bytes_used"] <= found["bytes_limit"]


def test_dynamo_bridge(xla: torch.device) -> None:
    bridge = importlib.import_module("torch_xla.core.dynamo_bridge")
    x = torch.ones(3, device=xla)
    call = bridge.extract_compiled_graph(lambda x: (x * 2 + 1, x.sum()), (x,))
    before = torch_galley.metrics()["flushes"]
    y, total = call(x)
    assert torch_galley.metrics()["flushes"] == before + 1
    assert (y.tolist(), total.item()) == ([3, 3, 3], 3)


def test_profiler_writes_a_trace(xla: torch.device, tmp_path: Path) -> None:
    xp = importlib.import_module("torch_xla.debug.profiler")
    xp.start_trace(str(tmp_path))
    with xp.StepTrace("train", step_num=1), xp.Trace("forward"):
        xp.trace_me("inner")(lambda: torch.ones(4, device=xla).exp().sum().item())()
    xp.stop_trace()
    (written,) = tmp_path.rglob("*.xplane.pb")
    found = written.read_bytes()
    assert all(name in found for name in (b"train", b"forward", b"inner"))


def test_sample_generator() -> None:
    xu = importlib.import_module("torch_xla.utils.utils")
    samples = xu.SampleGenerator(data=torch.zeros(1), sample_count=3)
    assert len(samples) == len(list(samples)) == 3


def test_loops(tx):
    from torch_xla.experimental.fori_loop import while_loop
    from torch_xla.experimental.scan import scan

    x = torch.ones(3, 2, device=tx.device())
    last, sums = scan(lambda c, row: (c + row["x"], c * 2), x[0] * 0, {"x": x})
    assert (last.tolist(), sums.tolist()) == ([3, 3], [[0, 0], [2, 2], [4, 4]])
    with torch.no_grad():
        turns, _ = while_loop(lambda i, x: x.sum() > 1, lambda i, x: (i + 1, x / 2), (0, x))
    assert turns == 3
