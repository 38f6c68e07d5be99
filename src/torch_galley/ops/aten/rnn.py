"""Recurrent layers that torch keeps whole: an LSTM layer on CPU whose input needs no gradient.

All other recurrent layers reach us step by step, decomposed by torch.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten.matmul import product
from torch_galley.ops.half import wide
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


def _layer(input, weight0, weight1, bias, hidden, cell, *, reverse):
    """What does not depend on the state is one product over all time steps, outside the loop."""
    gates = product(input, weight0.T) + bias

    def step(state, gate):
        hidden, cell = state
        i, f, g, o = jnp.split(gate + product(hidden, weight1.T), 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = (jax.nn.sigmoid(o) * jnp.tanh(cell)).astype(hidden.dtype)
        return (hidden, cell), hidden

    (hidden, cell), output = lax.scan(step, (hidden, cell), gates, reverse=reverse)
    return output, hidden, cell


def _bias(weight2, weight3, has_biases):
    return wide(weight2) + wide(weight3) if has_biases else jnp.zeros((), wide(weight2).dtype)


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
    bias = _bias(weight2, weight3, has_biases)
    state = hx_.reshape(hx_.shape[-2:]), wide(cx_).reshape(cx_.shape[-2:])
    output, hidden, cell = _layer(input, weight0, weight1, bias, *state, reverse=reverse)
    workspace = jnp.zeros((0,), jnp.uint8)
    return output, hidden.reshape(hx_.shape), cell.reshape(cx_.shape).astype(cx_.dtype), workspace


def _one_lstm_layer_backward(
    input,
    weight1,
    weight2,
    weight3,
    weight4,
    hx_,
    cx_tmp,
    output,
    hy_,
    cy_,
    grad_output,
    grad_hy,
    grad_cy,
    reverse,
    mode,
    hidden_size,
    num_layers,
    has_biases,
    train,
    bidirectional,
    batch_sizes,
    batch_first,
    workspace,
) -> Reason | None:
    if mode != _LSTM or num_layers != 1 or bidirectional or batch_first or batch_sizes:
        return ArgumentForm("aten.mkldnn_rnn_layer_backward", "not one LSTM layer")
    return None


@lowers(aten.mkldnn_rnn_layer_backward.default, when=_one_lstm_layer_backward)
def mkldnn_rnn_layer_backward(
    input,
    weight1,
    weight2,
    weight3,
    weight4,
    hx_,
    cx_tmp,
    output,
    hy_,
    cy_,
    grad_output,
    grad_hy,
    grad_cy,
    reverse,
    mode,
    hidden_size,
    num_layers,
    has_biases,
    train,
    bidirectional,
    batch_sizes,
    batch_first,
    workspace,
):
    """Differentiate the layer anew: torch asks for this with the empty workspace of inference,
    and its own kernel reads past the end of that."""
    bias = jnp.broadcast_to(_bias(weight3, weight4, has_biases), weight3.shape)
    hidden, cell = hx_.reshape(hx_.shape[-2:]), wide(cx_tmp).reshape(cx_tmp.shape[-2:])
    primals = (input, weight1, weight2, bias, hidden, cell)
    results, pull = jax.vjp(partial(_layer, reverse=reverse), *primals)
    given = [
        jnp.zeros_like(result) if grad is None else grad.reshape(result.shape).astype(result.dtype)
        for result, grad in zip(results, (grad_output, grad_hy, grad_cy), strict=True)
    ]
    d_input, d_weight1, d_weight2, d_bias, d_hidden, d_cell = pull(tuple(given))
    d_bias = d_bias.astype(weight3.dtype)
    d_hidden, d_cell = d_hidden.reshape(hx_.shape), d_cell.reshape(cx_tmp.shape)
    return d_input, d_weight1, d_weight2, d_bias, d_bias, d_hidden, d_cell.astype(cx_tmp.dtype)
