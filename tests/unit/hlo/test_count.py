"""Counts of HLO text, on a module in which each can be counted by hand."""

import pytest

from torch_galley.hlo.count import count, intermediate_bytes

MODULE = """\
HloModule jit_f, is_scheduled=true

FileNames
1 "f.py"

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p: f32[8,4]) -> f32[8] {
  %p = f32[8,4]{1,0} parameter(0)
  %c = f32[] constant(2)
  %cb = f32[8,4]{1,0} broadcast(%c), dimensions={}
  %m = f32[8,4]{1,0} multiply(%p, %cb)
  %zero = f32[] constant(0)
  ROOT %r = f32[8]{0} reduce(%m, %zero), dimensions={1}, to_apply=%add
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %v = f32[8]{0} get-tuple-element(%s), index=1
  %w = f32[8]{0} negate(%v), metadata={op_name="a = b(c)"}
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %w)
}

ENTRY %main (x: f32[4,8]) -> (f32[8], pred[8]) {
  %x = f32[4,8]{1,0} parameter(0)
  %flip = f32[8,4]{0,1} bitcast(%x)
  %copy.1 = f32[8,4]{1,0} copy(%flip)
  %fusion = f32[8]{0} fusion(%copy.1), kind=kLoop, calls=%fused
  %start = (s32[], f32[8]{0}) tuple(%n, %fusion)
  %loop = (s32[], f32[8]{0}) while(%start), condition=%cond, body=%body
  %out = f32[8]{0} get-tuple-element(%loop), index=1
  %p8 = pred[8]{0} compare(%out, /*index=1*/%fusion), direction=GT
  ROOT %result = (f32[8]{0}, pred[8]{0}) tuple(%out, %p8)
}
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("instructions", 5),  # copy, fusion, while, compare, and negate in the loop
        ("fused", 3),
        ("fusions", 1),
        ("written_bytes", 128 + 32 + 36 + 8 + 32),
        ("moves", 1),
        ("moved_bytes", 128),
        ("bitcasts", 1),
        ("constants", 2),
        ("constant_bytes", 8),
        ("on_constants", 1),  # the broadcast
    ],
)
def test_each_count(name, value):
    assert getattr(count(MODULE), name) == value


def test_intermediate_bytes():
    assert intermediate_bytes(MODULE) == 128 + 32 + 36  # the comparison is a result


def test_text_without_percent_signs_counts_alike():
    assert count(MODULE.replace("%", "")) == count(MODULE)


def test_no_module():
    assert count("").instructions == intermediate_bytes("nothing") == 0
