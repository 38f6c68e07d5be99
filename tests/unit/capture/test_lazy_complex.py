"""Complex tensors on the xla device and the views between them and real ones, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

real, pair = torch.view_as_real, torch.view_as_complex


def _complex(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def _read(x: torch.Tensor) -> list[Any]:
    """Every way to see a complex tensor, with and without computing on it."""
    y = x * 2
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        real,
        lambda x: real(x).view(-1)[1:4],
        lambda x: real(x.t()[1:]),
        lambda x: x.real,
        lambda x: x.imag,
        lambda x: x.mT[-1].imag,
        lambda x: x.conj(),
        lambda x: x.conj().real,
        lambda x: x.conj().imag,
        lambda x: x.conj().imag.resolve_neg(),
        lambda x: x.mH,
        lambda x: x.conj().resolve_conj(),
        lambda x: real(x.conj().resolve_conj()),
        lambda x: x.conj_physical(),
        lambda x: pair(real(x).flip(0)),
        lambda x: real(x.expand(2, *x.shape)),
        lambda x: real(torch._neg_view(x)),
        lambda x: torch._neg_view(x.conj()).imag,
        torch.real,
        torch.imag,
        torch.abs,
        torch.angle,
    ]
    return [view(z) for view in views for z in (x, y)] + [view(y) * 3 for view in views]


def _paired(x: torch.Tensor) -> list[Any]:
    y = x * 2
    found = [pair(z) for z in (x, y, x[1:], x.transpose(0, 1), y[:, ::2].transpose(0, 1))]
    found += [one * (1 + 2j) for one in found] + [pair(y)[1].real, pair(x).imag, pair(x).conj()]
    found.append(pair(torch._neg_view(x)))
    return [*found, torch.complex(x, y), torch.polar(x, y), real(pair(x)), real(pair(y).conj() * 1)]


READ = {
    "complex": (_read, lambda: _complex(3, 2)),
    "one element": (_read, lambda: _complex(4, 1).to(torch.complex128)),
    "pairs": (_paired, lambda: torch.randn(3, 4, 2)),
}


def judged(
    function: Callable[[torch.Tensor], Any],
    given: torch.Tensor,
    xla: torch.device,
    order: int = 1,
) -> None:
    """Assert that values, gradients, and what torch keeps as bits and strides are eager's."""

    def run(x: torch.Tensor) -> list[Any]:
        x = x.detach().requires_grad_()
        results = function(x)
        torch.manual_seed(1)
        directions = [torch.randn(r.shape, dtype=r.dtype).to(r.device) for r in results]
        (first,) = torch.autograd.grad(results, x, directions, create_graph=order > 1)
        found = [*results, first]
        if order > 1:
            found += torch.autograd.grad(first, x, directions[0])
        return [result.detach() for result in found]

    wanted, found = run(given), run(given.to(xla))
    for i, (w, f) in enumerate(zip(wanted, found, strict=True)):
        assert f.device.type == "xla", i
        assert [f.is_conj(), f.is_neg(), f.dtype] == [w.is_conj(), w.is_neg(), w.dtype], i
        assert _strides(f) == _strides(w), i
        torch.testing.assert_close(f.cpu(), w, msg=lambda m, i=i: f"{i}: {m}")


def _strides(x: torch.Tensor) -> list[int]:
    """Those that mean something."""
    pairs = zip(x.stride(), x.shape, strict=True)
    return [stride for stride, size in pairs if size > 1 and x.numel()]


@pytest.mark.parametrize("name", READ)
def test_views_and_their_gradients(xla, name):
    function, made = READ[name]
    torch.manual_seed(0)
    judged(function, made(), xla)


SECOND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view_as_real": lambda x: pair(real(x) ** 3),
    "real and imag": lambda x: x.real * x.imag * x,
    "conj": lambda x: x.conj() * x * x,
    "resolve_conj": lambda x: pair(real(x.conj().resolve_conj()) ** 2),
    "slices": lambda x: pair(real(x.t())[:, ::2].contiguous() ** 2).repeat(3, 1)[1:4],
}


