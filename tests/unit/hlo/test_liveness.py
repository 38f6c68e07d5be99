"""What is alive when: by hand on small programs, and against XLA's own on larger ones."""

import jax
import jax.numpy as jnp
import pytest

from torch_galley import hlo
from torch_galley.core.errors import HloSyntaxError
from torch_galley.hlo.liveness import liveness


def found(*lines, computations="", head=""):
    body = "\n".join(lines)
    return liveness(
        hlo.parse(f"HloModule m, is_scheduled=true{head}\n{computations}\nENTRY e {{\n{body}\n}}")
    )


def bytes_of(one):
    return [step.nbytes for step in one.steps]


def test_a_value_is_alive_to_its_last_use():
    one = found(
        "p = f32[25]{0} parameter(0)",
        "a = f32[25]{0} reverse(p), dimensions={0}",
        "b = f32[50]{0} concatenate(a, a), dimensions={0}",
        "ROOT c = f32[25]{0} slice(b), slice={[0:25]}",
    )
    assert bytes_of(one) == [100, 200, 400, 400]
    assert one.peak == 400
    assert one.steps[one.peak_step].instruction.name == "b"
    assert [value.names for value in one.at(one.peak_step)] == [("b",), ("p",), ("a",)]
    assert [(value.kind, value.ranges) for value in one.values] == [
        ("parameter", ((0, 3),)),
        ("temporary", ((1, 2),)),
        ("temporary", ((2, 3),)),
        ("result", ((3, 3),)),
    ]
    assert one.peak_of("temporary") == 300
    assert one.peak_of("constant") == 0


def test_what_shows_memory_takes_none():
    one = found(
        "p = (f32[25]{0}, f32[5,5]{1,0}) parameter(0)",
        "a = f32[25]{0} get-tuple-element(p), index=0",
        "b = f32[5,5]{1,0} bitcast(a)",
        "t = (f32[5,5]{1,0}, f32[25]{0}) tuple(b, a)",
        "ROOT o = (f32[5,5]{1,0}, f32[25]{0}) opt-barrier(t)",
    )
    assert bytes_of(one) == [200] * 5
    assert one.values[0].names == ("p", "a", "b", "t", "o")


def test_an_elementwise_result_takes_the_place_of_what_nobody_reads_later():
    lines = [
        "p = f32[25]{0} parameter(0)",
        "a = f32[25]{0} reverse(p), dimensions={0}",
        "b = f32[25]{0} negate(a)",
    ]
    assert found(*lines, "ROOT c = f32[25]{0} tanh(b)").peak == 200
    assert found(*lines, "ROOT c = f32[25]{0} add(b, a)").peak == 300
    assert found(*lines, "ROOT c = f32[25]{0} reverse(b), dimensions={0}").peak == 300
    assert found(*lines, "ROOT c = s32[25]{0} convert(b)").peak == 200
    assert found(*lines, "ROOT c = bf16[25]{0} convert(b)").peak == 250


@pytest.mark.parametrize(
    ("inside", "peak"),
    [
        ("ROOT r = f32[25]{0} negate(q)", 200),
        ("m = f32[25]{0} tanh(q) ROOT r = f32[25]{0} add(m, q)", 200),
        ("m = f32[25]{0} reverse(q), dimensions={0} ROOT r = f32[25]{0} add(m, q)", 300),
        ("i = s32[] constant(0) o = f32[1]{0} constant({1}) "
         "ROOT r = f32[25]{0} dynamic-update-slice(q, o, i)", 200),
    ],
)  # fmt: skip
def test_a_fusion_is_elementwise_if_all_in_it_is(inside, peak):
    one = found(
        "p = f32[25]{0} parameter(0)",
        "a = f32[25]{0} reverse(p), dimensions={0}",
        "ROOT b = f32[25]{0} fusion(a), kind=kLoop, calls=f",
        computations=f"f {{ q = f32[25]{{0}} parameter(0) {inside} }}",
    )
    assert one.peak == peak


LOOP = """
body {
  s = (f32[25]{0}, f32[25]{0}) parameter(0)
  x = f32[25]{0} get-tuple-element(s), index=0
  w = f32[25]{0} get-tuple-element(s), index=1
  big = f32[100]{0} concatenate(x, w, x, w), dimensions={0}
  y = f32[25]{0} slice(big), slice={[0:25]}
  ROOT t = (f32[25]{0}, f32[25]{0}) tuple(y, w)
}
cond {
  s = (f32[25]{0}, f32[25]{0}) parameter(0)
  ROOT c = pred[] custom-call(s), custom_call_target="again"
}
"""
IN_LOOP = (
    "p = f32[25]{0} parameter(0)",
    "q = f32[25]{0} parameter(1)",
    "a = f32[25]{0} copy(p)",
    "t = (f32[25]{0}, f32[25]{0}) tuple(a, q)",
    "l = (f32[25]{0}, f32[25]{0}) while(t), condition=cond, body=body",
    "ROOT o = f32[25]{0} get-tuple-element(l), index=0",
)


