"""Printing and reading are each other's inverse, on modules that nobody wrote."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from torch_galley import hlo
from torch_galley.hlo.source import Place

_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
_elements = st.sampled_from(["f32", "bf16", "pred", "s4", "u64", "c128", "f8e4m3fn"])


@st.composite
def _arrays(draw):
    sizes = tuple(draw(st.lists(st.integers(-1, 70000), max_size=4)))
    order = draw(st.permutations(range(len(sizes))))
    layout = draw(st.sampled_from(["", ",".join(map(str, order))]))
    known = [dim for dim, size in enumerate(sizes) if size >= 0]
    bounded = tuple(sorted(draw(st.sets(st.sampled_from(known))))) if known else ()
    return hlo.Array(draw(_elements), sizes, layout, bounded)


_shapes = st.recursive(
    _arrays(),
    lambda inner: st.lists(inner, max_size=8).map(lambda p: hlo.Tuple(tuple(p))),
    max_leaves=9,
)
_strings = st.text(max_size=12).map(
    lambda text: '"' + text.replace("\\", "").replace('"', "") + '"'
)
_values = st.one_of(
    _strings,
    st.sampled_from(
        ["{}", "{0,1}", "{{0}: (0, {})}", "[2,4]<=[8]T(1,0)", "%f", "LT", "b01f_01io->b01f"]
    ),
)
_attributes = st.dictionaries(_names, _values, max_size=3)
_opcodes = st.sampled_from(["add", "tuple", "get-tuple-element", "custom-call", "while"])


@st.composite
def _instructions(draw, shaped):
    operands = tuple(draw(st.lists(_names, max_size=7)))
    shapes = tuple(draw(_shapes) for _ in operands) if shaped else ()
    one = hlo.Instruction(
        draw(_names),
        draw(_shapes),
        draw(_opcodes),
        operands,
        attributes=draw(_attributes),
        operand_shapes=shapes,
    )
    if draw(st.booleans()):
        return one
    literal = draw(st.sampled_from(["0", "{ { 1, 2 }, { 3, nan } }", "(1, 2)", "{...}", '"a)"']))
    return replace(one, opcode="constant", operands=(), operand_shapes=(), literal=literal)


@st.composite
def _modules(draw):
    shaped = draw(st.booleans())
    computations = []
    for entry in (*[False] * draw(st.integers(0, 2)), True):
        body = draw(st.lists(_instructions(shaped), min_size=1, max_size=4))
        body[-1] = replace(body[-1], root=True)
        signature = draw(st.booleans())
        computations.append(
            hlo.Computation(draw(_names), tuple(body), entry, signature, draw(_attributes))
        )
    count = draw(st.integers(0, 3))
    numbers = st.integers(0, 10**6)
    sources = hlo.Sources(
        {i: draw(st.text(max_size=8)) for i in range(1, count + 1)},
        {i: draw(st.text(max_size=8)) for i in range(1, count + 1)},
        {i: Place(*[draw(numbers) for _ in range(6)]) for i in range(1, count + 1)},
        {i: (draw(numbers), draw(numbers)) for i in range(1, count + 1)},
    )
    percent = draw(st.booleans())
    return hlo.Module(draw(_names), tuple(computations), draw(_attributes), sources, percent)


def _without_places(module):
    def plain(one):
        return replace(one, span=(0, 0))

    return replace(
        module,
        computations=tuple(
            replace(plain(one), instructions=tuple(plain(i) for i in one.instructions))
            for one in module.computations
        ),
    )


@given(_modules())
def test_a_printed_module_reads_as_itself(module):
    assert _without_places(hlo.parse(str(module))) == module


@given(_shapes)
def test_a_printed_shape_reads_as_itself(shape):
    assert hlo.shape(str(shape)) == shape
