"""Makers of lines that compute: pointwise, reductions, indices, networks, factories."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch

from tests.fuzz.draw import Draw, Unable
from tests.fuzz.views import Maker

LEFT_OUT = ("empty", "rand", "bernoulli", "dropout", "multinomial", "normal_", "resize", "poly")
LEFT_OUT += ("hash",)
"""Operators that draw, or whose values nobody wrote, or that eager loops over for as often as a
number says, be it millions, or that tell a last place from the next; drawing and polynomials have
lines of their own."""


@cache
def _named(kind: str) -> tuple[str, ...]:
    """Return torch's operators of a kind of op_db, as they are written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    kinds = {
        "unary": core.UnaryUfuncInfo,
        "binary": core.BinaryUfuncInfo,
        "reduction": core.ReductionOpInfo,
    }
    names = sorted({op.name for op in op_db if isinstance(op, kinds[kind])})
    return tuple(f"torch.{n}" for n in names if not n.startswith("_") and _kept(n) and _is(n))


def _kept(name: str) -> bool:
    return not any(word in name for word in LEFT_OUT)


def _is(name: str) -> bool:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return callable(found)


COMMON_UNARY = (
    "abs neg sin cos exp tanh sigmoid sqrt rsqrt log1p floor round sign reciprocal square"
)
COMMON_BINARY = "add sub mul div maximum minimum pow remainder fmod floor_divide eq lt ge atan2"
COMMON_REDUCTION = "sum mean amax amin prod any all var std logsumexp count_nonzero"


def _of(d: Draw, kind: str, common: str) -> str:
    if d.flag():
        return f"torch.{d.one(common.split())}"
    return d.one(_named(kind))


def unary(d: Draw) -> str:
    return f"{_of(d, 'unary', COMMON_UNARY)}({d.tensor()})"


def binary(d: Draw) -> str:
    name = _of(d, "binary", COMMON_BINARY)
    left = d.tensor()
    right = d.partner(left) if d.chance(0.7) else d.number(d[left])
    if d.chance(0.05):
        left, right = right, left
    alpha = f", alpha={d.number()}" if name in ("torch.add", "torch.sub") and d.chance(0.2) else ""
    return f"{name}({left}, {right}{alpha})"


def operator(d: Draw) -> str:
    left = d.tensor()
    right = d.partner(left) if d.flag() else d.number(d[left])
    pair = (left, right) if d.chance(0.7) else (right, left)
    sign = d.one(["+", "-", "*", "/", "**", "%", "//", "<", ">", "==", "!=", "&", "|", "^", ">>"])
    return f"{pair[0]} {sign} {pair[1]}"


def ternary(d: Draw) -> str:
    v = d.tensor()
    a, b = d.partner(v), d.partner(v)
    low, high = sorted((d.rng.randint(-3, 2), d.rng.randint(0, 4)))
    return d.one(
        [
            f"torch.where({v} > {d.number(d[v])}, {a}, {b})",
            f"torch.where({v}.bool(), {a}, {d.number(d[a])})",
            f"torch.addcmul({v}, {a}, {b}, value={d.number(d[v])})",
            f"torch.addcdiv({v}, {a}, {b})",
            f"torch.lerp({v}, {a}, {d.one(['0.25', b])})",
            f"torch.clamp({v}, {d.one([low, 'None'])}, {high})",
            f"torch.clamp({v}, min={a})",
            f"{v}.masked_fill({a} > 0, {d.number(d[v])})",
        ]
    )


def reduction(d: Draw) -> str:
    name, v = _of(d, "reduction", COMMON_REDUCTION), d.tensor()
    kind = d.rng.random()
    if kind < 0.3:
        return f"{name}({v})"
    over = d.dim(v) if kind < 0.6 else d.dims(v)
    dtype = f", dtype={d.dtype()}" if name in ("torch.sum", "torch.prod") and d.chance(0.2) else ""
    return f"{name}({v}, dim={over}{', keepdim=True' * d.flag()}{dtype})"


def chosen(d: Draw) -> str:
    """Which of equal elements is meant is left open, so no gradient may tell. Eager reads past
    the end of an expanded tensor here."""
    v = d.tensor(lambda t: not t.requires_grad and 0 not in t.stride())
    dim = d.dim(v)
    how = [f"topk({d.rng.randint(1, 2)}, {dim}, largest={d.flag()})", f"kthvalue(1, {dim})"]
    return f"{v}.{d.one([*how, f'median({dim})'])}[0]"


