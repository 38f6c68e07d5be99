"""FLOPs and transcendentals of one instruction, by the rules of XLA's own analysis.

Note [Rules that are XLA's and not nature's]: totals should be those that XLA gives, so these hold.
A comparison, a select or a conversion is a FLOP an element, a tanh none but a transcendental, and
a complex multiply is one FLOP. Sorting n elements is n log2 n, however they are arranged. Of a
gather and a copy there are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_galley.hlo import attribute
from torch_galley.hlo.convflops import convolution
from torch_galley.hlo.op import Cost, Op, at
from torch_galley.hlo.shape import Array


def _opcodes(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TRANSCENDENTAL = _opcodes(
    """acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log
    log-plus-one logistic power rng rng-bit-generator rsqrt sine sinh sqrt tan tanh"""
)
"""Opcodes of which an element of the result is a transcendental."""
_ELEMENTWISE = _opcodes(
    """abs add all-reduce all-reduce-start and bitcast-convert ceil clamp compare complex convert
    count-leading-zeros divide floor imag is-finite maximum minimum mulhi multiply negate not or
    popcnt real reduce-precision remainder round-nearest-afz round-nearest-even select shift-left
    shift-right-arithmetic shift-right-logical sign stochastic-convert subtract xor"""
)
"""Opcodes of which an element of the result is a FLOP."""
_MOVING = _opcodes(
    """add-dependency after-all all-gather all-gather-done all-gather-start all-reduce-done
    all-to-all async-done async-update batch-norm-grad batch-norm-inference batch-norm-training
    bitcast broadcast collective-broadcast collective-permute collective-permute-done
    collective-permute-start concatenate constant copy copy-done copy-start domain dynamic-reshape
    dynamic-slice dynamic-update-slice gather get-dimension-size get-tuple-element infeed iota
    opt-barrier outfeed pad parameter partition-id ragged-all-to-all recv recv-done reduce-scatter
    replica-id reshape reverse rng-get-and-update-state send send-done set-dimension-size slice
    topk transpose tuple"""
)
"""Opcodes without FLOPs."""


def flops(op: Op) -> Cost:
    """Return FLOPs and transcendentals of an instruction, without bytes.

    Example: of `f32[8,4] dot(f32[8,16], f32[16,4])` it is `Cost(flops=1024)`
    """
    opcode = op.instruction.opcode
    if opcode in _TRANSCENDENTAL:
        return Cost(transcendentals=op.shape.elements)
    if opcode in _ELEMENTWISE:
        return Cost(op.shape.elements)
    if opcode in _MOVING:
        return Cost()
    if opcode == "custom-call":
        return Cost(known=False)
    if rule := _FLOPS.get(opcode):
        return Cost(rule(op))
    if rule := _RUNS.get(opcode):
        made = sum((cost.times(count) for cost, count in rule(op)), Cost())
        return Cost(made.flops, made.transcendentals, known=made.known)
    return Cost(op.shape.elements, known=False)


def _dot(op: Op) -> int:
    width = math.prod(
        at(op.operand(0).sizes, dim) for dim in attribute.ints(op.said("lhs_contracting_dims"))
    )
    return 2 * op.result.elements * width


def _ragged_dot(op: Op) -> int:
    """XLA takes as many of the result's first dimensions away as there are dimensions of groups."""
    groups = len(attribute.ints(op.said("rhs_group_dims")))
    rest = math.prod(op.result.sizes[:groups])
    return _dot(op) // rest if rest else 0


def _fft(op: Op) -> int:
    steps = math.prod(n.bit_length() - 1 for n in attribute.ints(op.said("fft_length")))
    return 8 * steps * op.operand(0).elements


def _sort(op: Op) -> int:
    elements = op.operand(0).elements
    return elements * (elements - 1).bit_length() if elements else 0


def _triangular_solve(op: Op) -> int:
    return 2 * at(op.operand(0).sizes, -1) * op.operand(1).elements


def _cholesky(op: Op) -> int:
    return at(op.operand(0).sizes, -1) * op.operand(0).elements // 3


def _convolution(op: Op) -> int:
    return convolution(op.instruction.attributes, op.operand(0), op.operand(1), op.result)


_FLOPS: dict[str, Callable[[Op], int]] = {
    "dot": _dot,
    "scaled-dot": _dot,
    "ragged-dot": _ragged_dot,
    "convolution": _convolution,
    "fft": _fft,
    "sort": _sort,
    "triangular-solve": _triangular_solve,
    "cholesky": _cholesky,
}

_Runs = list[tuple[Cost, int]]
"""Costs of computations, and how often an instruction runs each."""


def _map(op: Op) -> _Runs:
    return [(op.called("to_apply")[0], op.result.elements)]


def _reduce(op: Op) -> _Runs:
    return [(op.called("to_apply")[0], op.operand(0).elements - op.result.elements)]


def _scan(op: Op) -> _Runs:
    carries = attribute.ints(op.said("num_carries")) or (1,)
    carry = op.operand(max(len(op.operands) - carries[0], 0))
    return [(op.called("to_apply")[0], carry.elements)]


def _scatter(op: Op) -> _Runs:
    updates = op.operand(len(op.operands) // 2 + 1)
    return [(op.called("to_apply")[0], updates.elements)]


def _reduce_window(op: Op) -> _Runs:
    window = attribute.window(op.said("window"), 0)
    result = op.result
    runs = (math.prod(window.size) - 1) * result.elements
    moving = [dim for dim, size in enumerate(window.size) if size != 1]
    padded = [
        dim for dim, pads in enumerate(zip(window.low, window.high, strict=True)) if any(pads)
    ]
    if moving == padded and len(moving) == 1 and isinstance(op.shape, Array):
        low, size = window.low[moving[0]], window.size[moving[0]]
        width = at(result.sizes, moving[0])
        # Every window holds the whole dimension: a reduction, broadcast back.
        if window.high[moving[0]] == low == width - 1 > 0 and size == 2 * low + 1:
            runs = result.elements // width + width - 1
    return [(op.called("to_apply")[0], runs)]


def _select_and_scatter(op: Op) -> _Runs:
    sources = op.operand(1).elements
    window = math.prod(attribute.window(op.said("window"), 0).size)
    return [
        (op.called("select")[0], sources * (window - 1)),
        (op.called("scatter")[0], sources),
    ]


_RUNS: dict[str, Callable[[Op], _Runs]] = {
    "map": _map,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scan": _scan,
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
}

KNOWN = frozenset({*_TRANSCENDENTAL, *_ELEMENTWISE, *_MOVING, *_FLOPS, *_RUNS, "custom-call"})
"""Opcodes that there is a rule for."""
