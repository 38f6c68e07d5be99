"""What torch programs do around a model, on the xla device: optimizers, files, loaders, hooks."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import torch_galley

OPTIMIZERS = {
    name: found
    for name, found in vars(torch.optim).items()
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
}
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "LBFGS": {"lr": 0.1, "max_iter": 4},
}


@pytest.fixture
def xla() -> torch.device:
    return torch_galley.device()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.0))


def train(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    device: torch.device | str,
    steps: int = 3,
    between: Callable[[nn.Module], Any] = lambda model: None,
) -> list[torch.Tensor]:
    """Return the parameters after some steps."""
    net = model().to(device)
    made = optimizer(net.parameters())
    x = torch.randn(4, 6).to(device)
    for _ in range(steps):

        def closure() -> torch.Tensor:
            made.zero_grad()
            loss = net(x).square().sum()
            loss.backward()
            between(net)
            return loss

        made.step(closure)
    return [p.detach().cpu() for p in net.parameters()]


def _needs(name: str) -> Callable[[Any], torch.optim.Optimizer]:
    def make(parameters: Any) -> torch.optim.Optimizer:
        found = list(parameters)
        if name == "Muon":  # it is for matrices alone
            found = [p for p in found if p.dim() == 2]
        return OPTIMIZERS[name](found, **SETTINGS.get(name, {}))

    return make


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("Optimizer", "SparseAdam")])
def test_optimizers_step_as_in_eager(name: str, xla: torch.device) -> None:
    given, wanted = train(_needs(name), xla), train(_needs(name), "cpu")
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.equal(wanted[0], next(model().parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "Adadelta"])
@pytest.mark.parametrize("foreach", [False, True])
def test_foreach_makes_no_difference(name: str, foreach: bool, xla: torch.device) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return OPTIMIZERS[name](parameters, foreach=foreach, lr=0.01)

    torch.testing.assert_close(train(make, xla), train(make, "cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "clip",
    [
        lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1),
        lambda net: nn.utils.clip_grad_value_(net.parameters(), 0.01),
    ],
)
def test_clipping(clip: Callable[[nn.Module], Any], xla: torch.device) -> None:
    def sgd(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.1)

    given, wanted = train(sgd, xla, between=clip), train(sgd, "cpu", between=clip)
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("enabled", [True, False])
def test_grad_scaler_is_harmless(enabled: bool, xla: torch.device) -> None:
    def scaled(device: Any) -> list[torch.Tensor]:
        net = model().to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(torch.device(device).type, enabled=enabled)
        x = torch.randn(4, 6).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(net(x).square().sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return [p.detach().cpu() for p in net.parameters()]

    torch.testing.assert_close(scaled(xla), scaled("cpu"))


def test_schedulers(xla: torch.device) -> None:
    def rates(device: Any) -> tuple[list[float], list[torch.Tensor]]:
        net = model().to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=6)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(2, 6).to(device)).sum().backward()
            optimizer.step()
            scheduler.step()
            found.append(scheduler.get_last_lr()[0])
        return found, [p.detach().cpu() for p in net.parameters()]

    given, wanted = rates(xla), rates("cpu")
    assert given[0] == wanted[0]
    torch.testing.assert_close(given[1], wanted[1])


def test_state_dicts_go_there_and_back(xla: torch.device) -> None:
    here, there = model(), model().to(xla)
    with torch.no_grad():
        for p in there.parameters():
            p.add_(1)
    here.load_state_dict(there.state_dict())
    torch.testing.assert_close(here[0].weight, there[0].weight.cpu())
    there.load_state_dict(model().state_dict())
    torch.testing.assert_close(there[0].weight.cpu(), model()[0].weight)
    assert there[0].weight.device == xla
    optimizer = torch.optim.AdamW(there.parameters())
    there(torch.ones(1, 6, device=xla)).sum().backward()
    optimizer.step()
    twin = torch.optim.AdamW(there.parameters())
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p in there.parameters():
        torch.testing.assert_close(twin.state[p]["exp_avg"], optimizer.state[p]["exp_avg"])


LOADS = """\
import sys, torch
state = torch.load(sys.argv[1])
assert "torch_galley" not in sys.modules
print(state["weight"].device, state["weight"].sum().item(), state["steps"])
"""


def test_a_saved_file_loads_where_we_are_not_installed(xla: torch.device, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"weight": torch.ones(2, 3, device=xla) * 2, "steps": 4}, path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{LOADS}", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cpu 12.0 4\n"


def test_copies_are_copies(xla: torch.device) -> None:
    net = model().to(xla)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin[0].weight.device == xla
        with torch.no_grad():
            twin[0].weight.zero_()
        assert net[0].weight.abs().sum().item() > 0
    x = torch.arange(6.0, device=xla).view(2, 3)
    buffer = io.BytesIO()
    torch.save({"x": x, "t": x.t()}, buffer)
    buffer.seek(0)
    found = torch.load(buffer, map_location="cpu")
    assert found["t"].tolist() == x.t().tolist()
    assert found["t"].untyped_storage().data_ptr() == found["x"].untyped_storage().data_ptr()


def test_printing(xla: torch.device) -> None:
    x = torch.arange(4.0, device=xla)
    assert str(x) == "tensor([0., 1., 2., 3.], device='xla:0')"
    assert f"{x.mean():.3f} {x.sum()}" == "1.500 6.0"
    p = nn.Parameter(torch.ones(1, device=xla))
    assert repr(p) == "Parameter containing:\ntensor([1.], device='xla:0', requires_grad=True)"
    assert "Linear(in_features=6" in repr(model().to(xla))
    assert repr(torch.ones(2, 2, dtype=torch.int64, device=xla)[0]) == (
        "tensor([1, 1], device='xla:0')"
    )


def test_tied_weights_stay_tied_through_training(xla: torch.device) -> None:
    def tied(device: Any) -> torch.Tensor:
        torch.manual_seed(0)
        embed, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        head.weight = embed.weight
        net = nn.Sequential(embed, head).to(device)
        assert net[0].weight is net[1].weight
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        assert len(optimizer.param_groups[0]["params"]) == 1
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.tensor([1, 2], device=device)).square().sum().backward()
            optimizer.step()
        return net[1].weight.detach().cpu()

    torch.testing.assert_close(tied(xla), tied("cpu"))


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool, xla: torch.device) -> None:
    def grads(device: Any) -> list[torch.Tensor]:
        net = nn.Sequential(model(), nn.Dropout(0.5)).to(device)
        x = torch.ones(2, 6).to(device).requires_grad_()
        torch.manual_seed(1)
        checkpoint(net, x, use_reentrant=reentrant).square().sum().backward()
        return [p.grad.cpu() for p in [*net.parameters(), x]]

    torch.testing.assert_close(grads(xla), grads("cpu"))


def test_hooks(xla: torch.device) -> None:
    net = model().to(xla)
    seen: list[tuple[str, str]] = []
    net[0].register_forward_pre_hook(lambda m, a: seen.append(("before", a[0].device.type)))
    net[0].register_forward_hook(lambda m, a, out: seen.append(("after", out.device.type)))
    net[2].register_full_backward_hook(lambda m, i, o: seen.append(("back", o[0].device.type)))
    x = torch.ones(2, 6, device=xla, requires_grad=True)
    x.register_hook(lambda grad: grad * 2)
    counts: list[float] = []
    net[0].weight.register_post_accumulate_grad_hook(lambda p: counts.append(p.grad.sum().item()))
    net(x).sum().backward()
    assert seen == [("before", "xla"), ("after", "xla"), ("back", "xla")]
    here = model()
    y = torch.ones(2, 6, requires_grad=True)
    here(y).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.grad * 2)
    assert counts == pytest.approx([here[0].weight.grad.sum().item()], rel=1e-4)


@pytest.fixture
def _forks_quietly() -> Iterator[None]:
    """jax warns at every fork once it runs; the children use the CPU alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        yield


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.usefixtures("_forks_quietly")
def test_data_loader(workers: int, pin: bool, xla: torch.device) -> None:
    (torch.ones(3, device=xla) + 1).sum().item()  # XLA's threads are up
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    total = 0.0
    for x, y in DataLoader(data, batch_size=2, num_workers=workers, pin_memory=pin):
        total += (x.to(xla, non_blocking=True) * y.to(xla)).sum().item()
    assert total == sum(i * i for i in range(8))


def test_save_pretrained(xla: torch.device, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=16, n_positions=8)
    here = transformers.GPT2LMHeadModel(config)
    there = copy.deepcopy(here).to(xla)
    assert there.lm_head.weight is there.transformer.wte.weight
    there.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.transformer.wte.weight
    torch.testing.assert_close(again.state_dict(), here.state_dict())


def test_custom_functions_and_func(xla: torch.device) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    x = torch.arange(3.0, device=xla, requires_grad=True)
    Cube.apply(x).sum().backward()
    assert x.grad.tolist() == [0, 3, 12]
    y = torch.arange(3.0, device=xla)
    assert torch.func.grad(lambda t: (t**3).sum())(y).tolist() == [0, 3, 12]
    assert torch.func.vmap(lambda t: t * 2)(y).tolist() == [0, 2, 4]
    jacobian = torch.func.jacrev(lambda t: t**2)(y)
    assert jacobian.diagonal().tolist() == [0, 2, 4]
