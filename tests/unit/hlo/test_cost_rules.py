"""Costs of modules written by hand, in which each can be counted."""

import pytest

from torch_galley import hlo
from torch_galley.hlo.cost import Cost, cost

_ADD = """add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def _costs(instruction, *shapes, more=_ADD):
    """The cost of the instruction `r`, whose operands p0, p1, ... have these shapes."""
    parameters = [f"p{i} = {kind} parameter({i})" for i, kind in enumerate(shapes)]
    text = "\n".join([more, "ENTRY e {", *parameters, f"ROOT r = {instruction}", "}"])
    found = cost(hlo.parse(text))
    assert found.unknown == ()
    assert found.total == found.instructions["e", "r"]  # parameters cost nothing
    return found.total


_SINGLE = {
    # What jax on a CPU doesn't write, or writes only as part of more: FLOPs, transcendentals,
    # bytes read and written, each as XLA 0.10.2 says.
    "f32[4] acosh(p0)": (("f32[4]",), (0, 4, 16, 16)),
    "f32[<=4] tanh(p0)": (("f32[<=4]",), (0, 4, 20, 20)),
    "f32[?,8] negate(p0)": (("f32[?,8]",), (0, 0, 8, 8)),
    "s4[5] negate(p0)": (("s4[5]",), (5, 0, 5, 5)),
    "s4[5]{0:E(4)} negate(p0)": (("s4[5]{0:E(4)}",), (5, 0, 3, 3)),
    "(f32[4], f32[7]) copy(p0)": (("(f32[4], f32[7])",), (0, 0, 16, 44)),
    "(f32[4], f32[4]) tuple(p0, p0)": (("f32[4]",), (0, 0, 0, 16)),
    "f32[8,4]{0,1} transpose(p0), dimensions={1,0}": (("f32[4,8]{1,0}",), (0, 0, 0, 0)),
    "f32[8,4]{1,0} transpose(p0), dimensions={1,0}": (("f32[4,8]{1,0}",), (0, 0, 128, 128)),
    "f32[8,2,5]{1,2,0} transpose(p0), dimensions={1,0,2}": (
        ("f32[2,8,5]{0,2,1}",),
        (0, 0, 0, 0),
    ),
    "f32[8,32] ragged-dot(p0, p1, p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
    "lhs_ragged_dims={0}, rhs_group_dims={0}": (
        ("f32[8,16]", "f32[4,16,32]", "s32[4]"),
        (1024, 0, 8720, 1024),
    ),
    "f32[8,32] scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={1}, rhs_contracting_dims={0}": (
        ("f32[8,16]", "f32[16,32]", "f32[8,1]", "f32[1,32]"),
        (8192, 0, 2720, 1024),
    ),
    "f32[3,2] triangular-solve(p0, p1), lower=true": (
        ("f32[3,3]", "f32[3,2]"),
        (36, 0, 42, 24),
    ),
    "f16[3,3] cholesky(p0), lower=true": (("f16[3,3]",), (9, 0, 9, 9)),
    "c64[8,3] fft(p0), fft_type=RFFT, fft_length={5}": (("f32[8,5]",), (640, 0, 160, 192)),
    "(f32[8,4], s32[8,4]) topk(p0), k=4, largest=true": (("f32[8,16]",), (0, 0, 512, 256)),
    "f32[4] map(p0, p0), dimensions={0}, to_apply=add": (("f32[4]",), (4, 0, 32, 16)),
    "f32[3,2] reduce-window(p0, p1), window={size=2x1 stride=2x1}, to_apply=add": (
        ("f32[6,2]", "f32[]"),
        (6, 0, 52, 24),
    ),
    "f32[4,5] reduce-window(p0, p1), window={size=7x1 pad=3_3x0_0}, to_apply=add": (
        ("f32[4,5]", "f32[]"),
        (8, 0, 84, 80),
    ),
    "(f32[8,16], f32[8,16]) all-reduce(p0, p0), to_apply=add": (
        ("f32[8,16]",),
        (256, 0, 1024, 1024),
    ),
    "(f32[2,4], f32[4], f32[4]) batch-norm-training(p0, p1, p1), epsilon=1, feature_index=1": (
        ("f32[2,4]", "f32[4]"),
        (0, 0, 64, 64),
    ),
    "f32[4] call(p0, p0), to_apply=add": (("f32[4]",), (1, 0, 8, 4)),
    "((f32[4], f32[4]), f32[], u32[]) async-start(p0, p0), calls=add": (
        ("f32[4]",),
        (1, 0, 8, 4),
    ),
    "((f32[4]), f32[4], u32[]) negate-start(p0)": (("f32[4]",), (4, 0, 16, 16)),
    "f32[4] negate-done(p0)": (("((f32[4]), f32[4], u32[])",), (0, 0, 24, 16)),
    "((f32[4], s32[2]), token[]) infeed(p0)": (("token[]",), (0, 0, 0, 24)),
    "token[] outfeed(p0, p1), outfeed_shape=f32[4]": (("f32[4]", "token[]"), (0, 0, 16, 0)),
    "u32[] partition-id()": ((), (0, 0, 0, 4)),
}


@pytest.mark.parametrize("instruction", _SINGLE)
def test_single_instructions(instruction):
    shapes, (flops, transcendentals, read, written) = _SINGLE[instruction]
    expected = Cost(flops, transcendentals, read + written, written)
    assert _costs(instruction, *shapes) == expected
    assert expected.read == read


def _fused(inside, *shapes, result="f32[16,4]", kind="kLoop", more=_ADD):
    parameters = [f"q{i} = {kind} parameter({i})" for i, kind in enumerate(shapes)]
    computation = "\n".join([more, "fused {", *parameters, *inside, "}", ""])
    operands = ", ".join(f"p{i}" for i in range(len(shapes)))
    instruction = f"{result} fusion({operands}), kind={kind}, calls=fused"
    found = _costs(instruction, *shapes, more=computation)
    return found.read, found.written


_ROWS, _PLACE = "f32[16,4]", "s32[]"


def test_a_fusion_reads_slices_and_writes_updates():
    row = "row = f32[1,4] dynamic-slice(q0, q1, q1), dynamic_slice_sizes={1,4}"
    update = "f32[16,4] dynamic-update-slice(q0, row, q1, q1)"
    place = 4
    assert _fused([row, f"ROOT u = {update}"], _ROWS, _PLACE) == (16 + place, 16)
    # As one result of two; another user, which needs all.
    two = [row, f"u = {update}", "ROOT t = (f32[16,4], f32[1,4]) tuple(u, row)"]
    assert _fused(two, _ROWS, _PLACE, result="(f32[16,4], f32[1,4])") == (16 + place, 16 + 16)
    all_of_it = [row, f"u = {update}", "ROOT n = f32[16,4] add(u, q0)"]
    assert _fused(all_of_it, _ROWS, _PLACE) == (16 + 256 + place, 256)
    slices = [
        "a = f32[2,4] slice(q0), slice={[0:2], [0:4]}",
        "b = f32[2,4] slice(q0), slice={[8:10], [0:4]}",
        "ROOT n = f32[2,4] add(a, b)",
    ]
    assert _fused(slices, _ROWS, result="f32[2,4]") == (64, 32)


def test_a_fusion_reads_an_operand_once_for_all_but_broadcasts():
    assert _fused(["n = f32[16,4] negate(q0)", "ROOT r = f32[16,4] add(n, q0)"], _ROWS) == (
        256,
        256,
    )
    rows = [
        "a = f32[16,4] broadcast(q0), dimensions={1}",
        "b = f32[16,4] broadcast(q0), dimensions={1}",
        "ROOT r = f32[16,4] add(a, b)",
    ]
    assert _fused(rows, "f32[4]") == (32, 256)
    assert _fused(["ROOT r = f32[16,4] iota(), iota_dimension=0"], _ROWS) == (0, 256)


def test_a_fusion_reads_constants_that_are_no_scalars():
    inside = [
        "one = f32[] constant(1)",
        "some = f32[4] constant({1, 2, 3, 4})",
        "a = f32[16,4] broadcast(one), dimensions={}",
        "b = f32[16,4] broadcast(some), dimensions={1}",
        "ROOT r = f32[16,4] add(a, b)",
    ]
    assert _fused(inside) == (16, 256)


def test_a_fusion_reads_parts_of_a_tuple():
    """A part that nobody takes costs XLA the table of pointers."""
    part = "g = f32[16,4] get-tuple-element(q0), index=0"
    inside = [part, "ROOT n = f32[16,4] negate(g)"]
    assert _fused(inside, "(f32[16,4], f32[3])") == (256 + 16, 256)


def test_a_fusion_in_a_fusion():
    more = "inner {\ni = f32[16,4] parameter(0)\nROOT n = f32[16,4] negate(i)\n}\n"
    call = "f = f32[16,4] fusion(q0), kind=kLoop, calls=inner"
    sliced = "ROOT s = f32[2,4] slice(f), slice={[0:2], [0:4]}"
    assert _fused([call, sliced], _ROWS, result="f32[2,4]", more=more) == (32, 32)
    assert _fused([call, "ROOT n = f32[16,4] add(f, f)"], _ROWS, more=more) == (256, 256)


def test_a_fusion_of_a_kernel_is_its_gather_or_scatter():
    gather = (
        "g = f32[3,4] gather(q0, q1), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
    )
    inside = [gather, "ROOT n = f32[3,4] tanh(g)"]
    moved = _fused(inside, _ROWS, "s32[3,1]", result="f32[3,4]", kind="kCustom")
    assert moved == (48 + 12, 48)
    scatter = "ROOT s = f32[16,4] scatter(q0, q1, q2), to_apply=add"
    moved = _fused([scatter], _ROWS, "s32[3,1]", "f32[3,4]", kind="kCustom")
    assert moved == (48 + 48 + 12, 48)


def test_a_condition_runs_once_more_than_a_body():
    text = """
