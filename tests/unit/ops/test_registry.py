"""The table of lowerings: its two forms, and what may not enter it."""

import inspect

import pytest
import torch

from torch_galley.core.errors import ConfigError
from torch_galley.ops.registry import lowers, rows, table

aten = torch.ops.aten


def test_at_least_half_are_rows():
    lowerings = list(table().values())
    assert sum(lowering.row for lowering in lowerings) >= len(lowerings) / 2


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ((aten.neg.default, lambda x: x), "has a lowering already"),
        ((aten.neg_.default, lambda x: x), "writes its arguments"),
        ((aten.cumulative_trapezoid.x, lambda y: y), "can't be called with"),
        ((aten.std.correction, lambda x, dim, *, correction, keepdim: x), "can't be called with"),
    ],
)
def test_a_row_is_refused(pair, said):
    with pytest.raises(ConfigError, match=said):
        rows(pair)


def test_a_body_names_the_schemas_arguments():
    with pytest.raises(ConfigError, match="takes"):
        lowers(aten.cumulative_trapezoid.x)(lambda y, z: y)


def _plain(default):
    """Return a default in one spelling: one number for all dimensions, int64 by its number."""
    if default is torch.int64:
        return 4
    if isinstance(default, list | tuple):
        return default[0] if default and len(set(default)) == 1 else list(default)
    return default


def _defaults(lowering):
    """Yield the name of each argument that has a default in both places, and the two."""
    parameters = list(inspect.signature(lowering.function).parameters.values())
    positional = [p for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    named = {p.name: p for p in parameters}
    arguments = lowering.overload._schema.arguments
    pairs = [(a, named.get(a.name)) for a in arguments if a.kwarg_only]
    pairs += zip([a for a in arguments if not a.kwarg_only], positional, strict=False)
    for argument, parameter in pairs:
        if parameter and argument.has_default_value() and parameter.default is not parameter.empty:
            yield argument.name, _plain(parameter.default), _plain(argument.default_value)


def test_defaults_are_the_schemas():
    """A graph leaves out arguments that are the schema's default."""
    wrong = [
        (str(lowering.overload), name)
        for lowering in table().values()
        for name, given, wanted in _defaults(lowering)
        if given != wanted
    ]
    assert wrong == []