@pytest.mark.parametrize("name", SECOND)
def test_second_gradients(xla, name):
    torch.manual_seed(0)
    judged(lambda x: [SECOND[name](x)], _complex(3, 2), xla, order=2)


def _by(write: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A program that writes something of y, a view of which was taken before."""

    def program(x: torch.Tensor) -> list[Any]:
        y = x * 1
        before = [real(y), y.real, y.imag, y.conj(), y.conj().imag] if y.is_complex() else [pair(y)]
        write(y, x)
        return [y, y * y, *before, *(view * view for view in before)]

    return program


def _set(name: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    return lambda y, x: setattr(y, name, (x.imag if name == "real" else x.real) * 2)


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "the base": lambda y, x: y.mul_(2j),
    "view_as_real": lambda y, x: real(y).mul_(3),
    "a part of view_as_real": lambda y, x: real(y)[..., 0].copy_(x.imag),
    "an index of view_as_real": lambda y, x: real(y).__setitem__((slice(None), 1), x.real[:, :1]),
    "view_as_real of itself": lambda y, x: real(y).copy_(real(y).flip(-1)),
    "zeros": lambda y, x: real(y)[:, :, 1].zero_(),
    "real": lambda y, x: y.real.mul_(3),
    "real of both": lambda y, x: y.real.addcmul_(x.real, x.imag),
    "real =": _set("real"),
    "imag": lambda y, x: y.imag.add_(y.real),
    "imag of real": lambda y, x: y.imag.copy_(y.real),
    "imag =": _set("imag"),
    "imag masked": lambda y, x: y.imag.masked_fill_(x.real > 0, 2.0),
    "conj": lambda y, x: y.conj().mul_(2j),
    "a row of conj": lambda y, x: y.conj()[0].copy_(x[1]),
    "imag of conj": lambda y, x: y.conj().imag.mul_(2),
    "a copy to imag of conj": lambda y, x: y.conj().imag.copy_(x.real),
    "a fill of imag of conj": lambda y, x: y.conj().imag[1:].fill_(3),
    "mH": lambda y, x: y.mH[1].add_(x[:, 0]),
    "strided": lambda y, x: real(y.t()[1:]).mul_(2),
    "a conjugate": lambda y, x: y.copy_(x.conj()),
    "a negative": lambda y, x: y.imag.copy_(x.conj().imag),
    "imag of a negative": lambda y, x: torch._neg_view(y).imag.copy_(x.real),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views(xla, name):
    torch.manual_seed(0)
    judged(_by(WRITES[name]), _complex(3, 2), xla)


@pytest.mark.parametrize(
    "write",
    [
        lambda y, x: pair(y).mul_(2j),
        lambda y, x: pair(y)[1:].fill_(2 + 1j),
        lambda y, x: pair(y).real.mul_(3),
        lambda y, x: pair(y).conj().imag.copy_(x[..., 0]),
        lambda y, x: y.mul_(2),
    ],
)
def test_writes_through_view_as_complex(xla, write):
    torch.manual_seed(0)
    judged(_by(write), torch.randn(3, 2), xla)


def test_pairs_of_a_conjugate_are_refused(xla):
    x = _complex(3, 2)
    with pytest.raises(RuntimeError, match="unresolved conjugated tensors") as wanted:
        real(x.conj())
    with pytest.raises(RuntimeError) as found:
        real(x.to(xla).conj())
    assert str(found.value) == str(wanted.value)


def test_another_dtype_of_what_was_copied_from_a_view_with_gaps(xla):
    torch.manual_seed(0)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        copies = [
            torch.empty_like(part).copy_(part) for part in (x[:, ::2], x.t()[::3], x[0, 1::2])
        ]
        copies += [torch.zeros(2, dtype=x.dtype, device=x.device).copy_(x[1, ::2])]
        return [real(copy.contiguous()) for copy in copies] + [copies[-1].view(torch.int32) * 1]

    x = _complex(3, 4)
    for found, wanted in zip(program(x.to(xla)), program(x), strict=True):
        torch.testing.assert_close(found.cpu(), wanted)
