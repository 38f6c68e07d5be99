"""What a program gives on the xla device, compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


def both(program: Callable[[torch.device], object], xla: torch.device) -> None:
    """Assert that a program gives on the device what it gives on the CPU."""
    wanted, given = program(torch.device("cpu")), program(xla)
    assert isinstance(wanted, tuple)
    assert isinstance(given, tuple)
    for w, g in zip(wanted, given, strict=True):
        assert g.device.type == "xla"
        assert g.stride() == w.stride()
        torch.testing.assert_close(g.cpu(), w)
