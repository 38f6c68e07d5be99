"""Rules of views, joins and paddings that torch's own samples do not reach."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def ramp(*shape, dtype=torch.float32):
    count = 1
    for size in shape:
        count *= size
    return torch.arange(count, dtype=dtype).reshape(shape)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((4, 3), (2, 1), 0),  # windows overlap
        ((2, 2), (3, 2), 1),  # gaps
        ((3, 2), (1, 3), 2),  # a permutation of a run
        ((2, 3, 2), (0, 2, 1), 1),  # repeats
        ((), (), 5),
        ((0, 3), (3, 1), 0),
    ],
)
def test_as_strided(same, size, stride, offset):
    same(lambda x: (x * 2).as_strided(size, stride, offset) + 1, ramp(10))


@pytest.mark.parametrize(
    ("size", "stride"), [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((3,), (2,)), ((2, 1), (9, 1))]
)
def test_as_strided_scatter(same, size, stride):
    same(lambda x, s: torch.as_strided_scatter(x, s, size, stride, 1) * 2, ramp(12), -ramp(*size))


def test_a_write_to_one_of_several_overlapping_windows(galley):
    def f(x):
        y = x * 2
        y.as_strided((3, 2), (1, 1))[0] += 5
        y.as_strided((3, 3), (3, 2), 1)[1, 1:] *= torch.nan
        return y

    x = ramp(12)
    torch.testing.assert_close(galley(f)(x), f(x), equal_nan=True, rtol=0, atol=0)


def test_results_that_were_reshaped_by_a_copy_share_memory(galley):
    def f(x):
        y = x.reshape(4, 1)
        y[1] += 2
        return y[..., 0, None], y

    first, second = galley(f)(ramp(2, 2).t())
    second += 1
    assert torch.equal(first, second)


def test_a_result_of_a_copy_keeps_the_gaps_of_what_was_copied_to(galley):
    def f(x, y):
        return torch.ops.aten.copy.default(x, y), y * 2

    x, y = ramp(3, 8)[:, ::2], ramp(3, 4)
    assert [one.stride() for one in galley(f)(x, y)] == [one.stride() for one in f(x, y)]


def test_as_strided_of_a_view_addresses_the_memory_behind_it(galley):
    def f(x):
        y = x * 2
        return y[2:5].as_strided((3,), (2,), 1) + 1, y.t().as_strided((4,), (1,)) + 1

    x = ramp(6, 2)
    assert all(map(torch.equal, galley(f)(x), f(x)))


def test_unfold(same):
    forms = [(4, 3), (2, 2), (2, 5), (1, 1), (0, 1), (20, 1), (22, 4)]
    same(lambda x: [x.unfold(1, size, step) + 1 for size, step in forms], ramp(2, 22, 3))


@pytest.mark.parametrize("dim", [0, -1])
def test_slices_clamp_and_wrap(same, dim):
    def f(x):
        whole = slice(None)
        keys = [slice(-3, -1), slice(-99, 99), slice(3, 1), slice(1, None, 2), slice(-4, 99, 3)]
        return [x[(*[whole] * (dim % x.ndim), key)] * 1 for key in keys]

    same(f, ramp(5, 4))


def test_writes_into_views(same):
    def f(x):
        y = x.clone()
        y[1:5:2] = -1
        y[:, -1] += 10
        y[-1] = y[0] * 2
        y.diagonal(-1).mul_(3)
        y.diagonal(1)[0] = 7
        y[4:2] = 5  # selects nothing
        return y

    same(f, ramp(6, 4))
    same(f, ramp(6, 4, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (2, 3, 5)])
def test_diagonals(same, shape):
    def f(x):
        made = []
        for offset in (0, 2, -3, 9):
            made += [x.diagonal(offset, -1, 0) + 0, x.tril(offset), x.triu(offset)]
        return made

    same(f, ramp(*shape))


def test_zero_sizes(same):
    def f(x):
        return (
            torch.cat([x, x, torch.ones(0)], 1),
            torch.cat([torch.ones(0), torch.ones(2, dtype=torch.int64)]) + 1,
            x.roll(1, 0) + 1,
            x.roll(2) + 1,
            x.flip(0, 1) + 1,
            x.repeat(2, 0) + 1,
            x.view(-1, 3, 1) + 1,
            *[piece + 1 for piece in x.split(2)],
            F.pad(x, (1, 1, 2, 0), value=3),
            torch.diagonal(x) + 1,
        )

    same(f, torch.ones(0, 3))


def test_tensors_of_no_dimension(same):
    def f(x):
        return (
            x.squeeze(0) + 1,
            x.unsqueeze(-1) + 1,
            x.transpose(0, -1) + 1,
            x.flip(0) + 1,
            x.roll(3) + 1,
            x.expand(2, -1 if x.ndim else 3) + 1,
            x.unfold(0, 1, 1) + 1,
            x.repeat(2) + 1,
        )

    same(f, torch.tensor(3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64])
def test_negative_padding_cuts(same, dtype):
    pads = [(-1, 2), (1, -2, -1, 3), (-2, -1, 0, 1)]
    same(lambda x: [F.pad(x, pad, value=1).clone() for pad in pads], ramp(4, 5).to(dtype))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_mirrored_padding_and_its_gradient(galley, mode):
    def f(x):
        return F.pad(x, (2, 1, 0, 3), mode=mode)

    ours, eager = (ramp(1, 2, 5, 4).requires_grad_() for _ in range(2))
    padded = galley(f)(ours), f(eager)
    assert torch.equal(*padded)
    for y in padded:
        y.backward(ramp(*y.shape))
    assert torch.equal(ours.grad, eager.grad)


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_images(same, stride):
    options = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 2), "stride": stride}
    same(lambda x: F.unfold(x, **options) + 1, ramp(2, 3, 5, 6))
    columns = F.unfold(ramp(2, 3, 5, 6), **options)
    same(lambda c: F.fold(c, (5, 6), **options) + 1, columns)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.int8),
        (torch.int16, torch.float64),
        (torch.complex64, torch.int64),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.float32),
        (torch.bfloat16, torch.int16),
        (torch.bool, torch.uint8),
    ],
)
def test_bits_seen_as_another_dtype(same, source, target):
    same(lambda x: x.view(target).clone(), ramp(3, 8).to(source))


def test_complex_views(same):
    def f(x):
        y = x * 2
        pair = torch.view_as_real(y)
        return (
            y.conj() * 1,
            pair * 1,
            torch.view_as_complex(pair.flip(0)) * 1,
            y.real * 1,
            y.imag * 1,
        )

    same(f, torch.complex(ramp(3), -ramp(3)))


def test_cat_promotes_as_torch(same):
    def f(a, b, c):
        return torch.cat([a, b, c]), torch.cat([b, c]), torch.cat([a, b])

    same(f, ramp(2, dtype=torch.int64), ramp(2, dtype=torch.bfloat16), ramp(2) > 0)


def test_meshgrid_chunks_and_rotations(same):
    def f(x):
        a, b = torch.meshgrid(x, x[:2], indexing="xy")
        return a + b, *[c + 1 for c in x.chunk(4)], *[u + 1 for u in x.unbind()], a.rot90() + 1

    same(f, ramp(7))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.roll(1, 1),
        lambda x: x.roll((1, -2), (2, 3)),
        lambda x: x.roll((2, 3, 4), (1, 1, 0)),
        lambda x: x.roll(7) + 1,
        lambda x: x.roll(0, 1),
        lambda x: torch.nn.functional.pixel_shuffle(x, 2),
        lambda x: torch.nn.functional.pixel_unshuffle(x, 2),
        lambda x: torch.nn.functional.channel_shuffle(x, 2),
    ],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_format_is_kept_as_in_eager(same, function, memory_format):
    x = torch.arange(2 * 8 * 6 * 6.0).view(2, 8, 6, 6).to(memory_format=memory_format)
    same(function, x)
    same(lambda x: function(x).as_strided((4,), (1,)) * 1, x)
    given = torch.compile(function, backend="galley")(x)
    assert given.stride() == function(x).stride()
