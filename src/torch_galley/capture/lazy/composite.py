"""Operators that are sums of others on the CPU, and that torch won't take apart for a device.

LSTM and GRU cells arrive whole, in a form that no CPU kernel has; tensor_split wants its sections
on the CPU. They are written here with plain operators, above autograd, so that their gradients
are theirs.
"""

from __future__ import annotations

import torch


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """aten::_thnn_fused_lstm_cell: new hidden and cell state, and a workspace nobody reads."""
    gates = _sum(input_gates, input_bias) + _sum(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy, gates.new_empty(0)


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_thnn_fused_gru_cell: new hidden state, and a workspace nobody reads."""
    ir, iz, in_ = _sum(input_gates, input_bias).chunk(3, 1)
    hr, hz, hn = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (in_ + r * hn).tanh()
    return n + z * (hx - n), n.new_empty(0)


def _sum(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


def tensor_split(
    self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0
) -> list[torch.Tensor]:
    """aten::tensor_split with a tensor: where to split, or into how many parts."""
    where = tensor_indices_or_sections.cpu()
    if where.dtype is not torch.int64 or where.dim() > 1:
        torch.empty(1, device="cpu").expand(self.shape).tensor_split(where, dim)  # raises
    return list(torch.tensor_split(self, where.tolist(), dim))


def install() -> list[torch.library.Library]:
    """Make these the kernels of the device; return what must be kept alive."""
    own = torch.library.Library("aten", "IMPL")
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        own.impl("_thnn_fused_lstm_cell", lstm_cell, key)
        own.impl("_thnn_fused_gru_cell", gru_cell, key)
        own.impl("tensor_split.tensor_indices_or_sections", tensor_split, key)
    return [own]
