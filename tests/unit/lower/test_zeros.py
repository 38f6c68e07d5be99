"""The sign of zero, tensors without elements, tensors without dimensions: as eager has them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")

SIGNED = {
    "x + 0": lambda x, z: x + 0,
    "x + 0.0": lambda x, z: x + 0.0,
    "0 + x": lambda x, z: 0 + x,
    "x + -0.0": lambda x, z: x + -0.0,
    "x + zero tensor": lambda x, z: x + z,
    "x + zeros": lambda x, z: x + torch.zeros_like(x),
    "zeros + x": lambda x, z: torch.zeros(6) + x,
    "x + view of zeros": lambda x, z: x + torch.zeros(3, 2).view(6),
    "x + 0 * 1": lambda x, z: x + torch.zeros_like(x) * 1,
    "x - 0": lambda x, z: x - 0,
    "x - -0.0": lambda x, z: x - -0.0,
    "0 - x": lambda x, z: 0 - x,
    "zeros - x": lambda x, z: torch.zeros_like(x) - x,
    "x - x": lambda x, z: x - x,
    "-x": lambda x, z: -x,
    "x * 1": lambda x, z: x * 1,
    "x * -1": lambda x, z: x * -1,
    "x * 0": lambda x, z: x * 0,
    "x / -1": lambda x, z: x / -1,
    "alpha 0": lambda x, z: torch.add(x, x, alpha=0),
    "addcmul": lambda x, z: torch.addcmul(x, x, x, value=0),
    "lerp": lambda x, z: torch.lerp(x, x, 0.0),
    "abs": lambda x, z: x.abs(),
    "x ** 1": lambda x, z: x**1,
    "x ** 3": lambda x, z: x**3,
    "sqrt": lambda x, z: x.sqrt(),
    "round": lambda x, z: (x * 0.4).round(),
    "trunc": lambda x, z: (x * 0.4).trunc(),
    "ceil": lambda x, z: (x * 0.4).ceil(),
    "floor": lambda x, z: (x * 0.4).floor(),
    "sign": lambda x, z: x.sign(),
    "copysign": lambda x, z: torch.ones_like(x).copysign(x),
    "x % 1": lambda x, z: x % 1,
    "x % -1": lambda x, z: x % -1,
    "fmod": lambda x, z: x.fmod(1),
    "x // 2": lambda x, z: x // 2,
    "x // -2": lambda x, z: x // -2,
    "relu": lambda x, z: F.relu(x),
    "clamp": lambda x, z: x.clamp(0, 1),
    "leaky_relu": lambda x, z: F.leaky_relu(x),
    "where": lambda x, z: torch.where(x == 0, x, 1.0),
    "sin": lambda x, z: x.sin(),
    "tanh": lambda x, z: x.tanh(),
    "atan": lambda x, z: x.atan(),
    "expm1": lambda x, z: x.expm1(),
    "log1p": lambda x, z: x.log1p(),
    "sum of one": lambda x, z: x[:, None].sum(1),
    "sum": lambda x, z: x[:1].expand(5).sum(),
    "mean": lambda x, z: x[:, None].mean(1),
    "prod": lambda x, z: x[:, None].prod(1),
    "cumsum": lambda x, z: x[:, None].cumsum(1),
    "amax": lambda x, z: x[:, None].amax(1),
    "matmul": lambda x, z: x[:, None] @ torch.ones(1, 1),
    "scatter_add": lambda x, z: torch.zeros(6).scatter_add(0, torch.arange(6), x),
    "index_add": lambda x, z: x.index_add(0, torch.arange(6), z.expand(6)),
}


def test_signs_of_zeros(same):
    x, zero = torch.tensor([-0.0, 0.0, 1.0, -1.0, INF, -INF]), torch.tensor(0.0)

    def signs(x, zero):
        found = {name: function(x, zero) for name, function in SIGNED.items()}
        return found | {f"sign of {n}": torch.signbit(y) & ~y.isnan() for n, y in found.items()}

    same(signs, x, zero, rtol=1e-6, atol=0)


SMALL = {
    "sums": lambda x: (x.sum(), x.sum(-1), x.sum(0, keepdim=True), x.mean(-1), x.prod(0)),
    "logic": lambda x: (x.any(), x.all(), (x > 0).any(-1), (x > 0).all(0)),
    "norms": lambda x: (x.norm(), x.logsumexp(0), F.softmax(x, -1)),
    "scans": lambda x: (x.cumsum(0), x.cumprod(-1), x.cummax(0), x.cummin(-1)),
    "order": lambda x: (x.sort(-1), x.argsort(0), x.flip(0), x.roll(1)),
    "pointwise": lambda x: (x + 1, x.exp(), x > 0, torch.where(x > 0, x, 0), -x, x.clamp(0)),
    "joins": lambda x: (torch.cat([x[None], x[None]]), torch.stack([x, x]), x.repeat(2, 2, 2, 2)),
    "shape": lambda x: (x.reshape(-1) * 1, x[None].transpose(0, -1) * 1, x.expand(2, *x.shape) * 1),
    "casts": lambda x: (x.to(torch.int64), x.to(torch.bool), x.double(), x.bfloat16()),
}


def test_no_elements_or_no_dimensions(same):
    tensors = [torch.ones(shape) for shape in [(), (0,), (1,), (0, 3), (2, 0, 3)]]

    def small(tensors):
        return {name: [function(x) for x in tensors] for name, function in SMALL.items()}

    same(small, tensors)


def test_matrices_without_elements(same):
    def products(a, b, v, n):
        return a @ b, b @ a, torch.addmm(n, a, b), a @ v, v @ v, torch.bmm(a[None], b[None])

    same(products, torch.ones(2, 0), torch.ones(0, 2), torch.ones(0), torch.full((2, 2), NAN) * 0)
