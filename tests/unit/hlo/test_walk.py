"""Who reads what, what comes before it, and how computations are reached."""

import itertools

import pytest

from torch_galley import hlo
from torch_galley.core.errors import HloSyntaxError
from torch_galley.hlo import walk

MODULE = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
fused {
  p = f32[4] parameter(0)
  zero = f32[] constant(0)
  ROOT r = f32[] reduce(p, zero), dimensions={0}, to_apply=add
}
body { s = (f32[4]) parameter(0) ROOT t = (f32[4]) opt-barrier(s) }
cond { s = (f32[4]) parameter(0) ROOT t = pred[] constant(true) }
unused { ROOT p = f32[] parameter(0) }
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] negate(x)
  z = f32[4] add(x, y)
  alone = f32[4] tanh(x)
  one = f32[] fusion(z), kind=kLoop, calls=fused
  two = f32[] fusion(y), kind=kLoop, calls=fused
  start = (f32[4]) tuple(z)
  loop = (f32[4]) while(start), condition=cond, body=body
  ROOT out = (f32[], f32[], (f32[4])) tuple(one, two, loop)
}
"""


@pytest.fixture(scope="module")
def module():
    return hlo.parse(MODULE)


def test_users(module):
    found = walk.users(module.entry)
    assert [one.name for one in found["x"]] == ["y", "z", "alone"]
    assert [one.name for one in found["out"]] == []
    doubled = hlo.parse("e { p = f32[] parameter(0) ROOT a = f32[] add(p, q) }")
    assert {name: len(many) for name, many in walk.users(doubled.entry).items()} == {"p": 1, "a": 0}


def test_ancestors_and_descendants(module):
    assert walk.ancestors(module.entry, "one") == {"x", "y", "z"}
    assert walk.ancestors(module.entry, "one", "alone") == {"x", "y", "z"}
    assert walk.descendants(module.entry, "start") == {"loop", "out"}
    assert walk.descendants(module.entry, "nothing") == set()


def test_each_is_the_others_inverse(xla_texts):
    for text in xla_texts.values():
        for computation in hlo.parse(text).computations:
            for one in list(computation)[:20]:
                for name in walk.ancestors(computation, one.name):
                    assert one.name in walk.descendants(computation, name)


def test_order_keeps_what_is_in_order(xla_texts):
    for text in xla_texts.values():
        for computation in hlo.parse(text).computations:
            assert walk.order(computation) == computation.instructions


def test_order_of_any_permutation_is_one():
    lines = [
        "p = f32[] parameter(0)",
        "a = f32[] tanh(p)",
        "b = f32[] add(a, p)",
        "c = f32[] add(b, a)",
    ]
    for some in itertools.permutations(lines):
        found = walk.order(hlo.parse("e { " + " ".join(some) + " }").entry)
        assert [one.name for one in found] == ["p", "a", "b", "c"]


def test_a_ring_has_no_order():
    module = hlo.parse("e { p = f32[] tanh(a) a = f32[] tanh(b) b = f32[] tanh(a) }")
    with pytest.raises(HloSyntaxError, match="in e, b needs a needs b") as error:
        walk.order(module.entry)
    assert error.value.facts["names"] == ["a", "b"]


def test_calls(module):
    assert [(str(one), one.callee) for one in walk.calls(module.entry)] == [
        ("calls of one in main", "fused"),
        ("calls of two in main", "fused"),
        ("condition of loop in main", "cond"),
        ("body of loop in main", "body"),
    ]


def test_what_is_reached_and_how(module):
    found = walk.reached(module)
    assert set(found) == {"main", "fused", "add", "cond", "body"}
    assert next(iter(found)) == "main"
    assert [*found].index("fused") < [*found].index("add")
    assert {name for name, one in found.items() if one.fused} == {"fused", "add"}
    assert {name for name, one in found.items() if one.applied} == {"add"}
    assert [one.instruction.name for one in found["fused"].calls] == ["one", "two"]


def test_chains(module):
    def names(computation):
        ways = walk.chains(module, computation)
        return [[call.instruction.name for call in way] for way in ways]

    assert names("main") == [[]]
    assert names("add") == [["one", "r"], ["two", "r"]]
    assert names("body") == [["loop"]]
    assert names("unused") == names("nothing") == []


def test_callers_in_xlas_modules_come_first(xla_texts):
    for text in xla_texts.values():
        found = walk.reached(hlo.parse(text))
        seen = set()
        for name, one in found.items():
            assert all(call.caller in seen for call in one.calls)
            assert next(walk.chains(hlo.parse(text), name)) is not None
            seen.add(name)


def test_a_ring_of_calls_ends():
    module = hlo.parse(
        "a { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=b }"
        "b { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=a }"
        "ENTRY e { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=a }"
    )
    assert [*walk.reached(module)] == ["e", "a", "b"]
    assert len([*walk.chains(module, "b")]) == 1


def test_calls_that_double_at_each_depth_take_no_time():
    """Written out, the innermost is there 2**60 times."""
    line = (
        "f{} {{ p = f32[] parameter(0) a = f32[] call(p), to_apply=f{} "
        "ROOT b = f32[] call(a), to_apply=f{} }}"
    )
    text = "f0 { ROOT p = f32[] parameter(0) }\n"
    text += "\n".join(line.format(i + 1, i, i) for i in range(60))
    module = hlo.parse(text)
    assert len(walk.reached(module)) == 61
    assert len(next(walk.chains(module, "f0"))) == 60
