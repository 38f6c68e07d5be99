"""Resampling with a filter as wide as the step; volumes sampled at a grid; runs; distances."""

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(5, 3), (13, 20), (1, 9)])
def test_antialias(same, mode, align_corners, size):
    def resize(x):
        return F.interpolate(x, size, mode=mode, align_corners=align_corners, antialias=True)

    same(resize, torch.randn(2, 3, 9, 11), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_volume_at_a_grid(same, mode, padding_mode, align_corners):
    volume, grid = torch.randn(2, 3, 4, 5, 6), 3 * torch.rand(2, 2, 3, 4, 3) - 1.5

    def sample(volume, grid):
        settings = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        return F.grid_sample(volume, grid, **settings)

    same(sample, volume, grid, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_runs(same, reduce):
    def runs(x, lengths):
        return (
            torch.segment_reduce(x, reduce, lengths=lengths),
            torch.segment_reduce(x, reduce, lengths=lengths, initial=2),
            torch.segment_reduce(x, reduce, offsets=torch.tensor([0, 2, 2, 6]), unsafe=True),
        )

    same(runs, torch.randn(6, 2), torch.tensor([1, 0, 3, 2]))


def test_lengths_of_runs_that_do_not_add_up(galley):
    compiled = galley(lambda x, n: torch.segment_reduce(x * 1, "sum", lengths=n))
    with pytest.raises(RuntimeError, match="add up to 3, not to 6"):
        compiled(torch.randn(6), torch.tensor([1, 2]))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, torch.inf])
def test_distances(same, p):
    x, y = torch.randn(2, 5, 4), torch.randn(3, 4)
    same(lambda x, y: (torch.cdist(x, y, p), F.pdist(x[0], p)), x, y)


def test_histogram(same):
    x, weight = torch.randn(100, 2), torch.rand(100)

    def histograms(x, w):
        return (
            *torch.histogram(x[:, 0], 7),
            *torch.histogram(x[:, 0], 5, range=(-1.0, 2.0), weight=w, density=True),
            *torch.histogram(x[:, 1], torch.tensor([-1.0, 0.0, 0.5, 3.0])),
            torch.histogramdd(x, [3, 4], weight=w).hist,
        )

    same(histograms, x, weight)


def test_histogram_of_nothing(same):
    x = torch.ones(0, 2)
    same(lambda x: (*torch.histogram(x, 3), torch.histogramdd(x, [3, 4]).bin_edges), x)


def test_mode(same):
    x = torch.randint(0, 4, (3, 9)).float()  # no NaN: which one counts then depends on its place
    same(lambda x: (*torch.mode(x, 1), *torch.mode(x, 0, keepdim=True)), x)
