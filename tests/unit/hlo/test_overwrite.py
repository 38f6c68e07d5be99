"""hlo.overwrite: which instructions of a scheduled module may write over what they still read."""

from __future__ import annotations

import pytest

from torch_galley.hlo.overwrite import overwritten

MODULE = """\
HloModule m, is_scheduled=true

%fused (p.0: f32[4,4], p.1: f32[4,4]) -> f32[4,4] {{
  %p.0 = f32[4,4]{{1,0}} parameter(0)
  %p.1 = f32[4,4]{{0,1}} parameter(1)
  ROOT %add.1 = f32[4,4]{{1,0}} add(%p.0, %p.1)
}}

%body (carried: (f32[4,4])) -> f32[4,4] {{
  %carried = (f32[4,4]{{1,0}}) parameter(0)
  %x.0 = f32[4,4]{{1,0}} get-tuple-element(%carried), index=0
  {body}
}}

ENTRY %main (a: f32[4,4]) -> f32[4,4] {{
  %a = f32[4,4]{{1,0}} parameter(0), metadata={{op_name="arrays[0] bitcast(%a)"}}
  %x = f32[4,4]{{1,0}} fusion(%a, %a), kind=kLoop, calls=%fused
  {entry}
}}
"""
SAME = "%t = f32[4,4]{0,1} bitcast(%x)\n  "
FUSED = "%y = f32[4,4]{1,0} fusion(%x, /*index=1*/%t), kind=kLoop, calls=%fused\n  "


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        (SAME + FUSED + "ROOT %z = f32[4,4]{1,0} negate(%y)", ["y"]),
        (SAME + "ROOT %y = f32[4,4]{1,0} fusion(%x, %t), kind=kLoop, calls=%fused", ["y"]),
        (SAME + "ROOT %y = f32[4,4]{1,0} add(%x, %t)", ["y"]),
        (
            SAME + "%s = f32[16]{0} bitcast(%t)\n  %u = f32[4,4]{1,0} bitcast(%s)\n  "
            "ROOT %y = (f32[2]{0}, f32[4,4]{1,0}) fusion(%u, %t), kind=kLoop, calls=%fused",
            ["y"],
        ),
        # x is read again, so its memory is not given away
        (SAME + FUSED + "ROOT %z = f32[4,4]{1,0} add(%y, %x)", []),
        (SAME + FUSED + "ROOT %z = (f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(%y, %x)", []),
        # one operand, twice
        (SAME + "ROOT %y = f32[4,4]{1,0} fusion(%x, %x), kind=kLoop, calls=%fused", []),
        # a result that does not fit
        (SAME + "ROOT %y = f32[4,8]{1,0} fusion(%x, %t), kind=kLoop, calls=%fused", []),
        (SAME + "ROOT %y = f64[4,4]{1,0} fusion(%x, %t), kind=kLoop, calls=%fused", []),
        # a caller's argument is never written
        (
            "%t = f32[4,4]{0,1} bitcast(%a)\n  "
            "ROOT %y = f32[4,4]{1,0} fusion(%a, %t), kind=kLoop, calls=%fused",
            [],
        ),
        # a library's kernel, which has memory of its own for its result
        (SAME + "ROOT %y = f32[4,4]{1,0} dot(%x, %t), lhs_contracting_dims={1}", []),
    ],
)
def test_what_may_be_written_over(entry: str, wanted: list[str]) -> None:
    body = "ROOT %copy = f32[4,4]{1,0} copy(%x.0)"
    assert overwritten(MODULE.format(entry=entry, body=body)) == wanted


def test_what_a_loop_carries_may_be_written_over() -> None:
    body = (SAME + "ROOT %y = f32[4,4]{1,0} add(%x, %t)").replace("%x", "%x.0")
    assert overwritten(MODULE.format(entry="ROOT %z = f32[4,4]{1,0} copy(%x)", body=body)) == ["y"]