cond { s = f32[4] parameter(0) ROOT c = pred[] custom-call(s), custom_call_target="stop" }
body { t = f32[4] parameter(0) ROOT n = f32[4] negate(t) }
ENTRY e {
  p = f32[4] parameter(0)
  ROOT w = f32[4] while(p), condition=cond, body=body,
      backend_config={"known_trip_count":{"n":"7"}}
}"""
    found = cost(hlo.parse(text))
    assert (found.flops, found.bytes) == (4 - 1, 32 - 1)  # as XLA, -1 for the call
    assert found.with_loops == Cost(7 * 4, 0, 7 * 32 + 8 * 17, 7 * 16 + 8 * 1, known=False)
    assert found.instructions["e", "w"] == Cost(4, 0, 32 + 17, 16 + 1, known=False)
    assert found.instructions["body", "n"].known


def test_branches_cost_the_most_of_each():
    text = """
first { x = f32[4] parameter(0) ROOT y = f32[4] tanh(x) }
second { u = f32[4] parameter(0) v = f32[4] negate(u) ROOT w = f32[4] add(u, v) }
ENTRY e {
  n = s32[] parameter(0)
  p = f32[4] parameter(1)
  ROOT r = f32[4] conditional(n, p, p), branch_computations={first, second}
}"""
    assert cost(hlo.parse(text)).total == Cost(8, 4, 80, 32)


def test_what_nobody_knows_is_named():
    text = """
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] frobnicate(p, p), strength=11
  b = f32[4] custom-call(a), custom_call_target="theirs"
  ROOT c = f32[4] frobnicate(b)
}"""
    found = cost(hlo.parse(text))
    assert found.unknown == ("frobnicate",)
    assert found.instructions["e", "a"] == Cost(4, 0, 48, 16, known=False)
    assert found.instructions["e", "b"] == Cost(0, 0, 32, 16, known=False)
    assert found.flops == 4 + 4 - 1
    assert found.with_loops == Cost(8, 0, 48 + 32 + 32, 48, known=False)


@pytest.mark.parametrize(
    "instruction",
    [
        "f32[4] add(nowhere, nowhere)",
        "f32[4] fusion(p), kind=kLoop, calls=nowhere",
        "f32[4] fusion(p), kind=kLoop, calls=e",
        "f32[4] fusion(p)",
        "f32[4] call(p), to_apply=e",
        "f32[4] while(p), condition=nowhere, body=e",
        "f32[4] conditional(p)",
        "f32[4] reduce(), to_apply=nowhere",
        "f32[4] dot(p, p), lhs_contracting_dims={7}",
        "f32[4] convolution(p)",
        "f32[4] convolution(p, p), dim_labels=b01f_01io->b01f, window={size=0x3 stride=0x0}",
        "f32[4] convolution(p, p), feature_group_count=0, dim_labels=bf_io->bf",
        "f32[0] reduce-window(p), window={size=-1 pad=-1_-1}",
        "f32[4] transpose(p), dimensions={5,6}",
        "f32[4] gather()",
        "f32[4] scatter()",
        "f32[4] dynamic-update-slice(p)",
        "f32[4] fft(p), fft_length={0}",
        "f32[] sort()",
        "f32[4] select-and-scatter(p)",
        "f32[4] scan(), num_carries=9",
        "() infeed()",
    ],
)
def test_modules_that_are_wrong_cost_something(instruction):
    found = cost(hlo.parse(f"ENTRY e {{ p = f32[4] parameter(0) ROOT r = {instruction} }}"))
    assert set(found.instructions) == {("e", "p"), ("e", "r")}


def test_calls_may_be_nested_deeply():
    """Deeper than Python's stack."""
    calls = [f"c{i} {{ ROOT r = f32[] call(), to_apply=c{i + 1} }}" for i in range(3000)]
    end = "c3000 { p = f32[] parameter(0) ROOT r = f32[] negate(p) }"
    entry = "ENTRY e { ROOT r = f32[] call(), to_apply=c0 }"
    assert cost(hlo.parse("\n".join([*calls, end, entry]))).flops == 1
