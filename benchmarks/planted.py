"""The regions that benchmarks/regions.py times: more than a hundred, of every kind and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[Callable[..., Any], list[torch.Tensor]]
"""A function and its inputs; parameters among them count nothing at a border."""


@dataclass(frozen=True)
class Region:
    """A small program."""

    kind: str
    size: str
    make: Callable[[], Made]

    @property
    def name(self) -> str:
        """Kind and size."""
        return f"{self.kind} {self.size}"


def _p(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * 0.1)


def _chain(length: int) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        for _ in range(length // 2):
            x = torch.maximum(x * 0.9, x)
        return (x,)

    return function


def _steps(step: Callable[[torch.Tensor], torch.Tensor], times: int) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> Any:
        for _ in range(times):
            x = step(x)
        return (x,)

    return function


def _unary(function: Callable[[torch.Tensor], Any], *shape: int, dtype: Any = None) -> Any:
    def make() -> Made:
        return lambda x: (function(x),), [torch.randn(*shape).to(dtype or torch.float32)]

    return make


def _elementwise() -> Iterator[Region]:
    for size in (256, 1 << 14, 1 << 18, 1 << 22):
        for length in (2, 4, 8, 16, 32):
            yield Region(
                "chain", f"{length}x{size}", lambda n=length, s=size: (_chain(n), [torch.randn(s)])
            )
    for size in (256, 1 << 14, 1 << 20):
        for name, step in (("gelu", F.gelu), ("tanh", torch.tanh), ("exp-log", _exp_log)):
            for times in (1, 4):
                yield Region(
                    name,
                    f"{times}x{size}",
                    lambda f=step, t=times, s=size: (_steps(f, t), [torch.randn(s)]),
                )
    for dtype in (torch.bfloat16, torch.int32, torch.float64):
        for size in (1 << 10, 1 << 20):
            yield Region(
                "chain " + str(dtype).removeprefix("torch."),
                f"4x{size}",
                _unary(lambda x: (x * 3 + x) * 2 - x, size, dtype=dtype),
            )
    for size in (1 << 10, 1 << 20):
        yield Region("where", str(size), _unary(lambda x: torch.where(x > 0, x * 2, x - 1), size))


def _exp_log(x: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.exp(-x.abs()) + 1)


def _reductions() -> Iterator[Region]:
    shapes = ((16, 64), (256, 256), (1024, 1024))
    kinds: dict[str, Callable[[torch.Tensor], Any]] = {
        "sum-of-squares": lambda x: (x * x).sum(-1),
        "column-mean": lambda x: (x + 1).mean(0),
        "var": lambda x: (x + 1).var(-1),
        "amax": lambda x: x.abs().amax(-1),
        "softmax": lambda x: (x * 0.5).softmax(-1),
        "log-softmax": lambda x: (x + 1).log_softmax(-1),
        "argmax": lambda x: (x + 1).argmax(-1),
        "cumsum": lambda x: (x + 1).cumsum(-1),
    }
    for kind, function in kinds.items():
        for shape in shapes:
            yield Region(kind, "x".join(map(str, shape)), _unary(function, *shape))

    def norm(rows: int, width: int, kind: str) -> Made:
        if kind == "layer-norm":
            return lambda x, w, b: (F.layer_norm(x, (width,), w, b) + x,), [
                torch.randn(rows, width),
                *(_p(width), _p(width)),
            ]
        return lambda x, w: (x * torch.rsqrt((x * x).mean(-1, True) + 1e-6) * w,), [
            torch.randn(rows, width),
            _p(width),
        ]

    for kind in ("layer-norm", "rms-norm"):
        for rows, width in ((4, 64), (128, 768), (2048, 1024)):
            yield Region(kind, f"{rows}x{width}", lambda r=rows, w=width, k=kind: norm(r, w, k))


def _products() -> Iterator[Region]:
    for n in (16, 64, 256, 1024):
        yield Region("product", str(n), _unary(lambda x: x @ x, n, n))
    for n in (64, 512):
        yield Region(
            "product bfloat16", str(n), _unary(lambda x: x @ x, n, n, dtype=torch.bfloat16)
        )
    for batch, n in ((8, 32), (32, 128)):
        yield Region("batched-product", f"{batch}x{n}", _unary(lambda x: x @ x, batch, n, n))
    sizes = ((1, 16, 32), (8, 64, 64), (32, 256, 256), (128, 768, 3072), (512, 1024, 1024))
    for name, act in (("relu", F.relu), ("gelu", F.gelu)):
        for rows, inside, outside in sizes:

            def linear(r: int = rows, i: int = inside, o: int = outside, act: Any = act) -> Made:
                return lambda x, w, b: (act(F.linear(x, w, b)),), [
                    torch.randn(r, i),
                    *(_p(o, i), _p(o)),
                ]

            yield Region(f"linear-{name}", f"{rows}x{inside}x{outside}", linear)
    for rows, width in ((1, 32), (32, 256), (256, 512)):

        def mlp(r: int = rows, w: int = width) -> Made:
            return lambda x, a, b, c: (F.relu(F.relu(x @ a) @ b) @ c,), [
                torch.randn(r, w),
                *(_p(w, w) for _ in range(3)),
            ]

        yield Region("mlp", f"{rows}x{width}", mlp)


def _convolutions() -> Iterator[Region]:
    sizes = (
        ("3x3", 1, 3, 16, 32, 3, 1),
        ("3x3", 4, 64, 64, 28, 3, 1),
        ("3x3", 1, 128, 128, 14, 3, 1),
        ("1x1", 4, 64, 128, 28, 1, 1),
        ("7x7", 1, 3, 32, 112, 7, 1),
        ("depthwise", 4, 64, 64, 28, 3, 64),
        ("depthwise", 1, 16, 16, 14, 3, 16),
    )
    for name, batch, inside, outside, side, kernel, groups in sizes:

        def conv(
            b: int = batch, i: int = inside, o: int = outside, s: int = side, k: int = kernel,
            g: int = groups,
        ) -> Made:  # fmt: skip
            def function(x: Any, w: Any, m: Any, v: Any, a: Any, c: Any) -> Any:
                y = F.conv2d(x, w, padding=k // 2, groups=g)
                normed = torch.ops.aten._native_batch_norm_legit_no_training
                return (F.relu(normed(y, a, c, m, v, 0.1, 1e-5)[0]),)

            norm = [torch.zeros(o), torch.ones(o), _p(o), _p(o)]
            return function, [torch.randn(b, i, s, s), _p(o, i // g, k, k), *norm]

        yield Region(f"conv-{name}", f"{batch}x{inside}x{side}", conv)
    for side in (16, 112):
        yield Region("max-pool", str(side), _unary(lambda x: F.max_pool2d(x, 2), 4, 16, side, side))
        yield Region("avg-pool", str(side), _unary(lambda x: F.avg_pool2d(x, 2), 4, 16, side, side))


def _indexed() -> Iterator[Region]:
    for rows, width, count in ((100, 16, 8), (5000, 256, 512), (50_000, 64, 8192)):

        def embed(r: int = rows, w: int = width, c: int = count) -> Made:
            places = torch.randint(r, (c,))
            return lambda t, i: (F.embedding(i, t) * 2,), [_p(r, w), places]

        def add(r: int = rows, w: int = width, c: int = count) -> Made:
            inputs = [torch.zeros(r, w), torch.randint(r, (c,)), torch.randn(c, w)]
            return lambda t, i, v: (t.index_add(0, i, v),), inputs

        def gather(r: int = rows, w: int = width, c: int = count) -> Made:
            inputs = [torch.randn(c, w), torch.randint(w, (c, 4))]
            return lambda x, i: (x.gather(1, i) + 1,), inputs

        size = f"{rows}x{width}x{count}"
        yield Region("embedding", size, embed)
        yield Region("index-add", size, add)
        yield Region("gather", size, gather)
    for shape in ((4, 32), (64, 1024)):
        size = "x".join(map(str, shape))
        yield Region("sort", size, _unary(lambda x: (x + 1).sort(-1)[0], *shape))
        yield Region("topk", size, _unary(lambda x: (x + 1).topk(4)[0], *shape))
        yield Region("transpose-add", size, _unary(lambda x: x.t().contiguous() + 1, *shape))
        yield Region("cat", size, _unary(lambda x: torch.cat([x, x * 2, x + 1], 1), *shape))
        yield Region("slices", size, _unary(lambda x: x[:, ::2] * x[:, 1::2], *shape))


def _mixed() -> Iterator[Region]:
    for batch, heads, length, width in ((1, 2, 16, 16), (2, 8, 128, 64), (1, 12, 512, 64)):

        def attention(b: int = batch, h: int = heads, n: int = length, w: int = width) -> Made:
            def function(q: Any, k: Any, v: Any) -> Any:
                return ((q @ k.transpose(-1, -2) * w**-0.5).softmax(-1) @ v,)

            return function, [torch.randn(b, h, n, w) for _ in range(3)]

        yield Region("attention", f"{batch}x{heads}x{length}x{width}", attention)
    for rows, width in ((16, 32), (128, 256)):

        def block(r: int = rows, w: int = width) -> Made:
            def function(x: Any, a: Any, b: Any, g: Any, s: Any) -> Any:
                y = F.layer_norm(x, (w,), g, s)
                return (x + F.gelu(y @ a) @ b,)

            return function, [torch.randn(r, w), _p(w, 4 * w), _p(4 * w, w), _p(w), _p(w)]

        yield Region("transformer-mlp", f"{rows}x{width}", block)
    for width in (32, 512):

        def cell(w: int = width) -> Made:
            def function(x: Any, h: Any, c: Any, a: Any, b: Any) -> Any:
                i, f, g, o = (x @ a + h @ b).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                return (o.sigmoid() * c.tanh(), c)

            states = [torch.randn(8, w) for _ in range(3)]
            return function, [*states, _p(w, 4 * w), _p(w, 4 * w)]

        yield Region("lstm-cell", str(width), cell)
    for count, size in ((4, 64), (16, 64), (16, 1 << 16)):

        def adam(c: int = count, s: int = size) -> Made:
            def function(*tensors: Any) -> Any:
                out = []
                for p, g, m, v in zip(*(tensors[i::4] for i in range(4)), strict=True):
                    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
                    out += [p - 1e-3 * m / (v.sqrt() + 1e-8), m, v]
                return tuple(out)

            return function, [torch.rand(s) for _ in range(4 * c)]

        yield Region("adam", f"{count}x{size}", adam)
    for classes, rows in ((10, 32), (5000, 256)):

        def loss(c: int = classes, r: int = rows) -> Made:
            inputs = [torch.randn(r, c), torch.randint(c, (r,))]
            return lambda x, t: (F.cross_entropy(x, t),), inputs

        yield Region("cross-entropy", f"{rows}x{classes}", loss)


REGIONS: tuple[Region, ...] = (
    *_elementwise(),
    *_reductions(),
    *_products(),
    *_convolutions(),
    *_indexed(),
    *_mixed(),
)
"""All of them, each of another name."""