def test_what_a_loop_carries_has_one_place():
    one = found(*IN_LOOP, computations=LOOP)
    names = [step.instruction.name for step in one.steps]
    assert names == ["p", "q", "a", "t", "s", "c", "s", "x", "w", "big", "y", "t", "l", "o"]
    (carried,) = [value for value in one.values if value.kind == "result"]
    assert {"a", "x", "y", "l", "o"} <= set(carried.names)
    # After big is made nobody needs x, and y is not there yet; both touch big's step or the next.
    assert carried.ranges == ((2, 13),)
    assert one.peak == 200 + 100 + 400
    (kept,) = [value for value in one.values if "q" in value.names]
    assert kept.kind == "parameter"
    assert "w" in kept.names


def test_in_the_gap_what_a_loop_carries_is_not_alive():
    text = LOOP.replace(
        "y = f32[25]{0} slice(big), slice={[0:25]}",
        "n = f32[100]{0} reverse(big), dimensions={0}\n"
        "m = f32[100]{0} reverse(n), dimensions={0}\n"
        "y = f32[25]{0} slice(m), slice={[0:25]}",
    )
    one = found(*IN_LOOP, computations=text)
    (carried,) = [value for value in one.values if value.kind == "result"]
    assert carried.ranges == ((2, 9), (12, 15))
    assert one.peak == 200 + 800  # in n and m, without the carried one


def test_a_loop_that_still_reads_what_it_carries_needs_two_places():
    text = LOOP.replace("slice(big), slice={[0:25]}", "custom-call(x)").replace(
        "ROOT t = (f32[25]{0}, f32[25]{0}) tuple(y, w)",
        "z = f32[25]{0} custom-call(y, x)\n ROOT t = (f32[25]{0}, f32[25]{0}) tuple(y, w)",
    )
    one = found(*IN_LOOP, computations=text)
    (carried,) = [value for value in one.values if value.kind == "result"]
    assert "y" not in carried.names


def test_branches_do_not_need_each_others_values():
    one = found(
        "p = f32[25]{0} parameter(0)",
        "i = s32[] parameter(1)",
        "ROOT c = f32[25]{0} conditional(i, p, p), branch_computations={f, g}",
        computations="""
        f {
          x = f32[25]{0} parameter(0)
          a = f32[100]{0} concatenate(x, x, x, x), dimensions={0}
          ROOT b = f32[25]{0} slice(a), slice={[0:25]}
        }
        g {
          x = f32[25]{0} parameter(0)
          a = f32[50]{0} concatenate(x, x), dimensions={0}
          ROOT b = f32[25]{0} slice(a), slice={[0:25]}
        }""",
    )
    assert one.peak == 104 + 400 + 100
    (result,) = [value for value in one.values if value.kind == "result"]
    assert result.names == ("b", "c")
    assert result.ranges == ((4, 4), (7, 8))


def test_a_call_gives_on_what_it_is_given():
    one = found(
        "p = f32[25]{0} parameter(0)",
        "a = f32[25]{0} reverse(p), dimensions={0}",
        "ROOT c = f32[25]{0} call(a), to_apply=f",
        computations="f { x = f32[25]{0} parameter(0) "
        "ROOT y = f32[25]{0} reverse(x), dimensions={0} }",
    )
    assert one.peak == 300
    assert one.values[-1].names == ("y", "c")


def test_results_in_the_memory_of_arguments():
    lines = ("p = f32[25]{0} parameter(0)", "ROOT a = f32[25]{0} reverse(p), dimensions={0}")
    assert found(*lines).peak == 200
    one = found(*lines, head=", input_output_alias={ {}: (0, {}, may-alias) }")
    assert one.peak == 100
    assert [(value.names, value.kind) for value in one.values] == [(("p", "a"), "donated")]


def test_kernels_that_write_over_an_operand():
    one = found(
        "p = f32[5,5]{1,0} parameter(0)",
        "a = f32[5,5]{1,0} copy(p)",
        "c = (f32[5,5]{1,0}, s32[]) custom-call(a), custom_call_target=\"x\", "
        "output_to_operand_aliasing={{0}: (0, {})}",
        "ROOT o = f32[5,5]{1,0} get-tuple-element(c), index=0",
    )  # fmt: skip
    assert one.peak == 204


