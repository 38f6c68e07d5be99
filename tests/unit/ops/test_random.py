"""What XLA draws: each distribution against its own, and no two draws alike."""

from __future__ import annotations

import itertools
import keyword

import numpy as np
import pytest
import torch
from scipy import stats

import torch_galley
from torch_galley.ops import draw
from torch_galley.ops.registry import lookup
from torch_galley.run.draw import run

galley = torch.ops.galley
SIZE = 20_000
X = torch.empty(SIZE)
LONG = torch.empty(SIZE, dtype=torch.int64)
WEIGHTS = [1.0, 2.0, 0.0, 5.0]


def filled(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((SIZE,), value, dtype=dtype)


def discrete(low, high):
    return stats.randint(low, high)


FROM = galley.random.from_
CASES = {
    "rand": (galley.rand.default, ([SIZE],), stats.uniform()),
    "rand_like": (galley.rand_like.default, (X,), stats.uniform()),
    "uniform": (galley.uniform.default, (X, -2.0, 3.0), stats.uniform(-2, 5)),
    "uniform, double": (galley.uniform.default, (X.double(), 2.0, 3.0), stats.uniform(2, 1)),
    "randn": (galley.randn.default, ([SIZE],), stats.norm()),
    "randn_like": (galley.randn_like.default, (X,), stats.norm()),
    "normal_functional": (galley.normal_functional.default, (X, 2.0, 3.0), stats.norm(2, 3)),
    "normal": (galley.normal.float_float, (2.0, 3.0, [SIZE]), stats.norm(2, 3)),
    "normal, mean": (galley.normal.Tensor_float, (filled(2), 3.0), stats.norm(2, 3)),
    "normal, std": (galley.normal.float_Tensor, (2.0, filled(3)), stats.norm(2, 3)),
    "normal, both": (galley.normal.Tensor_Tensor, (filled(2), filled(3)), stats.norm(2, 3)),
    "log_normal": (galley.log_normal.default, (X, 0.5, 0.7), stats.lognorm(0.7, 0, np.exp(0.5))),
    "exponential": (galley.exponential.default, (X, 3.0), stats.expon(0, 1 / 3)),
    "cauchy": (galley.cauchy.default, (X, 1.0, 2.0), stats.cauchy(1, 2)),
    "geometric": (galley.geometric.default, (LONG, 0.3), stats.geom(0.3)),
    "randint": (galley.randint.default, (9, [SIZE]), discrete(0, 9)),
    "randint, low": (galley.randint.low, (-3, 9, [SIZE]), discrete(-3, 9)),
    "randint_like": (galley.randint_like.default, (LONG, 9), discrete(0, 9)),
    "randint_like, low": (galley.randint_like.low_dtype, (X, -3, 9), discrete(-3, 9)),
    "random": (galley.random.default, (X,), stats.uniform(0, 2**24)),
    "random, int64": (galley.random.default, (LONG,), stats.uniform(0, 2.0**63)),
    "random, bool": (galley.random.default, (LONG.bool(),), discrete(0, 2)),
    "random to": (galley.random.to, (X, 9), discrete(0, 9)),
    "random from": (FROM, (LONG, -3, 9), discrete(-3, 9)),
    "random from, open": (FROM, (LONG, -(2**63), None), stats.uniform(-(2.0**63), 2.0**64)),
    "bernoulli": (galley.bernoulli.p, (X, 0.3), stats.bernoulli(0.3)),
    "bernoulli, its own": (galley.bernoulli.default, (filled(0.3),), stats.bernoulli(0.3)),
    "bernoulli, tensor": (galley.bernoulli.Tensor, (X, filled(0.3)), stats.bernoulli(0.3)),
    "multinomial": (
        galley.multinomial.default,
        (torch.tensor(WEIGHTS), SIZE, True),
        stats.rv_discrete(values=(range(4), np.divide(WEIGHTS, 8))),
    ),
    "multinomial, one": (
        galley.multinomial.default,
        (torch.tensor(WEIGHTS).expand(SIZE, 4), 1),
        stats.rv_discrete(values=(range(4), np.divide(WEIGHTS, 8))),
    ),
    "poisson": (galley.poisson.default, (filled(3),), stats.poisson(3)),
    "poisson, large": (galley.poisson.default, (filled(60),), stats.poisson(60)),
    "binomial": (galley.binomial.default, (filled(9), filled(0.3)), stats.binom(9, 0.3)),
    "binomial, large": (galley.binomial.default, (filled(90), filled(0.7)), stats.binom(90, 0.7)),
    "gamma": (galley._standard_gamma.default, (filled(2),), stats.gamma(2)),
    "gamma, small": (
        galley._standard_gamma.default,
        (filled(0.1, torch.float64),),
        stats.gamma(0.1),
    ),
    "dirichlet": (
        galley._sample_dirichlet.default,
        (torch.tensor([0.5, 1.5]).expand(SIZE, 2),),
        stats.beta(0.5, 1.5),
    ),
}
"""The operator, its arguments, and the distribution of what it draws."""


def drawn(op, args, seed: int = 0, number: int = 0) -> np.ndarray:
    """Return an operator's numbers, in one dimension; the first of each row."""
    kwargs = {"dtype": torch.float32} if op in (galley.rand.default, galley.randn.default) else {}
    found = op(torch.tensor(seed), number, *args, **kwargs)
    return (found[..., 0] if found.dim() > 1 else found).double().numpy()


def fits(sample: np.ndarray, law) -> float:
    """Return how likely a sample is that is no nearer to a distribution."""
    if not hasattr(law, "pmf") and not hasattr(getattr(law, "dist", None), "pmf"):
        return stats.kstest(sample, law.cdf).pvalue
    values = np.arange(sample.min() - 1, sample.max() + 2)
    expected = np.diff(law.cdf(values), prepend=0.0, append=1.0) * sample.size
    counts = np.append(np.searchsorted(np.sort(sample), values, "right"), sample.size)
    counts = np.diff(counts, prepend=0)
    usual = expected >= 5
    assert counts[expected == 0].sum() == 0, "what can't be was drawn"
    rest = expected[~usual].sum(), counts[~usual].sum()
    wanted, got = np.append(expected[usual], rest[0]), np.append(counts[usual], rest[1])
    some = wanted > 0
    return stats.chisquare(got[some], wanted[some] * got.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("name", CASES)
def test_distribution(name):
    op, args, law = CASES[name]
    assert fits(drawn(op, args), law) > 1e-3


def test_every_operator_is_tested():
    apart = {galley.randperm.default, galley.rrelu_with_noise_functional.default}
    lowered = {own for own in draw._OWN.values() if lookup(own) is not None}
    assert lowered == {op for op, *_ in CASES.values()} | apart


@pytest.mark.parametrize(
    ("op", "args", "law"),
    [
        (galley.uniform.default, (X, -2.0, 3.1), stats.uniform(-2, 5)),
        (galley.randn.default, ([SIZE],), stats.norm(0, 1.05)),
        (galley.exponential.default, (X, 3.0), stats.expon(0, 1 / 3.2)),
        (galley.cauchy.default, (X, 1.0, 2.0), stats.cauchy(1, 2.2)),
        (galley.bernoulli.p, (X, 0.3), stats.bernoulli(0.32)),
        (galley.randint.default, (9, [SIZE]), discrete(0, 10)),
        (galley.poisson.default, (filled(3),), stats.poisson(3.1)),
        (galley._standard_gamma.default, (filled(2),), stats.gamma(2.1)),
    ],
    ids=lambda one: str(one) if isinstance(one, torch._ops.OpOverload) else None,
)
def test_another_parameter_does_not_fit(op, args, law):
    assert fits(drawn(op, args), law) < 1e-3


def test_multinomial_without_replacement():
    pairs = galley.multinomial.default(torch.tensor(0), 0, torch.tensor(WEIGHTS).expand(SIZE, 4), 2)
    p = np.divide(WEIGHTS, 8)
    wanted = {(i, j): p[i] * p[j] / (1 - p[i]) for i in (0, 1, 3) for j in (0, 1, 3) if i != j}
    counts = [int((pairs == torch.tensor(pair)).all(-1).sum()) for pair in wanted]
    assert sum(counts) == SIZE
    assert stats.chisquare(counts, np.multiply(list(wanted.values()), SIZE)).pvalue > 1e-3


def test_randperm():
    found = [galley.randperm.default(torch.tensor(seed), 0, 4).tolist() for seed in range(600)]
    orders = [list(order) for order in itertools.permutations(range(4))]
    assert stats.chisquare([found.count(order) for order in orders]).pvalue > 1e-3


def test_rrelu():
    x = torch.where(torch.arange(SIZE) % 2 == 0, -2.0, 3.0)
    op = galley.rrelu_with_noise_functional.default
    result, noise = op(torch.tensor(0), 0, x, torch.empty(SIZE), 0.1, 0.4, True)
    assert torch.equal(result, x * noise)
    assert (noise[1::2] == 1).all()
    assert stats.kstest(noise[::2].numpy(), stats.uniform(0.1, 0.3).cdf).pvalue > 1e-3
    result, noise = op(torch.tensor(0), 0, x, torch.ones(SIZE), 0.1, 0.4, False)
    torch.testing.assert_close(result, torch.nn.functional.rrelu(x, 0.1, 0.4))


STEPS = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2**40, 0), (-1, 0), (2**63 - 1, 5)]


