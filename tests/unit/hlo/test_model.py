"""What modules, shapes, attributes and stack tables say."""

import pytest

from torch_galley import hlo
from torch_galley.core.errors import HloSyntaxError
from torch_galley.hlo import attribute


def test_a_loop_says_how_often_it_runs_and_what_it_calls(xla_texts):
    module = hlo.parse(xla_texts["loop after"])
    (loop,) = [one for one in module.instructions() if one.opcode == "while"]
    assert loop.trip_count == 10
    assert len(loop.called) == 2
    assert all(name in module.by_name for name in loop.called)
    assert module.scheduled


def test_frames_lead_to_lines_of_this_repository(xla_texts):
    """Parents are written one too high: without that, the stack would end in the wrong place."""
    module = hlo.parse(xla_texts["loop after"])
    (dot,) = [one for one in module.instructions() if one.opcode == "dot"]
    stack = list(module.sources.stack(dot.metadata.frame))
    assert stack[0].function.startswith("_loop")
    assert stack[0].file.endswith("conftest.py")
    functions = [one.function for one in stack]
    assert functions.index("_loop") < functions.index("xla_texts")
    assert functions.count("xla_texts") == 1


def test_a_ring_of_frames_ends():
    text = """HloModule m

FileNames
1 "a.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=0 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=3}
2 {file_location_id=1 parent_frame_id=2}


ENTRY e {
  ROOT p = f32[] parameter(0)
}

"""
    module = hlo.parse(text)
    assert [str(one) for one in module.sources.stack(1)] == ["a.py:3 in f"] * 2
    assert list(module.sources.stack(0)) == []
    assert str(module) == text


@pytest.mark.parametrize(
    ("text", "nbytes", "elements"),
    [
        ("f32[]", 4, 1),
        ("pred[3]", 3, 3),
        ("s4[5]", 5, 5),
        ("s4[5]{0:E(4)}", 3, 5),
        ("bf16[2,0]", 0, 0),
        ("c128[2]{0}", 32, 2),
        ("f8e4m3fn[7]", 7, 7),
        ("token[]", 0, 1),
        ("f32[?,3]", 0, 0),
        ("f32[<=5,3]", 60, 15),
        ("(f32[2]{0}, (s32[], u8[3]))", 15, 6),
        ("()", 0, 0),
    ],
)
def test_sizes_of_shapes(text, nbytes, elements):
    found = hlo.shape(text)
    assert (found.nbytes, found.elements) == (nbytes, elements)
    assert str(found) == text


def test_layouts():
    assert hlo.Array("f32", (2, 3), "0,1:T(8,128)").minor_to_major == (0, 1)
    assert hlo.Array("f32", (2, 3)).minor_to_major == (1, 0)
    assert str(hlo.shape("(f32[2,3]{0,1}, s32[])").without_layout()) == "(f32[2,3], s32[])"
    with pytest.raises(HloSyntaxError, match="text follows"):
        hlo.shape("f32[2] x")


def test_windows_and_labels():
    window = attribute.window("{size=3x5 stride=2x1 pad=0_1x-2_2 rhs_dilate=1x2}", 2)
    assert (window.size, window.stride, window.low) == ((3, 5), (2, 1), (0, -2))
    assert (window.high, window.dilation, window.base) == ((1, 2), (1, 2), (1, 1))
    assert attribute.window("{}", 2).size == (1, 1)
    assert attribute.labels("b01f_01io->b01f") == attribute.Labels("b01f", "01io", "b01f")
    assert attribute.labels("nothing") is None


def test_metadata_and_configs():
    text = r'{op_type="add" op_name="a \"b\" c" source_file="m.py" source_line=12 stack_frame_id=3}'
    assert attribute.metadata(text) == attribute.Metadata('a "b" c', "add", 3, "m.py", 12)
    assert attribute.metadata("{") == attribute.Metadata()
    assert attribute.config('{"a":{"b":1}}') == {"a": {"b": 1}}
    assert attribute.config(r'"{\"a\":1}"') == {"a": 1}
    assert attribute.config("{uplo = 76 : ui8}") == {}
    assert attribute.trip_count('{"known_trip_count":{"n":"-1"}}') is None


def test_numbers_too_long_for_anyone_are_no_counts():
    """Python itself refuses to read numbers of more than 4,300 digits."""
    digits = "9" * 5000
    assert attribute.trip_count(f'{{"known_trip_count":{{"n":"{digits}"}}}}') is None
    assert all(n < 10**18 for n in attribute.ints(digits))
