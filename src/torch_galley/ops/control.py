"""Control flow: branches and loops, whose graphs are functions of arrays here.

jax traces a branch or a body by itself, so what is checked inside (ops.check) leaves it as one
result more. A loop that has seen a bad index stops, or keeps the verdict of the first bad turn:
eager would have raised there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.ops.check import Check, apart, ask, current, require
from torch_galley.ops.registry import lowers_control, lowers_numbers

aten = torch.ops.aten
higher_order = torch.ops.higher_order

Body = Callable[..., list[jax.Array]]
"""A graph as a function."""


def _checks_of(body: Body, operands: Sequence[Any]) -> list[Check]:
    """Return what a body asks for, before it is traced for good."""
    found: list[Check] = []
    if current() is not None:
        jax.eval_shape(lambda: found.extend(apart(body, *operands)[1]))
    return found


@lowers_control(higher_order.cond)
def cond(pred, true_fn: Body, false_fn: Body, operands):
    if not isinstance(pred, jax.Array):  # known from sizes
        return true_fn(*operands) if pred else false_fn(*operands)
    then, otherwise = _checks_of(true_fn, operands), _checks_of(false_fn, operands)

    def branch(body: Body, before: int, behind: int):
        def run():
            results, _, table = apart(body, *operands)
            return results, jnp.pad(table, ((before, behind), (0, 0)))

        return run

    results, table = lax.cond(
        pred.reshape(()) != 0,
        branch(true_fn, 0, len(otherwise)),
        branch(false_fn, len(then), 0),
    )
    ask([*then, *otherwise], table)
    return results


@lowers_control(higher_order.while_loop)
def while_loop(cond_fn: Body, body_fn: Body, carried_inputs, additional_inputs):
    def goes_on(carried):
        (go,), _, table = apart(cond_fn, *carried, *additional_inputs)
        return go.reshape(()), table

    def turn(carried):
        results, _, table = apart(body_fn, *carried, *additional_inputs)
        return results, table

    start = list(carried_inputs)
    inside = _checks_of(body_fn, [*start, *additional_inputs])
    between = _checks_of(cond_fn, [*start, *additional_inputs])
    if not inside and not between:
        return lax.while_loop(lambda carried: goes_on(carried)[0], lambda c: turn(c)[0], start)

    # The condition is asked at the end of each turn, so that its verdicts can be carried, too.
    def asked(carried, table):
        go, more = goes_on(carried)
        table = jnp.concatenate([table, more])
        return carried, go & jnp.all(table[:, 0] == 0), table

    first = asked(start, jnp.zeros((len(inside), 2), jnp.int64))
    results, _, table = lax.while_loop(lambda state: state[1], lambda s: asked(*turn(s[0])), first)
    ask([*inside, *between], table)
    return results


@lowers_control(higher_order.scan)
def scan(combine_fn: Body, init, xs, additional_inputs):
    entries: list[Check] = []

    def turn(carried, slices):
        results, found, table = apart(combine_fn, *carried, *slices, *additional_inputs)
        entries[:] = found
        return results[: len(init)], (results[len(init) :], table)

    carried, (stacked, tables) = lax.scan(turn, list(init), list(xs))
    if entries:
        bad = jnp.any(tables[:, :, 0] != 0, axis=1)
        ask(entries, tables[jnp.argmax(bad)])
    return [*carried, *stacked]


@lowers_control(higher_order.map_impl)
def map_impl(f: Body, xs, pos_args):
    return scan(f, [], xs, pos_args)


@lowers_control(higher_order.associative_scan)
def associative_scan(combine_fn: Body, xs, additional_inputs):
    """Combine by torch's own tree: it combines neighbours first, and so does jax."""

    def combined(left, right):
        def one(*both):
            results, found, table = apart(combine_fn, *both, *additional_inputs)
            entries[:] = found
            return results, table

        entries: list[Check] = []
        results, tables = jax.vmap(one)(*left, *right)
        if entries:
            bad = jnp.any(tables[:, :, 0] != 0, axis=1)
            ask(entries, tables[jnp.argmax(bad)])
        return results

    return lax.associative_scan(combined, list(xs))


@lowers_control(higher_order.invoke_subgraph)
def invoke_subgraph(subgraph: Body, identifier: str, *operands):
    return subgraph(*operands)


def _divided(divide: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def checked(self, other):
        other = jnp.asarray(other)
        require(other != 0, other, ZeroDivisionError, "integer division or modulo by zero")
        return divide(self, jnp.where(other == 0, 1, other))

    return checked


lowers_numbers(
    (aten._local_scalar_dense.default, lambda self: jnp.reshape(self, ())),
    *((f, f) for f in (operator.add, operator.sub, operator.mul, operator.neg)),
    *((f, f) for f in (operator.lt, operator.le, operator.gt, operator.ge)),
    *((f, f) for f in (operator.eq, operator.ne, operator.and_, operator.or_)),
    (operator.floordiv, _divided(jnp.floor_divide)),
    (operator.mod, _divided(jnp.mod)),
    (torch.sym_not, jnp.logical_not),
)
