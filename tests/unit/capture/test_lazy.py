"""The lazy device: aliasing, when it flushes, what it compiles, and its errors."""

from __future__ import annotations

import copy
import gc
import io
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_galley
from tests.unit.capture.alike import both
from torch_galley.capture.lazy import flush, region, segment
from torch_galley.core.events import Flushed


def test_names_and_index(xla: torch.device) -> None:
    assert str(xla) == "xla:0"
    assert torch.ones(2, device="xla").device == xla
    with pytest.raises(torch_galley.errors.ConfigError, match="xla:0"):
        torch_galley.device(1)


def test_reads_flush_once(flushes: list[Flushed], xla: torch.device) -> None:
    x = torch.arange(6.0, device=xla)
    y = x * 2 + 1
    z = y.sum()
    assert flushes == []
    assert z.item() == 36
    assert [event.cause for event in flushes] == ["read"]
    assert flushes[0].site.file == __file__
    assert y.tolist() == [1, 3, 5, 7, 9, 11]  # computed along with z
    assert z.item() == 36
    assert len(flushes) == 1


def test_sync_with_nothing_to_do_is_no_flush(flushes: list[Flushed], xla: torch.device) -> None:
    torch.ones(3, device=xla).add(1)
    gc.collect()
    torch_galley.sync()
    assert flushes == []


def test_dead_results_are_not_computed(flushes: list[Flushed], xla: torch.device) -> None:
    x = torch.ones(3).to(xla)
    for _ in range(5):
        x.exp().sum()
    y = x + 1
    torch_galley.sync()
    assert [event.nodes for event in flushes] == [1]
    assert y.tolist() == [2, 2, 2]


def test_too_much_pending_flushes_by_itself(
    flushes: list[Flushed], xla: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "_LOOK", 1)
    monkeypatch.setattr(segment, "LENGTH", 6)
    monkeypatch.setattr(flush, "_told", False)
    x = torch.zeros(()).to(xla)

    def count() -> torch.Tensor:
        total = x
        for _ in range(50):
            total = total + 1
        return total

    with (
        pytest.warns(UserWarning, match="20 operations without a sync") as told,
        torch_galley.config(max_pending=20),
    ):
        x = count()
    assert len(told) == 1
    assert [event.cause for event in flushes] == ["limit", "limit"]
    assert x.item() == 50


def test_too_many_bytes_flush_by_themselves(
    flushes: list[Flushed], xla: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "_told", False)
    monkeypatch.setattr(segment, "LENGTH", 1)
    monkeypatch.setenv("GALLEY_MAX_PENDING_BYTES", "4000")
    total = torch.zeros(100).to(xla)

    def add() -> None:
        for _ in range(22):  # 400 bytes each
            total.add_(torch.ones(100).to(xla))

    with pytest.warns(UserWarning, match="4,000 bytes without a sync") as told:
        add()
    assert len(told) == 1
    assert [event.cause for event in flushes] == ["limit", "limit"]
    assert total.tolist() == [22] * 100


@pytest.mark.parametrize(("steps", "batch"), [(12, 4), (13, 4), (3, 5), (5, 1)])
def test_a_program_for_each_batch_of_operations(steps: int, batch: int, xla: torch.device) -> None:
    """R_xla = ceil(N / B) for N operations and a sync after each B; R_eager = N."""

    def flushes(mode: str) -> float:
        x = torch.zeros(3).to(xla)
        torch_galley.sync()
        torch_galley.reset_metrics()
        with torch_galley.config(mode=mode):
            for n in range(steps):
                x = x + 1
                if (n + 1) % batch == 0 and mode == "lazy":
                    torch_galley.sync()
        torch_galley.sync()
        assert x.tolist() == [steps] * 3
        found = torch_galley.metrics()
        assert found["flushed_nodes"] == steps
        assert found["flushes_read"] == 0
        return found["flushes"]

    assert flushes("lazy") == math.ceil(steps / batch)
    assert flushes("eager") == flushes("blocking") == steps


