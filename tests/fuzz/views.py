"""Makers of lines that move, view and write: expressions, and statements that write in place."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.draw import Draw

Maker = Callable[[Draw], str]


def transpose(d: Draw) -> str:
    v = d.ranked(1)
    return f"{v}.transpose({d.dim(v)}, {d.dim(v)})"


def permute(d: Draw) -> str:
    v = d.ranked(1)
    order = list(range(d[v].ndim))
    d.rng.shuffle(order)
    return f"{v}.permute({order})"


def reshape(d: Draw) -> str:
    v = d.tensor()
    how = d.one(["view", "reshape", "reshape"])
    return f"{v}.{how}({d.split(d[v].numel())})"


def flatten(d: Draw) -> str:
    v = d.tensor()
    return d.one([f"{v}.flatten()", f"{v}.ravel()", f"{v}.contiguous()", f"{v}.squeeze()"])


def expand(d: Draw) -> str:
    v = d.tensor()
    sizes = [d.one([2, 3]) if size == 1 else d.one([-1, size]) for size in d[v].shape]
    return f"{v}.expand({[*d.one([[], [2]]), *sizes]})"


def narrow(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    size = d.size(v, dim)
    start = d.rng.randrange(size)
    return f"{v}.narrow({dim}, {start}, {d.rng.randint(0, size - start)})"


def select(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    size = d.size(v, dim)
    return f"{v}.select({dim}, {d.rng.randrange(-size, size)})"


def sliced(d: Draw) -> str:
    v = d.ranked(1)
    return f"{v}[{d.brackets(v)}]"


def unsqueeze(d: Draw) -> str:
    v = d.tensor()
    return f"{v}.unsqueeze({d.rng.randint(-d[v].ndim - 1, d[v].ndim)})"


def squeeze(d: Draw) -> str:
    v = d.ranked(1)
    return f"{v}.squeeze({d.dim(v)})"


def diagonal(d: Draw) -> str:
    v = d.ranked(2)
    return f"{v}.diagonal({d.rng.randint(-1, 1)}, {d.dim(v)}, {d.dim(v)})"


def chunk(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    size = d.size(v, dim)
    cut = d.rng.randint(1, size)
    count = len(d[v].split(cut, dim))
    return f"{v}.split({cut}, {dim})[{d.rng.randrange(-count, count)}]"


def unfold(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    return f"{v}.unfold({dim}, {d.rng.randint(1, d.size(v, dim))}, {d.rng.randint(1, 2)})"


def as_strided(d: Draw) -> str:
    v = d.ranked(1)
    return f"{v}.as_strided(({d.rng.randint(1, 3)}, 2), ({d.rng.randint(0, 2)}, 1))"


def movedim(d: Draw) -> str:
    v = d.ranked(1)
    return f"{v}.movedim({d.dim(v)}, {d.dim(v)})"


def real_parts(d: Draw) -> str:
    v = d.tensor(lambda t: t.is_complex())
    end = d.one(["real", "imag", "conj()", "mH", "resolve_conj()"])
    return d.one([f"torch.view_as_real({v})", f"{v}.{end}"])


def viewed_as(d: Draw) -> str:
    return f"{d.ranked(1)}.view({d.dtype()})"


def copied(d: Draw) -> str:
    v = d.tensor()
    how = ["clone()", "detach()", "T", "mT", "detach().clone()", "roll(1)", "view_as({0})"]
    return f"{v}.{d.one(how).format(v)}"


def flipped(d: Draw) -> str:
    v = d.tensor()
    return d.one(
        [
            f"{v}.flip({d.dims(v)})",
            f"{v}.roll({d.rng.randint(-3, 3)}, {d.dim(v)})",
            f"torch.rot90({v})",
        ]
    )


def repeated(d: Draw) -> str:
    v = d.tensor()
    times = [d.rng.randint(1, 2) for _ in d[v].shape]
    how = [f"repeat({[1, *times]})", f"tile({times})", f"repeat_interleave(2, {d.dim(v)})"]
    return f"{v}.{d.one(how)}"


def triangle(d: Draw) -> str:
    return f"{d.ranked(2)}.{d.one(['tril', 'triu'])}({d.rng.randint(-2, 2)})"


def joined(d: Draw) -> str:
    v = d.tensor()
    rank = d[v].ndim
    rest = [d.tensor(lambda t: t.ndim == rank) for _ in range(d.rng.randint(0, 2))]
    names = ", ".join([v, *rest])
    how = d.one(["cat", "cat", "stack", "hstack", "vstack"])
    place = f", {d.dim(v)}" if how in ("cat", "stack") else ""
    return f"torch.{how}([{names}]{place})"


def padded(d: Draw) -> str:
    v = d.ranked(1)
    pads = [d.rng.randint(-1, 2) for _ in range(2 * d.rng.randint(1, min(2, d[v].ndim)))]
    mode = d.one(["constant", "constant", "reflect", "replicate", "circular"])
    if mode == "circular":  # eager's copy would run over itself
        pads = [abs(pad) for pad in pads]
    value = f", value={d.number(d[v])}" if mode == "constant" else ""
    return f'torch.nn.functional.pad({v}, {pads}, mode="{mode}"{value})'


def cast(d: Draw) -> str:
    v = d.tensor()
    return d.one([f"{v}.to({d.dtype()})", f"{v}.to({d.dtype()})", f"{v}.type_as({d.tensor()})"])


def in_place(d: Draw) -> str:
    v = d.tensor()
    how = d.one(["add_", "mul_", "sub_", "copy_", "div_", "clamp_min_", "logical_and_"])
    return f"{v}.{how}({_source(d, v, how)})"


def _source(d: Draw, v: str, how: str) -> str:
    if how == "copy_":
        return d.tensor(lambda t: t.numel() == 1 or t.shape == d[v].shape)
    return d.filling(v)


def in_place_alone(d: Draw) -> str:
    v = d.tensor()
    how = ["zero_()", "neg_()", "abs_()", "relu_()", "sigmoid_()", "exp_()", "tanh_()", "t_()"]
    how += [f"fill_({d.number(d[v])})", "clamp_(-1, 1)", "square_()", "unsqueeze_(0)"]
    how += [f"transpose_({d.dim(v)}, {d.dim(v)})", "logical_not_()", "squeeze_()", "detach_()"]
    return f"{v}.{d.one(how)}"


def write_slice(d: Draw) -> str:
    v = d.ranked(1)
    place = d.brackets(v)
    part = eval(f"whole[{place}]", {"whole": d[v]})
    value = Draw(d.rng, d.values | {"part": part}).filling("part")
    value = d.number(part) if value == "part" else value
    return f"{v}[{place}] {d.one(['=', '=', '=', '+=', '*=', '-='])} {value}"


def write_indexed(d: Draw) -> str:
    v = d.ranked(1)
    size = d.size(v, 0)
    places = d.places(size)
    if d.flag():
        return f"{v}[{places}] = {d.number(d[v])}"
    row = f"{v}.select(0, 0).clone()" if d.flag() else f"torch.tensor({d.number()}, device=device)"
    accumulate = f", accumulate={d.flag()}"
    return f"{v}.index_put_(({places},), {row}.to({v}.dtype){accumulate})"


def write_masked(d: Draw) -> str:
    v = d.tensor()
    mask = f"{v} {d.one(['>', '<', '==', '!='])} {d.number(d[v])}"
    how = [f"{v}[{mask}] = {d.number(d[v])}", f"{v}.masked_fill_({mask}, {d.number(d[v])})"]
    return d.one(how)


def write_scattered(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    size = d.size(v, dim)
    shape = list(d[v].shape)
    shape[dim] = d.rng.randint(1, size)
    how = d.one(["scatter_add_", "scatter_"])
    grid, source = d.grid(size, shape), f"{v}.clone()"
    return f"{v}.{how}({dim}, {grid}, {source})"


def write_rows(d: Draw) -> str:
    v = d.ranked(1)
    dim = d.dim(v)
    count = d.rng.randint(1, 3)
    places = d.grid(d.size(v, dim), [count])
    source = f"{v}.clone().narrow({dim}, 0, 1).expand({_with(d, v, dim, count)})"
    return d.one(
        [
            f"{v}.index_add_({dim}, {places}, {source})",
            f"{v}.index_copy_({dim}, {places}, {source})",
            f"{v}.index_fill_({dim}, {places}, {d.number(d[v])})",
        ]
    )


def _with(d: Draw, v: str, dim: int, size: int) -> tuple[int, ...]:
    shape = list(d[v].shape)
    shape[dim] = size
    return tuple(shape)


VIEWS: list[tuple[float, Maker]] = [
    *((2.0, maker) for maker in (transpose, permute, reshape, expand, narrow, select, cast)),
    *((1.0, maker) for maker in (flatten, unsqueeze, squeeze, diagonal, chunk, unfold, movedim)),
    *((1.0, maker) for maker in (copied, flipped, repeated, triangle, padded, real_parts)),
    (4.0, sliced),
    (3.0, joined),
    (0.3, as_strided),
    (0.5, viewed_as),
]
WRITES: list[tuple[float, Maker]] = [
    (3.0, in_place),
    (1.0, in_place_alone),
    (3.0, write_slice),
    *((1.0, maker) for maker in (write_indexed, write_masked, write_scattered, write_rows)),
]