@pytest.mark.parametrize("op", [galley.rand.default, galley.randn.default])
def test_draws_and_seeds_have_nothing_to_do_with_each_other(op):
    """Neither in their first moments nor in their second ones, in place or one place on."""
    samples = np.stack([drawn(op, ([SIZE],), *step) for step in STEPS])
    assert np.unique(samples).size > samples.size * 0.99  # of 24 binary digits some come twice
    moved = np.roll(samples, 1, axis=1)
    for power in (1, 2):
        among = np.corrcoef(np.concatenate([samples, moved]) ** power)
        np.fill_diagonal(among, 0)
        assert abs(among).max() < 4.5 / SIZE**0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ranges(dtype):
    like, seed = torch.empty(300_000, dtype=dtype), torch.tensor(3)
    unit = galley.uniform.default(seed, 0, like)
    assert unit.min() >= 0
    assert unit.max() < 1
    assert unit.dtype is dtype
    assert galley.exponential.default(seed, 1, like).min() > 0
    assert galley.geometric.default(seed, 2, like, 0.9).min() == 1
    limit = {torch.float16: 5000, torch.bfloat16: 300}.get(dtype, 2**24 - 1)
    assert galley.random.to(seed, 3, like, limit).max() < limit
    assert (galley.bernoulli.p(seed, 4, like, 1.0) == 1).all()
    assert (galley.bernoulli.p(seed, 5, like, 0.0) == 0).all()
    assert (galley.bernoulli.default(seed, 6, torch.ones_like(like)) == 1).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(dtype):
    like, seed = torch.empty(SIZE, dtype=dtype), torch.tensor(3)
    for op, args in [
        (galley.uniform.default, (1.0, 3.0)),
        (galley.normal_functional.default, (2.0, 3.0)),
    ]:
        ours = torch.view_as_real(op(seed, 0, like, *args))
        theirs = torch.view_as_real(draw.of_torch(op)(like, *args))
        for part in (0, 1):
            assert stats.ks_2samp(ours[:, part], theirs[:, part]).pvalue > 1e-3
        assert abs(np.corrcoef(ours.T)[0, 1]) < 4.5 / SIZE**0.5


