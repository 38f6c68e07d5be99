"""Text to values and back: what XLA writes, what people write, and what is neither."""

import random

import pytest

from torch_galley import hlo
from torch_galley.core.errors import HloSyntaxError

BY_HAND = """
// a cluster, as one would write it on paper
ENTRY %main (a: f32[4,16], b: f32[4,16]) -> f32[4,16] {
  %a = f32[4,16] parameter(0)
  %b = f32[4,16] parameter(1)   /* the second */
  %add.0 = f32[4,16] add(%a, %b)
  ROOT %tanh.1 = f32[4,16] tanh(f32[4,16] %add.0)
}
"""


def test_what_xla_writes_comes_out_as_it_was(xla_texts):
    for name, text in xla_texts.items():
        assert str(hlo.parse(text)) == text, name


def test_what_people_write_is_read():
    module = hlo.parse(BY_HAND)
    assert [one.opcode for one in module.entry] == ["parameter", "parameter", "add", "tanh"]
    assert module.entry["add.0"].operands == ("a", "b")
    assert module.entry.root.name == "tanh.1"
    assert [str(one) for one in module.entry.root.operand_shapes] == ["f32[4,16]"]
    assert str(hlo.parse(str(module))) == str(module)


@pytest.mark.parametrize(
    "line",
    [
        'c = f32[2] custom-call(a), custom_call_target="a, \\"b\\" {", backend_config={x = 1}',
        "c = (f32[2], (s32[], token[])) tuple(a, t)",
        "c = f32[<=8,?]{1,0:T(8,128)S(1)} copy(a)",
        "c = f32[2] all-reduce(a), replica_groups=[2,4]<=[8]T(1,0), to_apply=%add",
        "c = f32[2] all-reduce(a), replica_groups=mesh['x'=4,'y'=1] {'x'}, to_apply=%add",
        'c = f32[2] copy(a), sharding={devices=[2,1]0,1}, metadata={op_name="a/{b}"}',
        'c = ((f32[2]), f32[2], s32[]) async-start(a), calls=%f, async_execution_thread="x"',
        "c = c64[2] constant({(1, 2), (nan, -inf)})",
        "c = s8[2,2] constant({ { 1, 2 },\n{ 3, 4 } })",
        "c = f32[] constant({...})",
        "c = f32[2] convolution(a, b), window={size=3 pad=-1_1}, dim_labels=b0f_0io->b0f",
        "c = (f32[2]{0}, u32[]) copy-start(a), control-predecessors={%a, %b}",
        "c = u32[2] rng-get-and-update-state(), delta=1",
    ],
)
def test_lines_of_many_kinds(line):
    text = f"ENTRY %e {{ %{line} }}"
    module = hlo.parse(text)
    assert str(hlo.parse(str(module))) == str(module)
    assert line.split(" = ")[1].split("(")[0] in str(module)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected a computation"),
        ("ENTRY e {", "line 1, column 7: e has no closing brace"),
        ("ENTRY e { }", "e has no instructions"),
        ("ENTRY e { a = f31[4] parameter(0) }", "column 15: f31 is no element type"),
        ("ENTRY e { a = f32[4 parameter(0) }", "a comma or the end of the sizes"),
        ("ENTRY e { a = f32[4]{1} parameter(0) }", "should name each of 0 to 0 once"),
        ("ENTRY e { a = f32[4] parameter(x) }", "expected the parameter's number"),
        ("ENTRY e { a = f32[4] add(a b) }", "a comma, or the end of the operands"),
        ("ENTRY e {\n  a = f32[4] add(a, b\n}", "line 3, column 1"),
        ("ENTRY e { a = f32[4] add(a), x=1, x=2 }", "a second attribute x"),
        ("ENTRY e { a = f32[4] add(a), x= }", "the attribute x has no value"),
        ("ENTRY e { a = f32[4] add(a), x={(1}) }", "} closes nothing"),
        ("ENTRY e { a = f32[4] add(a), x={{1}", "{ is not closed"),
        ('ENTRY e { a = f32[4] add(a), x="1 }', "this string has no end"),
        ("ENTRY e { a = f32[4] add(f32[4] a, b) }", "either all operands have shapes"),
        ("ENTRY e { a = " + "(" * 5000 + " }", "nested more than 64 deep"),
        ("func.func @main() { return }", "expected"),
    ],
)
def test_what_is_wrong_is_shown_where_it_is(text, message):
    with pytest.raises(HloSyntaxError) as error:
        hlo.parse(text)
    assert message in str(error.value)
    lines = str(error.value).splitlines()
    assert set(lines[-1].strip()) == {"^"}
    start, end = error.value.facts["span"]
    assert 0 <= start < end


def test_an_error_in_a_long_line_shows_the_part_around_it():
    text = "ENTRY e { a = f32[] constant(" + "1" * 5000 + "), x= }"
    with pytest.raises(HloSyntaxError) as error:
        hlo.parse(text)
    lines = str(error.value).splitlines()
    assert len(lines[1]) < 110
    assert lines[1][lines[2].index("^")] == "}"


def _place_of_error(text):
    try:
        printed = str(hlo.parse(text))
    except HloSyntaxError as error:
        return error.facts["span"][0]
    assert str(hlo.parse(printed)) == printed
    return None


_JUNK = [*'(){}[]",%=/*<>-: \n\t0a\\', "ROOT ", "/*", "//", "ENTRY", "f32[", "(((((", "\x00", "é"]


def test_mutated_text_gives_a_module_or_a_place(xla_texts):
    rng = random.Random(0)
    texts = [text for text in xla_texts.values() if len(text) < 6000]
    refused = 0
    for _ in range(400):
        text = list(rng.choice(texts))
        for _ in range(rng.choice([1, 1, 2, 5])):
            start = rng.randrange(len(text))
            stop = start + rng.choice([0, 1, 3, 20, 400])
            text[start:stop] = rng.choice([[], [*rng.choice(_JUNK)], text[stop : stop + 50]])
        mutated = "".join(text)
        place = _place_of_error(mutated)
        refused += place is not None
        assert place is None or 0 <= place <= len(mutated)
    assert 50 < refused < 390


def test_long_lines_take_time_in_proportion():
    """A pattern that tries all ways to split a word would not end."""
    for part in ("a", "a, ", "%a, ", "(", "{", '"', "/*", "f32[1], ", "1,"):
        with pytest.raises(HloSyntaxError):
            hlo.parse("ENTRY e { a = f32[4] add(" + part * 20_000)