def test_what_runs_beside_others_holds_its_operands():
    one = found(
        "p = f32[25]{0} parameter(0)",
        "a = f32[25]{0} reverse(p), dimensions={0}",
        "s = (f32[25]{0}, f32[25]{0}, u32[]) copy-start(a)",
        "b = f32[100]{0} concatenate(p, p, p, p), dimensions={0}",
        "d = f32[25]{0} copy-done(s)",
        "ROOT t = (f32[100]{0}, f32[25]{0}) tuple(b, d)",
    )
    (held,) = [value for value in one.values if "a" in value.names]
    assert held.ranges == ((1, 4),)
    assert one.peak == 100 + 100 + 100 + 4 + 400


def test_constants_are_alive_throughout():
    one = found("p = f32[] parameter(0)", "c = f32[10] constant({...})", "ROOT n = f32[] negate(p)")
    assert bytes_of(one) == [44, 44, 48]


def test_text_and_json():
    one = found("p = f32[2500]{0} parameter(0)", "ROOT a = f32[2500]{0} reverse(p), dimensions={0}")
    assert str(one).splitlines() == [
        "forecast: at most 20,000 bytes, in step 2 of 2: a = f32[2500]{0} reverse in e",
        "           10,000  parameter  p in e, steps 1 to 2",
        "           10,000  result     a in e, steps 2 to 2",
    ]
    assert one.text(1).endswith("           10,000  1 smaller ones")
    said = one.to_json()
    assert said["peak_bytes"] == 20000
    assert said["values"][1] == {
        "names": ["a"],
        "computation": "e",
        "bytes": 10000,
        "kind": "result",
        "ranges": [[1, 1]],
    }


@pytest.mark.parametrize(
    "lines",
    [
        "a = f32[] negate(b) ROOT c = f32[] add(a, nothing)",
        "p = f32[] parameter(3) ROOT c = f32[] get-tuple-element(p), index=7",
        "p = f32[] parameter(0) ROOT c = f32[] while(p), condition=x, body=y",
        "ROOT c = f32[] while(), condition=x",
        "ROOT c = f32[] call(), to_apply=nothing",
        "ROOT c = f32[] copy-done()",
        "ROOT c = () tuple()",
    ],
)
def test_what_check_finds_wrong_does_not_end_it(lines):
    assert found(lines).peak >= 0


def test_rings_and_endless_nesting():
    text = "f {{ p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply={} }}"
    with pytest.raises(HloSyntaxError, match="e calls f calls f, and so on"):
        found("ROOT c = f32[] call(), to_apply=f", computations=text.format("f"))
    line = (
        "f{} {{ p = f32[] parameter(0) a = f32[] call(p), to_apply=f{} "
        "ROOT b = f32[] call(a), to_apply=f{} }}"
    )
    deep = "f0 { ROOT p = f32[] parameter(0) }" + "".join(
        line.format(i + 1, i, i) for i in range(101)
    )
    with pytest.raises(HloSyntaxError, match="nested more than 100 deep"):
        found("ROOT c = f32[] call(), to_apply=f101", computations=deep)
    with pytest.raises(HloSyntaxError, match="over 1,000,000 steps"):
        found("ROOT c = f32[] call(), to_apply=f30", computations=deep)


def _mlp(x, w):
    for _ in range(4):
        x = jnp.tanh(x @ w) + x
    return x


def _carries(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum(0)), x, None, length=5)


def _branching(x, w):
    return jax.lax.cond(x.sum() > 0, lambda x: jnp.sort(x @ w, axis=0), lambda x: x[::-1] @ w, x)


def _gradient(x, w):
    return jax.grad(lambda x: _mlp(x, w).sum())(x)


@pytest.mark.parametrize("function", [_mlp, _carries, _branching, _gradient])
@pytest.mark.parametrize("donated", [(), (0,)])
def test_it_is_near_what_xla_assigns(function, donated):
    """Within a fifth: XLA packs what is alive into memory, and its kernels need some, too."""
    x, w = jnp.ones((256, 256)), jnp.ones((256, 256))
    compiled = jax.jit(function, donate_argnums=donated).lower(x, w).compile()
    memory = compiled.memory_analysis()
    truth = memory.argument_size_in_bytes + memory.output_size_in_bytes
    truth += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    assert bool(donated) == bool(memory.alias_size_in_bytes)
    one = liveness(hlo.parse(compiled.as_text()))
    assert one.peak - one.peak_of("constant") == pytest.approx(truth, rel=0.2)