def test_views_alias(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        a = torch.arange(24.0).reshape(2, 3, 4).to(dev)
        a.t if a.dim() == 2 else a.transpose(0, 2).mul_(10)
        a[1, 1:, ::2] = -1
        a.view(6, 4)[::2].add_(1)
        a.view(-1)[5:11].neg_()
        row = a[0]
        row[:] = row.flip(0)
        b = a.permute(2, 0, 1)
        b[0].fill_(7)
        diagonal = a[:, :, 0].diagonal()
        diagonal.sub_(100)
        return a, row, b, diagonal, a[:, 0].expand(3, 2, 4), a.view(2, 12).t()

    both(program, xla)


def test_windows_and_broadcasts(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        a = torch.arange(10.0).to(dev)
        windows = a.unfold(0, 4, 2)
        a[3] += 100
        q, k = torch.arange(24.0).to(dev).view(2, 2, 3, 2).unbind(2)[:2]
        return windows * 1, windows, q.transpose(0, 1), k

    both(program, xla)


def test_views_of_another_dtype(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        z = torch.view_as_complex(torch.arange(6.0).reshape(3, 2).to(dev))
        parts = torch.view_as_real(z)
        parts[:, 1] = 5
        bits = torch.ones(2).to(dev).view(torch.int32)
        bits += 1
        return z, parts, bits, z.conj() * 2, z.imag

    both(program, xla)


def test_rebinding_data_leaves_old_views_alone(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        a = torch.zeros(6).to(dev)
        va = a.view(2, 3)
        a.data.add_(1.0)
        b = torch.zeros(6).to(dev)
        vb = b.view(2, 3)
        b.data = b.data + 1.0
        c = torch.zeros(6).to(dev)
        vc = c.view(-1)
        c.data = vc[:2] + 5
        return va, a, vb, b, vc, c

    both(program, xla)
    assert torch_galley.metrics()["native_ops"] == 0


def test_same_expression_writing_and_not(xla: torch.device) -> None:
    a, b = torch.tensor([1.0]).to(xla), torch.tensor([2.0]).to(xla)
    torch_galley.sync()
    b.add_(a)
    torch_galley.sync()
    c = b + a
    torch_galley.sync()
    d = a + b
    b.add_(1)
    torch_galley.sync()
    assert [t.item() for t in (a, b, c, d)] == [1, 4, 4, 4]


def test_the_source_of_a_copy_may_change_later(xla: torch.device) -> None:
    source = torch.ones(64)
    x = source.to(xla)
    scaled = x * torch.tensor(2.0)
    source.zero_()
    assert scaled.sum().item() == 128
    back = x.cpu()
    back.zero_()
    assert x.sum().item() == 64


def test_out_and_resize(xla: torch.device) -> None:
    out = torch.empty(0, device=xla)
    torch.add(torch.ones(2, 3, device=xla), 1, out=out)
    assert out.shape == (2, 3)
    assert out.sum().item() == 12
    out.resize_(4)
    assert out.tolist() == [2, 2, 2, 2]
    out.resize_(8)
    assert out[:6].tolist() == [2] * 6


@pytest.mark.parametrize(
    "program",
    [
        lambda dev: torch.ones(2, 3, device=dev) @ torch.ones(2, 3, device=dev),
        lambda dev: torch.ones(2, 3, device=dev) + torch.ones(4, device=dev),
        lambda dev: torch.ones(2, device=dev).add_(torch.ones(2, 2, device=dev)),
        lambda dev: torch.ones(2, device=dev, dtype=torch.int64).mul_(1.5),
        lambda dev: torch.ones(6, device=dev).view(4),
        lambda dev: torch.ones(6, device=dev)[2:].as_strided((5,), (1,), 2),
        lambda dev: (lambda x: x[1:].add_(x[:-1]))(torch.ones(6, device=dev)),
        lambda dev: (lambda x: x[1:].copy_(x[:-1]))(torch.ones(6, device=dev)),
        lambda dev: torch.ones(3, device=dev).expand(2, 3).mul_(2),
        lambda dev: torch.ones(2, dtype=torch.int64, device=dev).add_(torch.ones(2, device=dev)),
        lambda dev: torch.ones(2, dtype=torch.complex64, device=dev).sort(),
        lambda dev: torch.ones(2, dtype=torch.bool, device=dev).relu_(),
        lambda dev: torch.ones(2, device=dev) - torch.ones(2, dtype=torch.bool, device=dev),
        lambda dev: torch.add(1, torch.ones(2, device=dev), out=torch.ones(2, device=dev).int()),
        lambda dev: torch.complex(
            *[torch.ones(2, device=dev)] * 2,
            out=torch.ones(2, dtype=torch.complex128, device=dev),
        ),
        lambda dev: torch.cat([torch.ones(2, 2, device=dev), torch.ones(3, 3, device=dev)]),
        lambda dev: nn.functional.conv2d(
            torch.ones(1, 3, 8, 8, device=dev), torch.ones(4, 5, 3, 3, device=dev)
        ),
    ],
)
def test_errors_are_eagers(program: Callable[[object], object], xla: torch.device) -> None:
    with pytest.raises(Exception) as wanted:  # noqa: PT011  (whatever eager raises)
        program("cpu")
    with pytest.raises(wanted.type) as given:
        program(xla)
    assert str(given.value) == str(wanted.value)
    assert any(entry.path.samefile(__file__) for entry in given.traceback if entry.path.exists())  # type: ignore[union-attr]


def test_a_boolean_to_a_boolean_power(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        x = torch.tensor([True, False]).to(dev)
        return tuple(x**power for power in (True, False, 1, 0, 2.0))

    both(program, xla)


def test_mixed_devices(xla: torch.device) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=xla) + torch.ones(2)


def _train(dev: torch.device, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dev)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(32, 8).to(dev), torch.randint(0, 4, (32,)).to(dev)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def test_training_equals_eager(xla: torch.device) -> None:
    wanted, given = _train(torch.device("cpu"), 5), _train(xla, 5)
    torch.testing.assert_close(given[0], wanted[0])
    torch.testing.assert_close(given[1], wanted[1])


def test_the_second_step_compiles_nothing(xla: torch.device) -> None:
    _train(xla, 2)  # with momentum, the first step differs from all others
    torch_galley.reset_metrics()
    _train(xla, 6)
    assert torch_galley.metrics()["compiles"] == 0
    assert torch_galley.metrics()["graphs"] == 0


def test_tied_weights_stay_tied(xla: torch.device) -> None:
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    b.weight = a.weight
    model = nn.Sequential(a, b).to(xla)
    assert model[0].weight is model[1].weight
    model(torch.ones(1, 4, device=xla)).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.usefixtures("eagers_numbers")
def test_random_numbers_are_the_cpus(xla: torch.device) -> None:
    torch.manual_seed(3)
    wanted = torch.randn(4), torch.rand(2, 2), torch.nn.functional.dropout(torch.ones(8))
    torch.manual_seed(3)
    given = (
        torch.randn(4, device=xla),
        torch.rand(2, 2, device=xla),
        torch.nn.functional.dropout(torch.ones(8, device=xla)),
    )
    for w, g in zip(wanted, given, strict=True):
        assert torch.equal(g.cpu(), w)


def test_batch_norm_updates_its_statistics(xla: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.BatchNorm1d(3)
    there = copy.deepcopy(here).to(xla)
    x = torch.randn(8, 3)
    torch.testing.assert_close(there(x.to(xla)).cpu(), here(x))
    torch.testing.assert_close(there.running_var.cpu(), here.running_var)
    assert there.num_batches_tracked.item() == 1


def test_operators_whose_shapes_torch_cannot_tell_run_natively(xla: torch.device) -> None:
    """They are not tried on tensors of no value: this one reads memory past the end of those."""
    samples = torch.rand(1, 2, 3)
    x = torch.randn(1, 2, 5, 5, 5)
    gradients = []
    for device in ("cpu", xla):
        leaf = x.detach().to(device).requires_grad_()
        sizes = {"kernel_size": 2, "output_size": 3, "_random_samples": samples.to(device)}
        torch.nn.functional.fractional_max_pool3d(leaf, **sizes).sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(gradients[1].cpu(), gradients[0])


def test_shapes_that_hang_on_data_run_natively(xla: torch.device) -> None:
    x = torch.tensor([1.0, 0.0, 2.0], device=xla) * 2
    before = torch_galley.metrics()["native_ops"]
    assert x.nonzero().tolist() == [[0], [2]]
    assert x[x > 1].tolist() == [2, 4]
    assert torch_galley.metrics()["native_ops"] >= before + 2
    assert torch.equal(x, x.clone())


def test_save_print_and_deepcopy(xla: torch.device) -> None:
    x = torch.arange(3.0, device=xla)
    assert repr(x) == "tensor([0., 1., 2.], device='xla:0')"
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    again = torch.load(buffer)
    assert again.device == xla
    assert again.tolist() == [0, 1, 2]
    twin = copy.deepcopy(x)
    twin.add_(1)
    assert x.tolist() == [0, 1, 2]
    assert f"{x.sum():.2f}" == "3.00"


def test_a_failing_flush_fails_once(xla: torch.device) -> None:
    table, index = torch.ones(4, 2, device=xla), torch.tensor([7]).to(xla)
    lost = nn.functional.embedding(index, table)
    fine = table + 1
    with pytest.raises(IndexError):
        torch_galley.sync()
    torch_galley.sync()
    with pytest.raises(torch_galley.errors.CaptureError, match="lost"):
        lost.cpu()
    assert table.sum().item() == 8
    del fine


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: torch.ones(2).to("xla:1"), "no xla:1"),
        (lambda: torch.ones(2, device="xla:1"), "no xla:1"),
        (lambda: torch.ones(2, 2, device="xla").to_sparse(), "sparse_coo"),
        (lambda: torch.ones(2, 2).to_sparse().to("xla"), "dense tensors only"),
        (lambda: torch.xla.no_such_thing, r"torch\.xla\.no_such_thing"),  # type: ignore[attr-defined]
    ],
)
def test_what_is_missing_is_named(
    program: Callable[[], object], words: str, xla: torch.device
) -> None:
    with pytest.raises(torch_galley.errors.CaptureError, match=words):
        program()


def test_regions_show_what_strides_do() -> None:
    base = torch.arange(120).view(4, 6, 5).transpose(0, 2)
    views = [
        base[1:4, ::2, 3],
        base.transpose(0, 1)[2:5],
        base.transpose(0, 2).reshape(4, 2, 3, 5)[:, 1, :, 2],
        base[2][None, :, :, None].expand(7, 6, 4, 2),
        base.transpose(0, 2).flatten()[7:31].view(4, 6),
    ]
    for view in views:
        shape, strides = tuple(view.shape), view.stride()
        box = region.region(
            tuple(base.shape), base.stride(), shape, strides, int(view.storage_offset())
        )
        assert box is not None
        value = base.permute(box.to_physical).reshape(box.split)
        for part in box.slices:
            value = value.narrow(part.dim, part.start, part.stop - part.start)
            value = value[(slice(None),) * part.dim + (slice(None, None, part.step),)]
        value = value.reshape(box.kept).permute(box.order).reshape(box.spread).expand(box.sizes)
        assert torch.equal(value, view)
