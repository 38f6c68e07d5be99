"""Where XLA's arithmetic differs from torch's, we follow torch."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

FLOATS = [300.0, -1.0, -129.0, 40000.0, 3e9, -1e10, 1e19, 255.9, -0.5, 2.0**31, 2.0**63]
FLOATS += [float("inf"), float("-inf"), float("nan")]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def both(function, *args):
    """Return what eager gives and what we give, everything in XLA or an error."""
    compiled = torch.compile(
        function, backend="galley", options={"min_cluster_size": 1, "strict": True}, dynamic=False
    )
    return function(*args), compiled(*args)


def same(function, *args):
    """Assert that we give what eager gives, bit for bit but for the kind of NaN."""
    expected, actual = both(function, *args)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    return expected


# V2: the sign of an integer product


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_absolute_value_of_an_overflowed_square(dtype):
    x = torch.tensor([3, 12, 46341, 65000]).to(dtype)
    same(lambda x: (x * x).abs(), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
@pytest.mark.parametrize("square", [lambda x: x * x, lambda x: x**2, torch.square])
def test_overflowed_square_can_be_negative(dtype, square):
    x = torch.tensor([3, 12, 46341, 65000]).to(dtype)
    assert same(lambda x: square(x) < 0, x).any()


def test_overflowed_product_reduction_can_be_negative():
    x = torch.tensor([2**40, 2**23 + 1, 3])
    assert same(lambda x: x.prod() < 0, x) is not None


# V3: pairs that XLA would fold although the middle overflows


def test_log_of_exp_overflows():
    assert same(lambda x: torch.log(torch.exp(x)), torch.tensor([1000.0, 0.0]))[0] == torch.inf


def test_root_of_square_overflows():
    assert same(lambda x: torch.sqrt(x**2), torch.tensor([1e30, 2.0]))[0] == torch.inf


def test_root_of_product_overflows():
    assert same(lambda x: torch.sqrt(x * x), torch.tensor([-1e30, 2.0]))[0] == torch.inf


BIG, SMALL = 1e30, 1e-30
REASSOCIATED = {
    "rounding by a large number": lambda x, y: (x + 1.5 * 2**23) - 1.5 * 2**23,
    "sums of sums": lambda x, y: (x + 1e8) + (y - 1e8),
    "difference of a difference": lambda x, y: 1e8 - (x - 1e8),
    "small and large factors": lambda x, y: x * SMALL * SMALL * BIG * BIG,
    "large and small factors": lambda x, y: x * BIG * BIG * SMALL * SMALL,
    "factor and divisor": lambda x, y: (x * BIG) / (10 * BIG),
    "quotients of quotients": lambda x, y: (x * BIG / (y * BIG)) / (y / (x * BIG)),
    "divisor of a divisor": lambda x, y: (x * BIG) / ((y * BIG) / (y * BIG)),
    "powers of e": lambda x, y: torch.exp(x) / torch.exp(1.5 * x),
    "log of a power": lambda x, y: torch.log(torch.pow(x, 30)),
    "log of a negated power": lambda x, y: torch.log(-torch.neg(torch.exp(9 * x)).abs().neg()),
    "power of a power": lambda x, y: torch.exp(9 * x) ** 0.5,
    "roots": lambda x, y: (-x).sqrt() * (-x).sqrt(),
}


@pytest.mark.parametrize("chain", REASSOCIATED)
def test_chains_are_computed_as_they_are_written(chain):
    function, x = REASSOCIATED[chain], torch.linspace(0.5, 90, 300)
    expected, actual = both(function, x, x.flip(0))
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_are_the_nearest_numbers(dtype):
    x = torch.arange(20000.0, dtype=dtype).view(-1, 50)
    same(lambda x: (x / 49, torch.floor(x / 41.0), (x / x[1, 5]).long(), x / x[:, 1:2]), x)
    same(lambda x: ((x / 8).ceil(), torch.div(x, 49, rounding_mode=None)), x)


def test_norm_overflows_unless_it_is_of_one_element():
    x = torch.tensor([[1e30, 1.0], [2.0, -3.0]])
    norm = torch.linalg.vector_norm
    assert same(lambda x: (norm(x, dim=1), norm(x[:, :1], dim=1)), x)[0][0] == torch.inf


# V4: casts


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_float_to_integer_as_x86_does_it(source, target):
    same(lambda x: x.to(target), torch.tensor(FLOATS, dtype=source))


def test_float16_to_integer_keeps_infinity_out():
    x = torch.tensor([300.0, float("inf"), float("nan"), -129.0], dtype=torch.float16)
    same(lambda x: (x.to(torch.int8), x.to(torch.int64)), x)


def test_nan_is_true():
    same(lambda x: x.to(torch.bool), torch.tensor([0.0, -0.0, float("nan"), 0.1]))


def test_integers_wrap_when_narrowed():
    same(lambda x: x.to(torch.int8), torch.tensor([300, -129, 2**40 + 5]))


def test_complex_to_real_drops_the_imaginary_part():
    with pytest.warns(UserWarning, match="discards the imaginary"):
        same(lambda x: x.to(torch.float32), torch.tensor([1 + 2j]))


# Integer arithmetic


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_sums_and_products_wrap(dtype):
    top, bottom = torch.iinfo(dtype).max, torch.iinfo(dtype).min
    x = torch.tensor([top, bottom, 3, 100], dtype=dtype)
    same(lambda x: (x + x, x * x, x - 1, -x, x**3), x)


def test_scalars_wrap_to_the_tensors_dtype():
    same(lambda x: x + 300, torch.tensor([1, 2], dtype=torch.int8))


@pytest.mark.parametrize(
    "divide",
    [
        lambda x, y: x // y,
        lambda x, y: x % y,
        torch.fmod,
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ],
)
def test_integer_division_by_zero_raises_as_eager_does(divide):
    x, y = torch.tensor([7, -7]), torch.tensor([2, 0])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        divide(x, y)
    compiled = torch.compile(
        divide, backend="galley", options={"min_cluster_size": 1, "strict": True}
    )
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, y)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32], ids=str)
def test_signs_of_quotients_and_remainders(dtype):
    x = torch.tensor([7, -7, 7, -7, 6, -6, 0], dtype=dtype)
    y = torch.tensor([2, 2, -2, -2, -3, 3, -5], dtype=dtype)
    same(
        lambda x, y: (
            x // y,
            torch.div(x, y, rounding_mode="trunc"),
            x % y,
            torch.fmod(x, y),
        ),
        x,
        y,
    )


def test_float_division_by_zero_and_infinity():
    x = torch.tensor([1.0, -1.0, 0.0, 5.0, -5.0, float("inf")])
    y = torch.tensor([0.0, 0.0, 0.0, float("inf"), float("inf"), 2.0])
    same(lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y)), x, y)


def test_lowest_integer_by_minus_one():
    x = torch.tensor([-128, 5], dtype=torch.int8)
    same(lambda x: (x // -1, torch.div(x, -1, rounding_mode="trunc")), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_beyond_the_width(dtype):
    bits = 8 * dtype.itemsize
    x = torch.tensor([1, 77, torch.iinfo(dtype).max, torch.iinfo(dtype).min], dtype=dtype)
    for count in (0, 1, bits - 1, bits, bits + 3):
        same(lambda x, count=count: (x << count, x >> count), x)


def test_negative_exponent_of_integers():
    x = torch.tensor([1, -1, 2, -3, -1])
    y = torch.tensor([-1, -3, -2, -1, -2])
    same(torch.pow, x, y)
    negative = torch.compile(lambda x: x**-1, backend="galley")
    with pytest.raises(RuntimeError, match="negative integer powers"):
        negative(x)


# Half precision rounds once


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_sum_accumulates_in_single(dtype):
    x = torch.ones(5000, dtype=dtype)
    assert same(lambda x: x.sum(), x) > 4000


def test_half_precision_rounds_once():
    x = torch.linspace(-3, 3, 400).to(torch.bfloat16)
    same(lambda x: x * 1.1, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_rounds_before_it_goes_on(dtype):
    x, y, z = (torch.randn(2000).to(dtype) for _ in range(3))
    same(lambda x, y, z: (x * y + z, x * y - y * z, torch.square(x) + y, x / y + z), x, y, z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_python_numbers_beside_half_precision(dtype):
    x = torch.linspace(0.01, 3, 400).to(dtype)
    same(lambda x: (x * 1.1, x // 0.3, x + 0.1, x - 0.7, x % 0.3, torch.fmod(x, 0.3), x < 0.1), x)


@pytest.mark.parametrize("first", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("second", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_one_element_of_another_dtype(first, second):
    """It takes the other's dtype, and is rounded to it, wherever two tensors are compared, too."""
    x = torch.linspace(-1, 1, 200).to(first)
    y = x[37].to(second) if second is not torch.float64 else torch.tensor(0.1234, dtype=second)
    same(lambda x, y: (x + y, y - x, torch.fmod(x, y), torch.maximum(y, x), x < y), x, y)
    same(lambda x, y: (torch.isin(x, y), torch.isin(y, x), torch.isin(x, y, invert=True)), x, y)
    same(lambda x, y: (torch.dist(x, y, torch.inf), torch.dist(y, x, torch.inf)), x, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
def test_divisors_of_the_least_integers(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 6, 12, info.min + 1, 100], dtype=dtype)
    same(torch.gcd, x[:, None], x)
    same(torch.lcm, x[1:, None], x[1:])  # eager dies of the least one
    same(lambda x: (torch.gcd(x, x[0]), torch.gcd(-x, x)), x)


