"""Costs from text against XLA's own analysis of the same module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from torch_galley import hlo
from torch_galley.hlo.cost import cost

_X, _W, _V = jnp.ones((8, 16)), jnp.ones((16, 16)), jnp.ones(16)
_IMAGE, _KERNEL = jnp.ones((2, 4, 9, 7)), jnp.ones((6, 4, 3, 2))
_I, _TABLE = jnp.array([3, 1, 2]), jnp.ones((10, 5))
_HALF = _X.astype(jnp.bfloat16)


def _conv(x, w, **options):
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    return lax.conv_general_dilated(x, w, **options)


def _pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "SAME")


def _attention(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ v


def _cache(cache, new, at):
    """A key-value cache: a part is updated in place, and a part of it read."""
    cache = lax.dynamic_update_slice(cache, jnp.tanh(new), (0, at, 0))
    return cache, lax.dynamic_slice(cache, (0, at, 0), (2, 1, 4)) * 2


def _rng(key):
    return lax.rng_bit_generator(key, (5, 3)), jax.random.normal(jax.random.key(0), (7,))


def _unknown_loop(x):
    return lax.while_loop(lambda x: x.sum() < 100, lambda x: jnp.exp(x) + x @ x, x)


def _nested(x):
    def inner(c, _):
        return lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, c), c.sum()

    return lax.scan(inner, x, None, length=5)


def _called_back(x):
    spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: np.asarray(x) + 1, spec, x * 2) * 3


def _kinds(x):
    half = x.astype(jnp.bfloat16)
    quarter = x.astype(jnp.int4) + jnp.int4(1)
    return half * half, x > 0, quarter, x.astype(jnp.int8) << 1, lax.reduce_precision(x, 5, 3)


def _complex(x):
    z = lax.complex(x, jnp.cos(x))
    return z * z, jnp.abs(z), z.real + z.imag, jnp.conj(z) @ z.T


def _moves(x):
    y = jnp.pad(jnp.concatenate([x, x[::-1]], 1), ((1, 0), (0, 2)))
    return y.T[2:5], y.reshape(-1)[::3], jnp.broadcast_to(x[:, None], (8, 3, 16)), jnp.arange(9)


def _logarithms(x):
    return lax.erf(x) + jnp.log1p(x) + jnp.expm1(x) + lax.rsqrt(x) + x**2.5 + jnp.cbrt(x), jnp.tan(
        x
    )


_PROGRAMS = {
    "arithmetic": (lambda x, v: jnp.clip(-x + v, 0, 1) * x / jnp.maximum(v, 2) % 3, (_X, _V)),
    "logarithms": (_logarithms, (_X,)),
    "inverse functions": (lambda x: jnp.arccosh(x) + jnp.arctan2(x, x) + jnp.sinh(x), (_X,)),
    "complex": (_complex, (_X,)),
    "kinds": (_kinds, (_X,)),
    "bits": (lambda i: (lax.population_count(i), lax.clz(i), i ^ 5, i >> 1), (_I,)),
    "moves": (_moves, (_X,)),
    "dot": (lambda x, w, v: (x @ w, w @ v, jnp.einsum("bi,bj->bij", x, x)), (_X, _W, _V)),
    "half dot": (lambda x: jnp.tanh(x @ x.T), (_HALF,)),
    "integer dot": (lambda x: x @ x.T, (_X.astype(jnp.int32),)),
    "attention": (_attention, (jnp.ones((2, 3, 5, 4)),) * 3),
    "normalised": (
        lambda x, v: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True)) * v,
        (_X, _V),
    ),
    "gradient": (jax.grad(lambda w, x: (jax.nn.softmax(jax.nn.gelu(x @ w)) ** 2).sum()), (_W, _X)),
    "convolution": (_conv, (_IMAGE, _KERNEL)),
    "strides": (lambda x, w: _conv(x, w, window_strides=(2, 3)), (_IMAGE, _KERNEL)),
    "padding": (lambda x, w: _conv(x, w, padding=[(4, 0), (-1, 2)]), (_IMAGE, _KERNEL)),
    "holes": (
        lambda x, w: _conv(
            x,
            w,
            padding=[(1, 2), (0, -1)],
            window_strides=(2, 1),
            lhs_dilation=(3, 2),
            rhs_dilation=(2, 1),
        ),
        (_IMAGE, _KERNEL),
    ),
    "groups": (lambda x, w: _conv(x, w, feature_group_count=2), (_IMAGE, _KERNEL[:, :2])),
    "channels last": (
        lambda x, w: _conv(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (jnp.ones((2, 9, 7, 4)), jnp.ones((3, 2, 4, 6))),
    ),
    "convolution's gradient": (
        jax.grad(lambda w, x: (_conv(jnp.tanh(x), w, window_strides=(2, 1)) ** 2).sum(), (0, 1)),
        (_KERNEL, _IMAGE),
    ),
    "depthwise gradient": (
        jax.grad(lambda w, x: _conv(x, w, feature_group_count=4).sum()),
        (jnp.ones((8, 1, 3, 3)), _IMAGE),
    ),
    "reductions": (lambda x: (x.sum(0), jnp.prod(x), jnp.any(x > 2, 1), x.max(1)), (_X,)),
    "several at once": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x)), (_X,)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), (_X,)),
    "pool": (_pool, (_IMAGE,)),
    "pool's gradient": (jax.grad(lambda x: (_pool(x) ** 2).sum()), (_IMAGE,)),
    "running sums": (lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 0, True)), (_X,)),
    "associative scan": (lambda x: lax.associative_scan(jnp.multiply, x), (_X,)),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x, 0), lax.top_k(x, 3)), (_X,)),
    "gather": (lambda t, i: (t[i] * 2, jnp.take_along_axis(t[:3], i[:, None], 1)), (_TABLE, _I)),
    "scatter": (
        lambda t, i: (t.at[i].add(1.5), t.at[i, 0].set(2), t.at[i].max(t[i])),
        (_TABLE, _I),
    ),
    "embedding's gradient": (jax.grad(lambda t, i: jnp.tanh(t[i]).sum()), (_TABLE, _I)),
    "cache": (_cache, (jnp.ones((2, 12, 4)), jnp.ones((2, 1, 4)), 3)),
    "constant": (lambda x: x * np.linspace(0, 1, 16, dtype=np.float32) + 2, (_X,)),
    "random": (_rng, (jnp.array([1, 2], jnp.uint32).repeat(2),)),
    "fft": (lambda x: (jnp.fft.fft2(x), jnp.fft.rfft(x), jnp.fft.irfft(x[:, :5])), (_X,)),
    "scan": (lambda x, w: lax.scan(lambda c, _: (jnp.tanh(c @ w), c), x, None, 10), (_X, _W)),
    "scan over rows": (lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(16), x), (_X,)),
    "unknown loop": (_unknown_loop, (_W,)),
    "nested loops": (_nested, (_X,)),
    "branches": (
        lambda n, x: lax.switch(n, [lambda x: x * 2, jnp.sin, lambda x: x @ x.T @ x], x),
        (1, _X),
    ),
    "called back": (_called_back, (_X,)),
    "factors": (
        lambda x: (jnp.linalg.cholesky(x), jnp.linalg.qr(x), jnp.linalg.eigh(x)),
        (jnp.eye(4),),
    ),
    "solved": (
        lambda x, y: jax.scipy.linalg.solve_triangular(x, y),
        (jnp.eye(4), jnp.ones((4, 2))),
    ),
    "barrier": (lambda x: lax.optimization_barrier((x + 1, x * 2)), (_X,)),
    "recomputed": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), (_X,)),
    "inner function": (lambda x: jax.jit(jnp.tanh)(x) + jax.jit(jnp.tanh)(x + 1), (_X,)),
    "empty": (lambda x: (x @ x.T, x.sum(0), jnp.sort(x), jnp.concatenate([x, _X])), (_X[:0],)),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_totals_are_those_of_xla(name):
    function, arguments = _PROGRAMS[name]
    lowered = jax.jit(function).lower(*arguments)
    compiled = lowered.compile()
    before = lowered.compiler_ir("hlo").as_hlo_module().to_string()
    analysed = [
        (before, lowered.cost_analysis()),
        (lowered.compiler_ir("hlo").as_hlo_text(), lowered.cost_analysis()),
        (compiled.as_text(), compiled.cost_analysis()),
    ]
    for text, said in analysed:
        found = cost(hlo.parse(text))
        assert found.unknown == ()
        assert (found.flops, found.transcendentals, found.bytes) == tuple(
            said.get(key, 0) for key in ("flops", "transcendentals", "bytes accessed")
        )


def _parsed(name):
    function, arguments = _PROGRAMS[name]
    return hlo.parse(jax.jit(function).lower(*arguments).compile().as_text())


def test_flops_of_what_is_fused_add_up():
    module = _parsed("gradient")
    found = cost(module)
    fusions = [(c.name, i) for c in module.computations for i in c if i.opcode == "fusion"]
    assert fusions
    for computation, fusion in fusions:
        (inside,) = fusion.called
        one = found.instructions[computation, fusion.name]
        parts = [found.instructions[inside, i.name] for i in module[inside]]
        assert one.flops == sum(part.flops for part in parts)
        assert one.transcendentals == sum(part.transcendentals for part in parts)
        assert one.bytes <= sum(part.bytes for part in parts)


def test_loops_by_their_counts():
    found = cost(_parsed("scan"))
    dot, tanh = 2 * 8 * 16 * 16, 8 * 16
    assert found.unknown_loops == ()
    assert dot <= found.flops < 2 * dot
    assert 10 * dot <= found.with_loops.flops < 11 * dot
    assert (found.transcendentals, found.with_loops.transcendentals) == (tanh, 10 * tanh)
    assert cost(_parsed("nested loops")).with_loops.transcendentals == 5 * 3 * tanh


def test_a_loop_of_an_unknown_count_counts_once():
    module = _parsed("unknown loop")
    found = cost(module)
    (loop,) = [one.name for one in module.entry if one.opcode == "while"]
    assert found.unknown_loops == ((module.entry.name, loop),)
    assert found.with_loops == found.total
