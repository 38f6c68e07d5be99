"""The table of lowerings: ATen overload -> a jax function of that overload's own arguments.

Two forms. A *row* is a line in a table: an overload, and a function of jax's own, a formula, or
what a rule of the overload's whole family makes of one; a *body* is for the rest, its parameters
named and ordered as in the ATen schema. `lookup` answers "can we, and how?" for both
the cluster and the lower stage, so that they can't disagree. What users register for operators,
with `ops.own.lowers`, goes before ours and may change while plans live: see `revision`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from torch_galley.core.errors import ConfigError
from torch_galley.core.reasons import Reason
from torch_galley.ops.schema import written_by

When = Callable[..., Reason | None]


@dataclass(frozen=True)
class Lowering:
    """How one overload, or one operator that takes graphs, becomes jax."""

    overload: OpOverload | HigherOrderOperator | Callable[..., Any]
    function: Callable[..., Any]
    """Takes the overload's arguments, tensors as jax arrays and graphs as functions of such;
    returns the results likewise."""
    when: When | None = None
    """Given the same arguments with fake tensors, None if they are taken or a Reason if not."""
    promotes: bool | None = None
    """Whether the driver promotes tensor arguments to one compute dtype and casts the result to
    the recorded dtype. None: yes exactly if torch tags the overload as pointwise."""
    row: bool = False
    """Whether it is a line in a table, registered by `rows`."""
    halves: bool = False
    """Whether the driver promotes to a half type where it otherwise does to float32: the function
    itself rounds after each step, as eager does here."""
    revision: int = 0
    """Of a user's lowering its number: no two have the same. 0: ours."""
    digest: str = ""
    """Of a user's lowering what stands for its source from process to process."""

    @property
    def is_promoted(self) -> bool:
        """Whether the driver promotes: see `promotes`."""
        if self.promotes is None:
            return torch.Tag.pointwise in getattr(self.overload, "tags", ())
        return self.promotes


_table: dict[OpOverload, Lowering] = {}
_control: dict[HigherOrderOperator, Lowering] = {}
_numbers: dict[Any, Lowering] = {}


_users: dict[OpOverload, Lowering] = {}
_revisions = itertools.count(1)
changes = 0
"""How often users' lowerings have changed."""


def _add(overload: OpOverload, lowering: Lowering) -> None:
    if overload in _table:
        raise ConfigError(f"{overload} has a lowering already", hint="remove one of the two")
    if written_by(overload):
        raise ConfigError(
            f"{overload} writes its arguments", hint="register its functional overload"
        )
    _table[overload] = lowering


def rows(
    *pairs: tuple[OpOverload, Callable[..., Any]],
    when: When | None = None,
    promotes: bool | None = None,
    halves: bool = False,
) -> None:
    """Register operators that are a line each. The functions take the schema's arguments: those
    by position under any name, keyword-only ones under theirs.

    Example: `rows((aten.neg.default, jnp.negative), (aten.relu.default, jax.nn.relu))`

    Raises:
        ConfigError: a function that can't be called so, a repeated or writing overload.
    """
    for overload, function in pairs:
        _check_callable(overload, function)
        _add(overload, Lowering(overload, function, when, promotes, row=True, halves=halves))


def _check_callable(overload: OpOverload, function: Callable[..., Any]) -> None:
    arguments = overload._schema.arguments
    for given in (arguments, [arg for arg in arguments if not arg.has_default_value()]):
        positional = [arg for arg in given if not arg.kwarg_only]
        named = {arg.name: arg for arg in given if arg.kwarg_only}
        try:
            inspect.signature(function).bind(*positional, **named)
        except TypeError as error:
            names = [arg.name for arg in given]
            raise ConfigError(
                f"the row of {overload} can't be called with {names}: {error}",
                hint="take the schema's arguments, with its defaults",
            ) from None


def lowers(
    *overloads: OpOverload,
    when: When | None = None,
    promotes: bool | None = None,
    halves: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of `overloads`.

    Its parameters must be named and ordered as in the schema; a schema default needs a default
    of its own. `when` is called with the same arguments, tensors being fake.

    Raises:
        ConfigError: a signature that differs from the schema, a repeated or writing overload.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            _check_signature(overload, function)
            _add(overload, Lowering(overload, function, when, promotes, halves=halves))
        return function

    return register


def lowers_control(
    operator: HigherOrderOperator,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of an operator that takes graphs.

    It is given the operator's arguments, each graph as a function of its inputs that returns a
    list. Whether a node is taken is a question of what is in its graphs.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _control[operator] = Lowering(operator, function, promotes=False)
        return function

    return register


def lowers_numbers(*pairs: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    """Register what a loop's body does with Python numbers that only it knows.

    There they are arrays without dimensions. Example: `lowers_numbers((operator.add, jnp.add))`
    """
    for target, function in pairs:
        _numbers[target] = Lowering(target, function, promotes=False)


def _check_signature(overload: OpOverload, function: Callable[..., Any]) -> None:
    wanted = [arg.name for arg in overload._schema.arguments]
    wanted = ["self" if name == "self" else name for name in wanted]
    given = list(inspect.signature(function).parameters.values())
    if given and given[-1].kind is inspect.Parameter.VAR_KEYWORD:  # **unused: the rest, by name
        given = given[:-1]
        wanted = wanted[: len(given)]
    names = [parameter.name.rstrip("_") for parameter in given]
    if names != [name.rstrip("_") for name in wanted]:
        raise ConfigError(
            f"lowering {function.__name__} of {overload} takes {names}, the schema {wanted}",
            hint="name and order the parameters as the schema does",
        )


def lookup(overload: Any) -> Lowering | None:
    """Return the lowering of `overload`, or None. Loads the table at first use."""
    load()
    return _users.get(overload) or _table.get(overload) or _control.get(overload)


def users_lowering(overload: Any) -> Lowering | None:
    """Return the lowering that a user has registered for `overload`, or None."""
    return _users.get(overload)


def set_users(
    overload: OpOverload, function: Callable[..., Any] | None, when: When | None, digest: str
) -> None:
    """Put a user's lowering into the table in front of ours; None: take it out."""
    global changes
    _users.pop(overload, None)
    if function is not None:
        _users[overload] = Lowering(
            overload, function, when, promotes=False, revision=next(_revisions), digest=digest
        )
    changes += 1  # last: who sees it must find the new lowering


def revision(overload: Any) -> int:
    """Return the number of the user's lowering of `overload`, 0 where there is none.

    It says what an executable or a plan was made with.
    """
    lowering = _users.get(overload)
    return lowering.revision if lowering else 0


def lookup_number(target: Any) -> Lowering | None:
    """Return how a function of Python numbers is computed in a loop's body, or None."""
    load()
    return _numbers.get(target)


def table() -> dict[OpOverload, Lowering]:
    """Return our whole table of overloads, a copy."""
    load()
    return dict(_table)


_loaded = False


def load() -> None:
    """Import ops.control and every module of ops.aten, which fills the table. Idempotent."""
    global _loaded
    if not _loaded:
        # Here: they import jax.
        from torch_galley.ops import aten, control  # noqa: F401

        _loaded = True  # not before: half a table must not pass for the whole