def test_booleans_to_a_boolean_power_stay_with_eager():
    expected, actual = both(lambda x: (x**True, x**False, x**2), torch.tensor([True, False]))
    assert [one.dtype for one in actual] == [one.dtype for one in expected]


def test_truncated_quotient_by_a_constant():
    x = torch.arange(300) * 0.1
    same(lambda x: torch.div(x, 0.1, rounding_mode="trunc"), x)


def test_python_number_in_a_tensors_place():
    same(lambda x: (torch.mul(2, x), torch.sub(1, x), torch.div(1, x)), torch.tensor([1.0, 2.0]))


def test_negative_zero_stays():
    x = torch.tensor([-0.0] * 9)
    same(lambda x: (1 / torch.relu(x), 1 / x.clamp(0, 1), 1 / x.round(), 1 / x.sign()), x)


def test_isin_beside_nan():
    same(lambda x, y: torch.isin(x, y), torch.tensor([1.5, NAN, 2.0]), torch.tensor([NAN, 1.5]))


def test_small_integers_sum_in_int64():
    assert same(lambda x: x.sum(), torch.full((300,), 100, dtype=torch.int8)) == 30000


# NaN, ties, order


NAN = float("nan")


def test_nan_wins_extrema_and_bounds():
    x = torch.tensor([[1.0, NAN, 3.0, NAN], [2.0, 5.0, 5.0, -1.0]])
    same(
        lambda x: (
            x.amax(1),
            x.amin(1),
            x.max(1),
            x.min(1),
            x.argmax(1),
            x.argmin(1),
            x.argmax(),
            torch.maximum(x, x.flip(1)),
            torch.fmax(x, x.flip(1)),
            x.clamp(0, 2),
            torch.relu(x),
            torch.nn.functional.hardtanh(x),
            torch.sign(x),
            x.cummax(1),
            x.cummin(1),
        ),
        x,
    )


