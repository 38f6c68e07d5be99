"""A batch of nothing: what eager takes, we take, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x[..., None], 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 1, 1),
    "conv2d, pointwise": lambda x: F.conv2d(x, torch.ones(5, 4, 1, 1), stride=2),
    "conv2d, by channel": lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3), padding=1, groups=4),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 2, 2), stride=2),
    "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, (4, 4)),
    "grid_sample": lambda x: F.grid_sample(x, torch.zeros(0, 4, 4, 2), align_corners=False),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "unfold": lambda x: F.unfold(x, 2),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "attention, shared keys": lambda x: F.scaled_dot_product_attention(
        x, x[:, :2], x[:, :2], enable_gqa=True
    ),
    "embedding_bag": lambda x: F.embedding_bag(x[:, 0, 0].long(), torch.ones(4, 3)),
    "cross_entropy": lambda x: F.cross_entropy(x[:, :, 0, 0], torch.zeros(0, dtype=torch.long)),
    "topk": lambda x: x.topk(1, 1)[0],
    "cumsum": lambda x: x.cumsum(0),
    "cdist": lambda x: torch.cdist(x, x),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_batch_of_nothing(galley: Callable[..., Any], name: str) -> None:
    def run(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = torch.zeros(0, 4, 4, 4, requires_grad=True)
        result = function(x)
        if result.requires_grad:
            result.sum().backward()
        return result.detach(), x.grad

    operator = OPERATORS[name]
    torch.testing.assert_close(run(galley(operator)), run(operator), equal_nan=True)
