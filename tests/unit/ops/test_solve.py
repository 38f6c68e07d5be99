"""Triangular systems, and sampling from a grid, which torch rewrites."""

import pytest
import torch


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("unitriangular", [True, False])
def test_solve_triangular(same, left, upper, unitriangular):
    matrix, values = torch.randn(2, 1, 3, 3) + 3 * torch.eye(3), torch.randn(4, 3, 3)
    settings = {"upper": upper, "left": left, "unitriangular": unitriangular}
    same(lambda a, b: torch.linalg.solve_triangular(a, b, **settings), matrix, values)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample(same, mode, padding_mode):
    image, grid = torch.randn(2, 3, 5, 6), 2.4 * torch.rand(2, 4, 4, 2) - 1.2

    def sample(image, grid):
        return torch.nn.functional.grid_sample(
            image, grid, mode=mode, padding_mode=padding_mode, align_corners=False
        )

    same(sample, image, grid, rtol=1e-4, atol=1e-5)
