"""Checks of linear algebra, freed from the tokens that keep their order, and factors nobody reads.

torch captures `torch.linalg.inv` as the inversion and `with_effects(token, check, info, ...)`. The
check raises and does nothing else, so among others its order does not matter.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._ops import HigherOrderOperator

aten = torch.ops.aten


def untie_checks(graph: fx.Graph) -> None:
    """Make each check of linear algebra a plain node without a token. Idempotent."""
    for node in list(graph.nodes):
        target = node.target
        if not (isinstance(target, HigherOrderOperator) and target.name() == "with_effects"):
            continue
        token, op, *args = node.args
        if op is not aten._linalg_check_errors.default:
            continue
        with graph.inserting_before(node):
            check = graph.call_function(op, tuple(args), node.kwargs)
        check.meta = dict(node.meta, val=None)
        for pick in list(node.users):  # the token only: the check returns nothing
            pick.replace_all_uses_with(token)
            graph.erase_node(pick)
        graph.erase_node(node)


_OPTIONAL = {
    aten._linalg_svd.default: (2, "compute_uv", (0, 2)),
    aten._linalg_eigh.default: (2, "compute_v", (1,)),
}
"""Where the argument stands that asks for factors, its name, and which results these are."""


def drop_unread(graph: fx.Graph) -> None:
    """Ask a factorisation for its values only, where nobody reads its vectors. Idempotent.

    torch asks for both while it captures, in case a gradient is wanted.
    """
    for node in graph.nodes:
        if node.target not in _OPTIONAL:
            continue
        place, name, factors = _OPTIONAL[node.target]
        picks = [user for user in node.users if user.target is operator.getitem]
        unread = [pick for pick in picks if pick.args[1] in factors and not pick.users]
        if len(picks) != len(node.users) or any(
            pick.args[1] in factors and pick.users for pick in picks
        ):
            continue
        for pick in unread:
            graph.erase_node(pick)
        node.args = node.args[:place]
        node.kwargs = {**node.kwargs, name: False}
        node.meta["val"] = tuple(
            value.new_empty(0) if number in factors else value
            for number, value in enumerate(node.meta["val"])
        )