def ordered(d: Draw) -> str:
    v = d.tensor()
    dim = d.dim(v)
    return d.one(
        [
            f"{v}.sort(dim={dim}, descending={d.flag()}, stable=True)[{d.one([0, 1])}]",
            f"{v}.argsort(dim={dim}, stable=True)",
            f"{v}.{d.one(['max', 'min'])}({dim}, keepdim={d.flag()})[{d.one([0, 1])}]",
            f"{v}.{d.one(['argmax', 'argmin'])}({dim})",
            f"{v}.{d.one(['cumsum', 'cumprod', 'cumsum', 'logcumsumexp'])}({dim})",
            f"{v}.{d.one(['cummax', 'cummin'])}({dim})[{d.one([0, 1])}]",
            f"{v}.diff(dim={dim})",
            f"torch.searchsorted({v}.sort(dim=-1).values, {v})",
            f"torch.bucketize({v}, torch.tensor([-1.0, 0.0, 2.5], device=device))",
            f"torch.nonzero({v})",
            f"torch.unique({v})",
        ]
    )


def indexed(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    size = d.size(v, dim)
    shape = [min(n, 2) for n in d[v].shape]
    first, last = d.places(d.size(v, 0)), d.places(d.size(v, -1))
    pair = d.places(d.size(v, 0), 3), d.places(d.size(v, -1), 3)
    return d.one(
        [
            f"{v}[{first}]",
            f"{v}[..., {last}]",
            f"{v}[{pair[0]}, ..., {pair[1]}]",
            f"{v}[{pair[0]}, {pair[1]}]",
            f"{v}[{v} > {d.number(d[v])}]",
            f"{v}[:, None, {last}]",
            f"{v}.index_select({dim}, {d.grid(size, [d.rng.randint(1, 3)])})",
            f"{v}.gather({dim}, {d.grid(size, shape)})",
            f"torch.take({v}, {d.grid(d[v].numel(), [2, 2])})",
            f"torch.take_along_dim({v}, {d.grid(size, shape)}, {dim})",
            f"{v}.scatter({dim}, {d.grid(size, shape)}, {d.number(d[v])})",
            f"{v}.scatter_add({dim}, {d.grid(size, shape)}, {v})",
            f'{v}.scatter_reduce({dim}, {d.grid(size, shape)}, {v}, "{d.one(REDUCE)}")',
            f"{v}.index_add({dim}, {d.grid(size, [d[v].shape[dim]])}, {v}, alpha={d.number()})",
            f"torch.nn.functional.one_hot({first})",
        ]
    )


REDUCE = ("sum", "prod", "mean", "amax", "amin")


def product(d: Draw) -> str:
    a = d.ranked(1, 3)
    shape, dtype = d[a].shape, d[a].dtype
    fitting: list[str] = []
    for name, other in d.values.items():
        if other.dtype == dtype and other.ndim:
            fitting += [name] * (other.shape[-min(other.ndim, 2)] == shape[-1])
            fitting += [f"{name}.mT"] * (other.ndim > 1 and other.shape[-1] == shape[-1])
    if not fitting:
        raise Unable
    b = d.one(fitting)
    return d.one([f"torch.matmul({a}, {b})", f"{a} @ {b}", f"torch.nn.functional.linear({a}, {a})"])


NORMAL = "softmax log_softmax softmin normalize"
ACTIVATIONS = "relu gelu silu elu leaky_relu softplus hardswish mish selu celu hardtanh glu relu6"
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss kl_div"


def network(d: Draw) -> str:
    v = d.real(1)
    fun = "torch.nn.functional"
    size, dim = d.size(v, -1), d.dim(v)
    weight = f"torch.ones({size}, dtype={d[v].dtype}, device=device)"
    return d.one(
        [
            f"{fun}.{d.one(NORMAL.split())}({v}, dim={dim})",
            f"{fun}.{d.one(ACTIVATIONS.split())}({v})",
            f"{fun}.{d.one(LOSSES.split())}({v}, {v}.flip(0))",
            f"{fun}.layer_norm({v}, ({size},), {d.one(['None', weight])})",
            f"{fun}.rms_norm({v}, ({size},))",
            f"{fun}.{d.one(['max', 'avg'])}_pool1d({v}, 2, ceil_mode={d.flag()})",
            f"{fun}.adaptive_{d.one(['max', 'avg'])}_pool1d({v}, {d.rng.randint(1, 3)})",
            f"{fun}.cross_entropy({v}, {d.grid(size, d[v].shape[:1])})",
            f"{fun}.embedding({d.grid(d.size(v, 0), [2])}, {v})",
            f"{fun}.cosine_similarity({v}, {v}.roll(1, 0), dim={dim})",
        ]
    )


def network_of_images(d: Draw) -> str:
    v = d.real(1, 4)
    fun = "torch.nn.functional"
    lift = d[v].ndim
    image = v + "[None]" * (4 - lift)
    shape = (1,) * (4 - lift) + tuple(d[v].shape)
    if 0 in shape:
        raise Unable
    kernel = (2, shape[1], d.rng.randint(1, 2), d.rng.randint(1, 2))
    count = kernel[0] * kernel[1] * kernel[2] * kernel[3]
    weights = f"torch.arange({count}, dtype={d[v].dtype}, device=device)"
    weights = f"{weights}.reshape({kernel}) * 0.25 - 1"
    stride, pad = d.rng.randint(1, 2), d.rng.randint(0, 1)
    return d.one(
        [
            f"{fun}.conv2d({image}, {weights}, stride={stride}, padding={pad})",
            f"{fun}.conv_transpose2d({image}, ({weights}).transpose(0, 1), stride={stride})",
            f"{fun}.max_pool2d({image}, 2, {stride}, {pad})",
            f"{fun}.avg_pool2d({image}, 2, {stride}, {pad}, count_include_pad={d.flag()})",
            f"{fun}.batch_norm({image}, None, None, training=True)",
            f"{fun}.group_norm({image}, 1)",
            f'{fun}.interpolate({image}, scale_factor=2, mode="{d.one(["nearest", "bilinear"])}")',
            f"{fun}.unfold({image}, 2)",
            f"{fun}.scaled_dot_product_attention({image}, {image}, {image}, is_causal={d.flag()})",
        ]
    )


def factory(d: Draw) -> str:
    v, shape = d.tensor(), d.shape()
    tail = f"dtype={d.dtype()}, device=device"
    start, step = d.rng.randint(-3, 3), d.one([1, 2, 0.5])
    return d.one(
        [
            f"torch.zeros({shape}, {tail})",
            f"torch.ones({shape}, {tail})",
            f"torch.full({shape}, {d.number()}, device=device)",
            f"torch.arange({start}, {start + 4}, {step}, {tail})",
            f"torch.linspace({start}, 2, {d.rng.randint(0, 5)}, device=device)",
            f"torch.eye({d.rng.randint(0, 4)}, {tail})",
            f"torch.full_like({v}, {d.number(d[v])})",
            f"torch.{d.one(['ones', 'zeros'])}_like({v})",
            f"{v}.new_full({shape}, {d.number(d[v])})",
            f"torch.tensor({d.number()}, device=device)",
            f"torch.scalar_tensor({d.number()}, {tail})",
        ]
    )


def polynomial(d: Draw) -> str:
    kind = d.one(["chebyshev_polynomial_t", "hermite_polynomial_h", "laguerre_polynomial_l"])
    v = d.tensor()
    return d.one([f"torch.special.{kind}({v}, {d.rng.randint(0, 4)})", f"torch.polygamma(1, {v})"])


def drawing(d: Draw) -> str:
    v, w = d.real(), d.tensor()
    return d.one(
        [
            f"torch.rand_like({v})",
            f"torch.randn({d.shape()}, device=device)",
            f"torch.randint(-3, 9, {d.shape()}, device=device)",
            f"torch.bernoulli({v}.sigmoid())",
            f"torch.nn.functional.dropout({v}, 0.5)",
            f"torch.randn_like({w})",
        ]
    )


COMPUTE: list[tuple[float, Maker]] = [
    (7.0, unary),
    (8.0, binary),
    (5.0, operator),
    (4.0, ternary),
    (6.0, reduction),
    (4.0, ordered),
    (1.0, chosen),
    (5.0, indexed),
    (3.0, product),
    (3.0, network),
    (1.5, network_of_images),
    (2.0, factory),
    (0.3, drawing),
    (0.5, polynomial),
]
