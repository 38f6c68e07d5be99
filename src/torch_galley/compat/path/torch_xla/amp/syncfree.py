"""`torch_xla.amp.syncfree`: torch's own optimizers."""

from __future__ import annotations

from typing import Any

import torch

from torch_galley.compat.finder import missing

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def __getattr__(name: str) -> Any:
    missing(__name__, name)
