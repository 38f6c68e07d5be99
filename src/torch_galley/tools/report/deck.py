"""The cut graph drawn: clusters as containers, native operations as parcels, borders as wires."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from math import log10

from torch_galley.cluster.report import size
from torch_galley.core.reasons import OUTVOTED
from torch_galley.core.words import counted
from torch_galley.tools.report.layout import layout
from torch_galley.tools.report.model import Graph
from torch_galley.tools.report.shown import TIMES, clean, merged

MOST = 300
"""Boxes drawn."""
ROWS = 6
"""Lines of a container."""
_STUBS = 10
"""Readers in different boxes from which on a tensor is named where it enters, not wired."""
_CHAR, _LINE, _PAD = 6.9, 22, 12
_MARGIN = 16

KINDS = {
    "refused": "XLA can't take it",
    "data": "its result, or what it does, is not only a matter of shapes",
    "denied": "a setting keeps it native",
    "soft": "XLA could take it, it pays not",
}
"""Kinds of reasons, in the order of the legend, as people read them."""

_KIND_OF = {
    "DataDependentShape": "data",
    "Random": "data",
    "Seed": "data",
    "SideEffect": "data",
    "DeniedByUser": "denied",
    "NotAllowed": "denied",
    "OutOfFuel": "denied",
} | dict.fromkeys((reason.__name__ for reason in OUTVOTED), "soft")


def kind_of_reason(code: str) -> str:
    """Return the kind of a reason by its code."""
    return _KIND_OF.get(code, "refused")


@dataclass
class _Box:
    kind: str
    """"cluster", or a kind of reasons."""
    title: str
    rows: list[tuple[str, str]]
    """Lines: on the left, on the right."""
    hover: str
    rank: int
    operations: list[int] = field(default_factory=list)

    def size(self) -> tuple[float, float]:
        """Return width and height."""
        texts = [self.title + "   ", *(f"{a}   {b}" for a, b in self.rows)]
        wide = max(len(text) for text in texts) * _CHAR + 2 * _PAD
        line = _LINE if self.kind == "cluster" else 17
        return max(wide, 120.0), 26 + line * len(self.rows) + (8 if self.rows else 4)


@dataclass
class _Wire:
    source: int
    target: int
    tensors: dict[int, None] = field(default_factory=dict)


def short(target: str) -> str:
    """Return an operator's name without its namespace and default overload.

    Example:
        >>> short("aten.gelu.default"), short("aten.add.Tensor")
        ('gelu', 'add.Tensor')
    """
    return target.removeprefix("aten.").removesuffix(".default")


def deck(graph: Graph) -> str:
    """Return the drawing as SVG, with a name for each thing on hover. Empty without operations."""
    boxes, owner = _boxes(graph)
    left_out = max(0, len(boxes) - MOST)
    boxes = boxes[:MOST]
    if not boxes:
        return ""
    wires = list(_wires(graph, boxes, owner))
    sizes = [box.size() for box in boxes]
    plan = layout(sizes, [(wire.source, wire.target) for wire in wires])
    ports = _ports(wires, plan.centers, sizes)
    parts = []
    for number, wire in enumerate(wires):
        parts += _wire(
            graph, boxes, wire, [ports[number][0], *plan.routes[number], ports[number][1]]
        )
    for box, center, (wide, tall) in zip(boxes, plan.centers, sizes, strict=True):
        parts += _box(box, center[0] - wide / 2, center[1] - tall / 2, wide, tall)
    if left_out:
        parts.append(_words("more", 0, plan.height + 28, f"… and {left_out:,} more"))
    box = (
        -_MARGIN,
        -_MARGIN,
        plan.width + 2 * _MARGIN,
        plan.height + 2 * _MARGIN + (28 if left_out else 0),
    )
    view = " ".join(f"{v:.0f}" for v in box)
    label = escape(f"{counted(len(graph.clusters), 'cluster')} and native operations", quote=True)
    return (
        f'<svg class="deck" viewBox="{view}" width="{box[2]:.0f}" height="{box[3]:.0f}" '
        f'role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _boxes(graph: Graph) -> tuple[list[_Box], dict[tuple[int, int | None], int]]:
    """Return boxes in an order in which they run, and the box of each operation in each place."""
    native = _regions(graph, apart=True)
    if len(native) + len(graph.clusters) > MOST:
        native = _regions(graph, apart=False)
    rank = {step: at for at, step in enumerate(graph.steps)}
    boxes = [_container(graph, number, rank[number]) for number in range(len(graph.clusters))]
    boxes += [_parcel(graph, some, min(rank[-1 - n] for n in some)) for some in native]
    levels = _levels(graph)

    def key(box: int) -> tuple[int, int]:
        step = box if box < len(graph.clusters) else -1 - boxes[box].operations[0]
        return levels[step], boxes[box].rank

    order = sorted(range(len(boxes)), key=key)
    at = {box: place for place, box in enumerate(order)}
    owner: dict[tuple[int, int | None], int] = {}
    for number, cluster in enumerate(graph.clusters):
        owner |= {(node, number): at[number] for node in cluster.nodes}
    for number, members in enumerate(native):
        owner |= {(node, None): at[len(graph.clusters) + number] for node in members}
    return [boxes[box] for box in order], owner


def _sources(graph: Graph, step: int) -> Iterator[tuple[int, int]]:
    """Yield what a step takes from others: the tensor, and the step that gives it."""
    if step >= 0:
        taken = [crossing.node for crossing in graph.clusters[step].inputs]
    else:
        taken = list(graph.nodes[-1 - step].inputs)
    for node in taken:
        maker = graph.maker(node)
        if graph.nodes[maker].native:
            yield node, -1 - maker
        elif homes := graph.homes.get(maker):
            yield node, homes[0]


def _levels(graph: Graph) -> dict[int, int]:
    """Return for each step how often running changes between XLA and native before it.

    Native operations of one level can be drawn as one: no path from one to another leaves it.
    """
    level: dict[int, int] = {}
    for step in graph.steps:
        behind = [
            level[source] + ((source >= 0) != (step >= 0) or (source >= 0 and step >= 0))
            for _, source in _sources(graph, step)
            if source in level
        ]
        level[step] = max(behind, default=0)
    # As late as can be, so that what prepares something stands with it.
    latest: dict[int, int] = {}
    for step in reversed(graph.steps):
        if step < 0 and step in latest:
            level[step] = latest[step]
        for _, source in _sources(graph, step):
            bound = level[step] - ((source >= 0) != (step >= 0))
            latest[source] = min(latest.get(source, bound), bound)
    return level


def _regions(graph: Graph, apart: bool) -> list[list[int]]:
    """Return native operations that are drawn as one: of one level, and if `apart` joined."""
    level = _levels(graph)
    parent = {number: number for number in graph.native}

    def find(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    first: dict[int, int] = {}
    for number in graph.native:
        if not apart:
            parent[find(number)] = find(first.setdefault(level[-1 - number], number))
        for _, source in _sources(graph, -1 - number):
            if source < 0 and level[source] == level[-1 - number]:
                parent[find(number)] = find(-1 - source)
    groups: dict[int, list[int]] = defaultdict(list)
    for number in graph.native:
        groups[find(number)].append(number)
    return list(groups.values())


def _container(graph: Graph, number: int, rank: int) -> _Box:
    cluster = graph.clusters[number]
    count = graph.operations_in(cluster)
    terms = cluster.measured or cluster.predicted
    speed = f" · {terms.speedup:.1f}{TIMES}" if terms else ""
    operations = [n for n in cluster.nodes if graph.nodes[n].kind == "operation"]
    modules = Counter(_top(graph.nodes[n].module) for n in operations)
    if len(modules) > 1:
        rows = _folded(modules)
    else:
        ops = Counter(short(graph.nodes[n].target) for n in operations)
        rows = [(clean(op, 30), f"{n:,}") for op, n in ops.most_common()]
    if len(rows) > ROWS:
        rows = [*rows[: ROWS - 1], (f"{len(rows) - ROWS + 1} more", "…")]
    own = [c.node for c in cluster.inputs if graph.nodes[c.node].kind == "input"]
    if own:
        bytes_ = size(graph.bytes_of(own)) if graph.sizes_known else ""
        rows = [(f"⌄ {counted(len(own), 'input')} of the graph", bytes_), *rows]
    hover = f"{cluster.name}\n" + "\n".join(
        f"{n} {TIMES} {op}" for op, n in graph.histogram(cluster)
    )
    title = f"CL-{number:02d} · {counted(count, 'op')}{speed}"
    return _Box("cluster", title, rows, hover, rank, operations)


def _top(module: str) -> str:
    """Return a module's path up to its first number, so that a layer is one line."""
    parts = module.split(".")
    for n, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: n + 1])
    return ".".join(parts[:2]) or "(no module)"