def test_first_of_equals_for_argmax_and_last_for_cummax():
    x = torch.tensor([2, 5, 5, 1, 5, 1])
    same(lambda x: (x.argmax(), x.argmin(), x.max(0), x.cummax(0), x.cummin(0)), x)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_puts_nan_at_the_top(descending):
    x = torch.tensor([1.0, NAN, 0.0, -0.0, 1.0, NAN, -2.0, float("inf"), -0.0])
    same(lambda x: x.sort(stable=True, descending=descending), x)


@pytest.mark.parametrize("largest", [False, True])
def test_topk_counts_nan_as_largest(largest):
    x = torch.tensor([1.0, NAN, 0.5, 3.0, -2.0])
    same(lambda x: x.topk(3, largest=largest), x)


def test_round_half_to_even():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.1])
    same(lambda x: (x.round(), torch.round(x * 10, decimals=-1)), x)


def test_searchsorted_of_nan_and_ends():
    edges = torch.tensor([0.0, 1.0, 1.0, 2.0])
    x = torch.tensor([-1.0, 0.0, 1.0, 1.5, 2.0, 3.0, NAN])
    for right in (False, True):
        same(lambda x, e, right=right: torch.bucketize(x, e, right=right), x, edges)


@pytest.mark.parametrize("dim", [0, -1])
def test_scalars_have_a_dimension(dim):
    x = torch.tensor(3.0)
    same(lambda x: (x.sum(dim), x.max(dim), x.cumsum(dim), x.sort(dim), x.softmax(dim)), x)


def test_reductions_of_nothing():
    x = torch.empty(0, 3)
    same(lambda x: (x.sum(), x.sum(0), x.mean(0), x.prod(0), x.any(), x.all(0), x.amax(1)), x)
