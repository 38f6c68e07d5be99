"""Random numbers: torch's distributions from a seed and the number of the draw; see ops.draw.

Bits are threefry's (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the word
at each place is a function of key and place, so XLA may compute them in any order and in parts.
Uniform numbers have as many digits as eager's: 24 in float32, 53 in float64, 11 and 8 in the half
types, so that none is rounded up to 1.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (numpy then knows bfloat16)
import numpy as np
import torch
from jax import lax

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.check import require
from torch_galley.ops.draw import STRIDE
from torch_galley.ops.half import wide, wide_dtype
from torch_galley.ops.registry import lowers, rows

galley = torch.ops.galley

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_PART = {"complex64": "float32", "complex128": "float64"}


def _key(seed, draw):
    """Return the key of a draw: jax's for the 64 bits of seed + draw * STRIDE."""
    number = seed.astype(jnp.uint64) + jnp.uint64(draw * STRIDE % 2**64)
    words = jnp.stack([number >> 32, number & 0xFFFFFFFF]).astype(jnp.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _bits(key, shape, width=32):
    with jax.threefry_partitionable(True):  # whatever the user's own jax code has set
        return jax.random.bits(key, tuple(shape), f"uint{width}")


def _dtype(dtype) -> str:
    return XLA_DTYPE[dtype] if dtype else XLA_DTYPE[torch.get_default_dtype()]


def _unit(key, shape, dtype):
    """Return numbers of [0, 1), each as likely, in the dtype that `dtype` is computed in."""
    if dtype in _PART:
        parts = _unit(key, (*shape, 2), _PART[dtype])
        return lax.complex(parts[..., 0], parts[..., 1])
    digits, width = _DIGITS[dtype], 64 if dtype == "float64" else 32
    whole = (_bits(key, shape, width) >> (width - digits)).astype(f"int{width}")
    return whole.astype(wide_dtype(jnp.dtype(dtype))) * 2.0**-digits


def _positive(key, shape, dtype):
    """Return numbers of (0, 1]."""
    return 1 - _unit(key, shape, "float64" if dtype == "float64" else "float32")


def _gauss(key, shape, dtype):
    """Return normal numbers of variance 1; of complex ones the parts share it."""
    if dtype in _PART:
        parts = _gauss(key, (*shape, 2), _PART[dtype]) * np.sqrt(0.5)
        return lax.complex(parts[..., 0], parts[..., 1])
    with jax.threefry_partitionable(True):
        return jax.random.normal(key, tuple(shape), wide_dtype(jnp.dtype(dtype)))


def _whole(key, shape, low: int, high: int, dtype):
    """Return whole numbers from low to high, both included, each as likely."""
    span = high - low + 1
    bits = _bits(key, shape, 64)
    offset = bits if span == 2**64 else bits % jnp.uint64(span)
    return (offset + jnp.uint64(low % 2**64)).astype(jnp.int64).astype(dtype)


def _fill(value, like):
    return value.astype(like.dtype)


# Factories, and what is filled, uniformly.


def _made(numbers, seed, draw, size, *, dtype=None, **unused):
    """Make a tensor of a size."""
    dtype = _dtype(dtype)
    return numbers(_key(seed, draw), size, dtype).astype(dtype)


def _made_like(numbers, seed, draw, self, *, dtype=None, **unused):
    """Make a tensor of another's size."""
    dtype = XLA_DTYPE[dtype] if dtype else self.dtype.name
    return numbers(_key(seed, draw), self.shape, dtype).astype(dtype)


rows(
    (galley.rand.default, partial(_made, _unit)),
    (galley.rand_like.default, partial(_made_like, _unit)),
    (galley.randn.default, partial(_made, _gauss)),
    (galley.randn_like.default, partial(_made_like, _gauss)),
)


@lowers(galley.uniform.default)
def uniform(seed, draw, self, from_=0.0, to=1.0):
    unit = _unit(_key(seed, draw), self.shape, self.dtype.name)
    if self.dtype.name in _PART:  # both parts are of [from, to)
        return _fill(unit * (to - from_) + (1 + 1j) * from_, self)
    return _fill(unit * (to - from_) + from_, self)


# Normal, and what is made of it.


@lowers(galley.normal_functional.default)
def normal_functional(seed, draw, self, mean=0.0, std=1.0):
    return _normal(seed, draw, self.shape, mean, std, self.dtype.name)


@lowers(galley.normal.float_float)
def normal(seed, draw, mean, std, size, *, dtype=None, **unused):
    return _normal(seed, draw, size, mean, std, _dtype(dtype))


def _normal(seed, draw, shape, mean, std, dtype):
    if dtype in _PART:
        mean = mean * (1 + 1j)  # of both parts
    return (_gauss(_key(seed, draw), shape, dtype) * std + mean).astype(dtype)


@lowers(galley.normal.Tensor_float)
def normal_around(seed, draw, mean, std=1.0):
    return _fill(_gauss(_key(seed, draw), mean.shape, mean.dtype.name) * std + wide(mean), mean)


@lowers(galley.normal.float_Tensor)
def normal_of_width(seed, draw, mean, std):
    _require_width(std)
    return _fill(_gauss(_key(seed, draw), std.shape, std.dtype.name) * wide(std) + mean, std)


@lowers(galley.normal.Tensor_Tensor)
def normal_of_both(seed, draw, mean, std):
    _require_width(std)
    shape = jnp.broadcast_shapes(mean.shape, std.shape)
    gauss = _gauss(_key(seed, draw), shape, mean.dtype.name)
    return _fill(gauss * wide(std) + wide(mean), mean)


def _require_width(std):
    good = std >= 0
    require(good, good, RuntimeError, "normal expects all elements of std >= 0.0")


@lowers(galley.log_normal.default)
def log_normal(seed, draw, self, mean=1.0, std=2.0):
    gauss = _gauss(_key(seed, draw), self.shape, self.dtype.name)
    return _fill(jnp.exp(gauss * std + mean), self)


# By the inverse of the distribution function.


@lowers(galley.exponential.default)
def exponential(seed, draw, self, lambd=1.0):
    return _fill(_exponential(_key(seed, draw), self.shape, self.dtype.name) / lambd, self)


def _exponential(key, shape, dtype):
    """Return exponential numbers, none of which is zero."""
    positive = _positive(key, shape, dtype)
    return jnp.where(positive == 1, jnp.finfo(positive.dtype).eps / 2, -jnp.log(positive))


@lowers(galley.cauchy.default)
def cauchy(seed, draw, self, median=0.0, sigma=1.0):
    # In float64 as eager does: the tails are what this distribution is for.
    turn = _unit(_key(seed, draw), self.shape, "float64") - 0.5
    return _fill(median + sigma * jnp.tan(np.pi * turn), self)


@lowers(galley.geometric.default)
def geometric(seed, draw, self, p):
    positive = _positive(_key(seed, draw), self.shape, "float64")
    return _fill(jnp.maximum(jnp.ceil(jnp.log(positive) / np.log1p(-p)), 1), self)


# Whole numbers.


@lowers(galley.randint.default)
def randint(seed, draw, high, size, *, dtype=torch.int64, **unused):
    return _range(seed, draw, size, 0, high, XLA_DTYPE[dtype])


@lowers(galley.randint.low)
def randint_from(seed, draw, low, high, size, *, dtype=torch.int64, **unused):
    return _range(seed, draw, size, low, high, XLA_DTYPE[dtype or torch.int64])


@lowers(galley.randint_like.default)
def randint_like(seed, draw, self, high, *, dtype=None, **unused):
    return _range(seed, draw, self.shape, 0, high, XLA_DTYPE[dtype] if dtype else self.dtype.name)


@lowers(galley.randint_like.low_dtype)
def randint_like_from(seed, draw, self, low, high, *, dtype=None, **unused):
    return _range(seed, draw, self.shape, low, high, XLA_DTYPE[dtype] if dtype else self.dtype.name)


@lowers(galley.random.to)
def random_to(seed, draw, self, to):
    return _range(seed, draw, self.shape, 0, to, self.dtype.name)


@lowers(galley.random.from_)
def random_from(seed, draw, self, from_, to):
    name = self.dtype.name
    if to is None:
        top = 2 ** _DIGITS[name] if name in _DIGITS else _top(name)
        return _whole(_key(seed, draw), self.shape, from_, top, name)
    return _range(seed, draw, self.shape, from_, to, name)


@lowers(galley.random.default)
def random(seed, draw, self):
    name = self.dtype.name
    top = 2 ** _DIGITS[name] if name in _DIGITS else _top(name)
    return _whole(_key(seed, draw), self.shape, 0, top, name)


def _top(dtype: str) -> int:
    return 1 if dtype == "bool" else int(jnp.iinfo(dtype).max)


def _range(seed, draw, size, low: int, high: int, dtype: str):
    """Return whole numbers of [low, high), of a float dtype only those that aren't rounded out."""
    last = high - 1
    if dtype in _DIGITS:
        low, last = _rounds_in(low, dtype, 1), _rounds_in(last, dtype, -1)
    return _whole(_key(seed, draw), size, low, last, dtype)


def _rounds_in(bound: int, dtype: str, inwards: int) -> int:
    """Return the whole number nearest to a bound that a float dtype doesn't round beyond it."""
    rounded = int(np.asarray(bound, np.float64).astype(jnp.dtype(dtype)).astype(np.float64))
    if (bound - rounded) * inwards <= 0:
        return bound
    return bound + inwards * (1 << (abs(bound).bit_length() - _DIGITS[dtype]))


@lowers(galley.randperm.default)
def randperm(seed, draw, n, *, dtype=torch.int64, **unused):
    order = jnp.argsort(_bits(_key(seed, draw), (n,), 64))
    return order.astype(XLA_DTYPE[dtype or torch.int64])


# Choices.


@lowers(galley.bernoulli.p)
def bernoulli(seed, draw, self, p):
    if p >= 1:
        return jnp.ones_like(self)
    return _fill(_bits(_key(seed, draw), self.shape) < jnp.uint32(p * 2**32), self)


@lowers(galley.bernoulli.default)
def bernoulli_of(seed, draw, self):
    return _fill(_chosen(seed, draw, self, self.shape), self)


@lowers(galley.bernoulli.Tensor)
def bernoulli_like(seed, draw, self, p):
    return _fill(_chosen(seed, draw, p, self.shape), self)


def _chosen(seed, draw, p, shape):
    good = (p >= 0) & (p <= 1)
    require(good, good, RuntimeError, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    unit = _bits(_key(seed, draw), shape).astype(jnp.float64) * 2.0**-32
    return unit < p.astype(jnp.float64)


@lowers(galley.multinomial.default)
def multinomial(seed, draw, self, num_samples, replacement=False):
    weights = self.astype(jnp.float64)
    good = jnp.isfinite(weights) & (weights >= 0)
    message = "probability tensor contains either `inf`, `nan` or element < 0"
    require(good, good, RuntimeError, message)
    total = weights.sum(-1, keepdims=True)
    message = "invalid multinomial distribution (sum of probabilities <= 0)"
    require(total != 0, total != 0, RuntimeError, message)
    key = _key(seed, draw)
    if not replacement or num_samples == 1:  # a race: who comes first, second, ...
        arrivals = _exponential(key, weights.shape, "float64") / weights
        return jnp.argsort(arrivals, -1)[..., :num_samples].astype(jnp.int64)
    ends = jnp.cumsum(weights, -1)
    place = _unit(key, (*weights.shape[:-1], num_samples), "float64") * ends[..., -1:]
    found = jnp.vectorize(_search, signature="(n),(m)->(m)")(ends, place)
    # A place may be rounded up to the end; what stands last may have no weight.
    last = weights.shape[-1] - 1 - jnp.argmax(weights[..., ::-1] > 0, -1, keepdims=True)
    return jnp.minimum(found, last).astype(jnp.int64)


def _search(ends, place):
    return jnp.searchsorted(ends, place, side="right")


# By rejection: jax's own algorithms, which are given only what they end for. What eager makes of
# other parameters is put in its place.


@lowers(galley.poisson.default)
def poisson(seed, draw, self):
    good = self >= 0
    message = "invalid Poisson rate, expected rate to be non-negative"
    require(good, good, RuntimeError, message)
    rate = wide(self)
    small = good & (rate < 2.0**63)
    with jax.threefry_partitionable(True):
        found = jax.random.poisson(_key(seed, draw), jnp.where(small, rate, 0), dtype=jnp.int64)
    return _fill(jnp.where(small, found, jnp.iinfo(jnp.int64).min), self)


@lowers(galley.binomial.default)
def binomial(seed, draw, count, prob):
    drawn = (count > 0) & jnp.isfinite(count) & (prob > 0) & (prob < 1)
    known = jnp.where(jnp.isnan(count) | jnp.isnan(prob), jnp.nan, count)
    known = jnp.where((count <= 0) | (prob <= 0), 0, known)
    with jax.threefry_partitionable(True):
        found = jax.random.binomial(
            _key(seed, draw),
            jnp.where(drawn, jnp.floor(count), 1),
            jnp.where(drawn, prob, 0.5),
            dtype=count.dtype,
        )
    found += jnp.where(prob > 0.5, count - jnp.floor(count), 0)  # eager counts down from there
    return jnp.where(drawn, found, known).astype(count.dtype)


@lowers(galley._standard_gamma.default)
def standard_gamma(seed, draw, self):
    key = _key(seed, draw)
    alpha, logs = _lifted(key, self)
    with jax.threefry_partitionable(True):
        found = jax.random.gamma(key, alpha, dtype=self.dtype)
    tiny = jnp.finfo(self.dtype).tiny
    return jnp.where(alpha > 0, jnp.maximum(found * jnp.exp(logs), tiny), tiny).astype(self.dtype)


@lowers(galley._sample_dirichlet.default)
def sample_dirichlet(seed, draw, self):
    key, info = _key(seed, draw), jnp.finfo(self.dtype)
    alpha, lift = _lifted(key, self)
    with jax.threefry_partitionable(True):  # logarithms: small parameters make tiny numbers
        logs = jax.random.loggamma(key, jnp.where(alpha > 0, alpha, 1), dtype=self.dtype)
    logs = jnp.where(alpha > 0, logs + lift, np.log(float(info.tiny)))
    found = jnp.clip(jax.nn.softmax(logs, -1), info.tiny, 1 - info.epsneg)
    return jnp.where(jnp.isnan(found), info.tiny, found).astype(self.dtype)  # infinite parameters


def _lifted(key, alpha):
    """Return parameters of gamma that can be drawn, and logarithms of what to multiply by.

    Eager draws those below 1 by Gamma(a) = Gamma(a + 1) * U^(1/a), and some below 0, too: up to
    where a + 1 is no parameter of its algorithm. From there on, and for NaN, 0 is returned.
    """
    below = (alpha < 0) & (alpha > -2 / 3)
    unit = _positive(jax.random.fold_in(key, 1), alpha.shape, alpha.dtype.name)
    logs = jnp.where(below, jnp.log(unit) / jnp.where(below, alpha, 1), 0)
    return jnp.where(below, alpha + 1, jnp.where(alpha > 0, alpha, 0)), logs.astype(alpha.dtype)


# Activations that draw.


@lowers(galley.rrelu_with_noise_functional.default)
def rrelu_with_noise(seed, draw, self, noise, lower=0.125, upper=1 / 3, training=False):
    if not training:
        slope = (lower + upper) / 2
        return jnp.where(self > 0, wide(self), wide(self) * slope).astype(self.dtype), noise
    slope = _unit(_key(seed, draw), self.shape, self.dtype.name) * (upper - lower) + lower
    slope = jnp.where(self > 0, 1, _fill(slope, self))
    return (wide(self) * wide(slope)).astype(self.dtype), _fill(slope, noise)
