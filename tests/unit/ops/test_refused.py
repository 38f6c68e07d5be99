"""What eager refuses by dtype and torch's tracing takes is refused in eager's words."""

from __future__ import annotations

import pytest
import torch

import torch_galley

X = {torch.bool: [True, False], torch.complex64: [1j, 2.0], torch.int64: [1, 2]}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (torch.argmax, torch.bool),
        (torch.argmin, torch.complex64),
        (lambda x: x.max(0), torch.complex64),
        (torch.relu, torch.bool),
        (torch.msort, torch.complex64),
        (torch.std, torch.int64),
        (lambda x: x.topk(1), torch.bool),
        (torch.nn.functional.tanhshrink, torch.bool),
        (torch.nansum, torch.complex64),
        (lambda x: torch.addcdiv(x, x, x), torch.bool),
        (lambda x: torch.mm(x.view(1, 2), x.view(2, 1).double()), torch.int64),
        (lambda x: torch.dist(x.float(), x), torch.bool),
        (lambda x: torch.heaviside(x, x.float()), torch.int64),
        (lambda x: torch.index_add(x, 0, x[:1], x[:1].float()), torch.int64),
        (lambda x: torch.index_put(x, (x[:1],), x[:1].float()), torch.int64),
    ],
)
def test_is_refused_as_in_eager(function, dtype, galley):
    x = torch.tensor(X[dtype], dtype=dtype)
    with pytest.raises(RuntimeError) as wanted:
        function(x)
    with pytest.raises(RuntimeError) as given:
        galley(lambda x: function(x + 0 if dtype is not torch.bool else x & x))(x)
    assert str(given.value) == str(wanted.value)


def test_what_only_torchs_rewriting_refuses_stays_whole(galley):
    x = torch.tensor([1, 2])
    given = galley(lambda x: torch.addcmul(x, x, x, value=2.7) + 1)(x)
    assert torch.equal(given, torch.addcmul(x, x, x, value=2.7) + 1)


def test_what_eager_takes_stays_in_xla(same):
    same(lambda x: (x.relu() - 1).sort()[0].topk(2)[0], torch.randn(3, 4))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (torch.histc, torch.bool),
        (torch.histc, torch.int64),
        (torch.histc, torch.complex64),
        (lambda x: torch.histc(x, 4, 3, 1), torch.int64),
        (lambda x: torch.histc(x, 0), torch.int64),
        (lambda x: torch.histogram(x, 3), torch.int64),
        (lambda x: torch.bincount(x.float()), torch.int64),
        (lambda x: x.cummax(0), torch.complex64),
        (torch.msort, torch.complex64),
        (torch.nn.functional.elu, torch.int64),
        (lambda x: x << 1, torch.complex64),
    ],
)
def test_is_refused_on_the_device_at_the_call(function, dtype):
    x = torch.tensor(X[dtype], dtype=dtype)
    with pytest.raises(RuntimeError) as wanted:
        function(x)
    there = x.to(torch_galley.device())
    with pytest.raises(type(wanted.value)) as given:
        function(there)
    assert str(given.value) == str(wanted.value)
