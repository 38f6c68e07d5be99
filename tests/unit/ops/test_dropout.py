"""With rng="native", the same seed drops the same elements as in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("eagers_numbers")

CASES = {
    "dropout": lambda x: F.dropout(F.dropout(x.sin(), 0.3).cos(), 0.1),
    "of a transposed input": lambda x: F.dropout(x.transpose(0, 2), 0.5),
    "all": lambda x: F.dropout(x, 1.0),
    "none": lambda x: F.dropout(x, 0.0) + 1,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) + torch.bernoulli(x, 0.3),
    "channels": lambda x: F.dropout2d(x, 0.5) + F.alpha_dropout(x, 0.2, True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(galley, name):
    function, x = CASES[name], torch.randn(2, 3, 5, 8)
    compiled = galley(function, fullgraph=True)
    torch.manual_seed(7)
    want = function(x)
    torch.manual_seed(7)
    torch.testing.assert_close(compiled(x), want)


def test_gradient(galley):
    x = torch.randn(6, 7, requires_grad=True)

    def step(x):
        return F.dropout(x.sin(), 0.3).square().sum()

    grads = []
    for run in (step, galley(step, fullgraph=True)):
        torch.manual_seed(7)
        grads += torch.autograd.grad(run(x), x)
    torch.testing.assert_close(grads[1], grads[0])
