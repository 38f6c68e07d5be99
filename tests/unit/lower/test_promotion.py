"""torch's promotion of mixed operands: tensors, tensors without a dimension, Python numbers."""

from __future__ import annotations

import itertools

import pytest
import torch

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = [3, 2.5]

OPERATORS = {
    "add": torch.add,
    "div": torch.div,
    "eq": torch.eq,
    "pow": torch.pow,
    "where": lambda x, y: torch.where(torch.tensor([True, False]), x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "floor_divide": torch.floor_divide,
}


def operands() -> list[tuple[object, object]]:
    tensors = [torch.tensor([1, 2]).to(dtype) for dtype in DTYPES]
    others = [*tensors, *(tensor[1] for tensor in tensors), *NUMBERS]
    return list(itertools.product(tensors, others))


@pytest.mark.parametrize("name", OPERATORS)
def test_mixed_operands(same, name):
    operator, taken = OPERATORS[name], []
    for pair in operands():
        try:
            operator(*pair)
        except (RuntimeError, TypeError):  # not a pair for this operator
            continue
        taken.append(pair)
    assert taken

    def all_of_them(pairs):
        return [operator(x, y) for x, y in pairs]

    same(all_of_them, taken)