ERRORS = {
    "bernoulli": (galley.bernoulli.default, (torch.tensor([0.5, 1.5]),)),
    "bernoulli, tensor": (galley.bernoulli.Tensor, (torch.ones(1), torch.tensor([-0.1]))),
    "normal": (galley.normal.float_Tensor, (0.0, torch.tensor([1.0, -1.0]))),
    "normal, both": (galley.normal.Tensor_Tensor, (torch.zeros(2), torch.tensor([1.0, -1.0]))),
    "multinomial": (galley.multinomial.default, (torch.tensor([-1.0, 1.0]), 1)),
    "multinomial, nothing": (galley.multinomial.default, (torch.zeros(3), 2, True)),
    "multinomial, infinite": (galley.multinomial.default, (torch.tensor([np.inf, 1.0]), 1)),
    "poisson": (galley.poisson.default, (torch.tensor([-1.0]),)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_eager_refuses(name):
    op, args = ERRORS[name]
    with pytest.raises(RuntimeError):
        draw.of_torch(op)(*args)
    with pytest.raises(RuntimeError, match=op._schema.name.rpartition("::")[2].split("_")[0]):
        op(torch.tensor(0), 0, *args)
    with torch_galley.config(check_indices=False):
        op(torch.tensor(0), 0, *args)


NAN, INF = np.nan, np.inf
UNUSUAL = {
    "poisson": (galley.poisson.default, [[0.0, -0.0, INF, 1e30]]),
    "binomial": (
        galley.binomial.default,
        [
            [-1.0, -1.0, -1.0, 0.0, 2.0, 2.0, 2.5, 2.0, NAN, INF, INF, NAN, INF, NAN],
            [0.5, NAN, -1.0, NAN, -1.0, 1.0, 2.0, NAN, 0.0, 0.0, 1.0, NAN, NAN, INF],
        ],
    ),
    "gamma": (galley._standard_gamma.default, [[-1.0, -3.0, -1e30, NAN, 0.0, -0.0, INF, 1e-30]]),
    "dirichlet": (
        galley._sample_dirichlet.default,
        [[[0.0, 0.0], [-1.0, -1.0], [NAN, 0.0], [INF, 1.0], [INF, INF]]],
    ),
    "normal": (galley.normal.Tensor_Tensor, [[NAN, INF, -INF, 3.0], [1.0, 1.0, 1.0, 0.0]]),
}
"""Parameters that are hardly any, of which eager makes always the same."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_parameters(name, dtype):
    op, values = UNUSUAL[name]
    args = [torch.tensor(value, dtype=dtype) for value in values]
    wanted = draw.of_torch(op)(*args)
    torch.testing.assert_close(op(torch.tensor(0), 0, *args), wanted, equal_nan=True)


@pytest.mark.parametrize("prob", [0.3, 0.7])
def test_binomial_of_a_broken_count(prob):
    ours = drawn(galley.binomial.default, (filled(2.5), filled(prob)))
    assert set(ours) == set(torch.binomial(filled(2.5), filled(prob)).tolist())


def test_gamma_a_little_below_zero():
    """Gamma(a + 1) * U^(1/a), as eager has it; further down its shortcut favours some numbers."""
    ours = drawn(galley._standard_gamma.default, (filled(-0.2),))
    assert stats.ks_2samp(ours, torch._standard_gamma(filled(-0.2)).numpy()).pvalue > 1e-3


def test_bernoulli_checks_where_it_is_compiled():
    """torch's own rewriting of it doesn't."""
    flips = torch.compile(lambda x: torch.bernoulli(x * 1), backend="galley")
    assert flips(torch.ones(3)).tolist() == [1, 1, 1]
    for bad in (-1.0, 1.5, NAN):
        with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1"):
            flips(torch.full((3,), bad))


def test_without_xla_the_seed_is_a_generators():
    """In a fork of a process with XLA, and in dry runs."""
    from torch_galley.run.draw import without_xla

    state = torch.get_rng_state()
    with without_xla():
        a, b, c = (galley.rand.default(torch.tensor(3), n, [4]) for n in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_program_serves_all_numbers():
    torch_galley.reset_metrics()
    for number in range(5):
        run(galley.rand.default, torch.tensor(number), ([7],), {})
    assert torch_galley.metrics()["compiles"] <= 1


def test_names_can_be_written_in_python():
    """As torch.fx writes them: aten has an overload named `from`."""
    names = [op._overloadname for op in draw._OWN.values()]
    assert "from_" in names
    assert not any(map(keyword.iskeyword, names))