def _folded(modules: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return lines for modules, those that differ in a number as one."""
    groups: dict[str, list[str]] = {}
    for path in modules:
        key = ".".join("#" if part.isdigit() else part for part in path.split("."))
        groups.setdefault(key, []).append(path)
    rows = []
    for paths in groups.values():
        name = ", ".join(merged(paths)).replace("{", "").replace("}", "")
        times = f" {TIMES}{len(paths)}" if len(paths) > 1 else ""
        rows.append((f"▸ {clean(name, 32)}{times}", f"{sum(modules[p] for p in paths):,}"))
    return rows


def _parcel(graph: Graph, members: Sequence[int], rank: int) -> _Box:
    nodes = [graph.nodes[n] for n in members]
    reasons = Counter(node.native for node in nodes if node.native)
    refused = [node for node in nodes if node.refused] or nodes
    kind = Counter(kind_of_reason(n.native.code) for n in refused if n.native).most_common(1)[0][0]
    hover = "\n".join(f"{count} {TIMES} {reason}" for reason, count in reasons.most_common(12))
    if len(nodes) == 1 and nodes[0].native:
        title = clean(short(nodes[0].target), 30)
        return _Box(kind, title, [(clean(nodes[0].native.group, 40), "")], hover, rank, [*members])
    ops = Counter(short(node.target) for node in refused)
    rows = [
        (f"{n} {TIMES} {clean(op, 28)}" if n > 1 else clean(op, 30), "")
        for op, n in ops.most_common()
    ]
    if len(rows) > 3:
        rows = [*rows[:2], (f"{len(rows) - 2} more operators", "")]
    title = counted(len(nodes), "native operation")
    return _Box(kind, title, rows, hover, rank, [*members])


def _wires(
    graph: Graph, boxes: list[_Box], owner: Mapping[tuple[int, int | None], int]
) -> Iterable[_Wire]:
    """Return a wire for each pair of boxes between which tensors go."""
    found: dict[tuple[int, int], _Wire] = {}
    readers: dict[int, dict[int, int]] = defaultdict(dict)
    for step in graph.steps:
        target = owner[(graph.clusters[step].nodes[0], step) if step >= 0 else (-1 - step, None)]
        for tensor, source in _sources(graph, step):
            giver = graph.maker(tensor)
            start = owner.get((giver, source if source >= 0 else None))
            if start is not None and start != target and max(start, target) < len(boxes):
                readers[tensor][target] = start
    for tensor, ends in readers.items():
        if len(ends) >= _STUBS:
            name = clean(graph.nodes[tensor].name, 24)
            for target, start in ends.items():
                boxes[target].rows.insert(0, (f"⌄ {name}", size(graph.nodes[tensor].nbytes)))
                boxes[start].hover += f"\ngives {name} to {len(ends)} others"
            continue
        for target, start in ends.items():
            found.setdefault((start, target), _Wire(start, target)).tensors[tensor] = None
    return found.values()


def _ports(
    wires: Sequence[_Wire],
    centers: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
) -> list[list[tuple[float, float]]]:
    """Return for each wire where it leaves and enters a box, in the order of far ends."""
    ports = [[(0.0, 0.0), (0.0, 0.0)] for _ in wires]
    for end in (0, 1):
        at: dict[int, list[int]] = defaultdict(list)
        for number, wire in enumerate(wires):
            at[wire.target if end else wire.source].append(number)
        for box, numbers in at.items():
            far = {n: wires[n].source if end else wires[n].target for n in numbers}
            numbers.sort(key=lambda n: (centers[far[n]][0], n))
            wide, tall = sizes[box]
            step = min(44.0, (wide - 28) / len(numbers))
            for place, number in enumerate(numbers):
                x = centers[box][0] + (place - (len(numbers) - 1) / 2) * step
                ports[number][end] = (x, centers[box][1] + (-tall / 2 if end else tall / 2))
    return ports


def _wire(
    graph: Graph, boxes: Sequence[_Box], wire: _Wire, points: Sequence[tuple[float, float]]
) -> Iterator[str]:
    nbytes = graph.bytes_of(wire.tensors)
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (u, v) in pairwise(points):
        middle = (y + v) / 2
        path += f"C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v:.1f}"
    wide = 4 + (min(5.0, log10(nbytes / 1024)) if nbytes > 1024 else 0)
    names = [graph.nodes[n] for n in wire.tensors]
    hover = "\n".join(f"{node.name} {node.type}".strip() for node in names[:12])
    more = f"\nand {len(names) - 12} more" if len(names) > 12 else ""
    ends = f"{boxes[wire.source].title} → {boxes[wire.target].title}"
    border = "cluster" in (boxes[wire.source].kind, boxes[wire.target].kind)
    said = _text(f"{ends}\n{hover}{more}")
    yield f'<g class="{"wire" if border else "inner"}"><title>{said}</title>'
    if border:
        yield f'<path class="outer" stroke-width="{wide:.1f}" d="{path}"/>'
        yield f'<path class="core" stroke-width="{wide - 3:.1f}" d="{path}"/>'
        for x, y, end in ((*points[0], wire.source), (*points[-1], wire.target)):
            if boxes[end].kind == "cluster":
                yield _rect("notch", x - 8, y - 4, 16, 8)
    else:
        yield f'<path class="thin" d="{path}"/>'
    label = size(nbytes) if nbytes else ""
    if len(names) > 1:
        label = f"{len(names)} tensors {label}".strip()
    (x, y), (u, v) = points[0], points[1]
    yield _words("bytes", (x + u) / 2 + wide / 2 + 4, (y + v) / 2 + 4, label) + "</g>"


def _box(box: _Box, x: float, y: float, wide: float, tall: float) -> Iterator[str]:
    yield f'<g class="box {box.kind}"><title>{_text(box.hover)}</title>'
    if box.kind != "cluster":
        yield _rect("frame", x, y, wide, tall, 12)
        yield _words("name", x + wide / 2, y + 19, box.title)
        for number, (left, right) in enumerate(box.rows):
            yield _words("why", x + wide / 2, y + 36 + number * 17, f"{left} {right}")
        yield "</g>"
        return
    yield _rect("frame", x, y, wide, tall, 2)
    for dx in (0, wide - 7):
        for dy in (0, tall - 7):
            yield _rect("corner", x + dx, y + dy, 7, 7)
    yield _words("plate", x + _PAD, y + 19, box.title)
    for number, (left, right) in enumerate(box.rows):
        top = y + 27 + number * _LINE
        yield _rect("row", x + 9, top, wide - 18, _LINE - 3)
        yield _words("left", x + 16, top + 14, left) + _words(
            "right", x + wide - 16, top + 14, right
        )
    yield "</g>"


def _rect(kind: str, x: float, y: float, wide: float, tall: float, rounded: int = 0) -> str:
    corner = f' rx="{rounded}"' if rounded else ""
    at = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
    return f'<rect class="{kind}" {at}{corner}/>'


def _words(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_text(words)}</text>' if words else ""


def _text(text: str) -> str:
    return escape(clean(text.strip()), quote=True)
