"""Recurrent layers that torch keeps whole: an LSTM layer at inference on CPU.

All other recurrent layers reach us step by step, decomposed by torch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten.matmul import product
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_LSTM = 2
"""ideep's rnn_kind, the argument `mode`."""


def _one_lstm_layer(
    input,
    weight0,
    weight1,
    weight2,
    weight3,
    hx_,
    cx_,
    reverse,
    batch_sizes,
    mode,
    hidden_size,
    num_layers,
    has_biases,
    bidirectional,
    batch_first,
    train,
) -> Reason | None:
    if mode != _LSTM or num_layers != 1 or bidirectional or batch_first or batch_sizes or train:
        return ArgumentForm("aten.mkldnn_rnn_layer", "not one LSTM layer at inference")
    return None


@lowers(aten.mkldnn_rnn_layer.default, when=_one_lstm_layer)
def mkldnn_rnn_layer(
    input,
    weight0,
    weight1,
    weight2,
    weight3,
    hx_,
    cx_,
    reverse,
    batch_sizes,
    mode,
    hidden_size,
    num_layers,
    has_biases,
    bidirectional,
    batch_first,
    train,
):
    """What does not depend on the state is one product over all time steps, outside the loop."""
    gates = product(input, weight0.T)
    if has_biases:
        gates = gates + (weight2 + weight3).astype(gates.dtype)

    def step(state, gate):
        hidden, cell = state
        i, f, g, o = jnp.split(gate + product(hidden, weight1.T), 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(hidden.dtype)
        return (hidden, cell), hidden

    first = (hx_.reshape(hx_.shape[-2:]), cx_.reshape(cx_.shape[-2:]).astype(gates.dtype))
    (hidden, cell), output = lax.scan(step, first, gates, reverse=reverse)
    cell = cell.astype(cx_.dtype)
    workspace = jnp.zeros((0,), jnp.uint8)  # what only a backward pass would read
    return output, hidden.reshape(hx_.shape), cell.reshape(cx_.shape), workspace
