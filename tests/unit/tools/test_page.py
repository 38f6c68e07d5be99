"""The web page: well-formed, escaped, closed to the outside, and drawn right."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from torch_galley.cluster.seed import GraphOp, SeedGraph
from torch_galley.cluster.terms import Terms
from torch_galley.core.site import Site
from torch_galley.tools.report import others
from torch_galley.tools.report.deck import deck, short
from torch_galley.tools.report.layout import GAP, layout
from torch_galley.tools.report.report import Report

VOID = {"meta", "rect", "path", "br", "link", "img"}
EVIL = [
    "</style><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "a\u202eb\u200bc",
    "<!-- -->]]>&amp;\x00\x1b[2J",
    "x" * 5000,
    "{0} %s {}",
]


class Checked(HTMLParser):
    """Collects elements; complains of tags that don't close what was opened."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("native", [1e-6, 12e-6, 345e-6])
def test_the_speed_up_stands_above_its_terms(native):
    (graph,) = named([GraphOp("a", "ok", ())]).graphs
    (cluster,) = graph.clusters
    timed = replace(cluster, measured=Terms(native, 0.5e-6, 0.5e-6))
    page = Report("net", (replace(graph, clusters=(timed,)),)).to_html()
    assert f">ΣT_op {native * 1e6:.0f} µs / (" in page
    assert f">{native * 1e6:.2f}" in page


def named(ops):
    return others.of_seed(SeedGraph(tuple(ops), frozenset({"ok"}), "graph"))


def chain(count, name="v{}"):
    names = [name.format(n) for n in range(count)]
    return named(
        GraphOp(one, ("ok", "native")[n % 2], tuple(names[n - 1 : n]))
        for n, one in enumerate(names)
    )


@pytest.fixture
def hostile():
    ops = [GraphOp(f"{e}{n}", e if n % 2 else "ok", ()) for n, e in enumerate(EVIL)]
    ops.append(GraphOp("last", "ok", tuple(op.name for op in ops)))
    (graph,) = named(ops).graphs
    evil = [
        replace(n, module=n.name, site=Site(n.name, 3, n.name, "", n.name), type=n.name)
        for n in graph.nodes
    ]
    graph = replace(graph, nodes=tuple(evil), role=EVIL[0], warnings=tuple(EVIL))
    return Report(EVIL[1], (graph,))


def test_hostile_names_stay_text(hostile):
    page = Checked(hostile.to_html())
    assert not {"script", "img", "iframe", "object", "base", "form", "link"} & set(page.tags)
    assert all(not name.startswith("on") and name != "style" for name, _ in page.attributes)
    seen = "".join(page.text)
    assert "<script>alert(1)</script>" in seen
    for hidden in "\u202e\u200b\x00\x1b":
        assert hidden not in hostile.to_html()
    assert "\\u202e" in seen
    hostile.text()
    hostile.to_dot()


def test_nothing_comes_from_outside(hostile):
    text = hostile.to_html()
    links = [v for n, v in Checked(text).attributes if n in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") for value in links)
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(v for n, v in Checked(text).attributes if n == "content" and "src" in v)
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_a_notebook_gets_the_same_without_a_page_around(hostile):
    text = hostile._repr_html_()
    assert text.startswith("<style>")
    assert "<html" not in text
    Checked(text)


def test_a_large_graph_is_drawn_in_part_and_small():
    report = chain(2000)
    text = report.to_html()
    Checked(text)
    assert len(text) < 2_000_000
    assert text.count('<g class="box ') == 300
    assert "and 1,700 more" in text


def test_a_hub_is_named_where_it_enters_and_not_wired():
    ops = [GraphOp("hub", "native")]
    for n in range(12):
        ops += [GraphOp(f"c{n}", "ok", ("hub",)), GraphOp(f"n{n}", f"k{n}", (f"c{n}",))]
    drawn = deck(named(ops).graphs[0])
    assert drawn.count("⌄ hub") == 12
    assert "12 others" in drawn


def test_clusters_and_native_operations_are_drawn_with_wires():
    drawn = deck(chain(5).graphs[0])
    assert drawn.count('<g class="box cluster">') == 3
    assert drawn.count('<g class="box refused">') == 2
    assert drawn.count('<g class="wire">') == 4
    assert "no lowering" in drawn


def test_no_operations():
    text = Report("empty", ()).to_html()
    assert "Nothing to compile" in text
    Checked(text)


@pytest.mark.parametrize(
    "wires",
    [
        [(0, 1), (1, 2), (0, 2), (0, 3), (3, 4), (2, 4)],
        [(0, n) for n in range(1, 5)],
        [(n, 4) for n in range(4)],
        [],
    ],
)
def test_boxes_do_not_overlap_and_wires_go_down(wires):
    sizes = [(60.0 + 20 * n, 30.0) for n in range(5)]
    plan = layout(sizes, wires)
    for a in range(5):
        for b in range(a):
            (x, y), (u, v) = plan.centers[a], plan.centers[b]
            apart = abs(x - u) - (sizes[a][0] + sizes[b][0]) / 2
            assert abs(y - v) >= 30 or apart >= GAP - 1e-6
    for (a, b), route in zip(wires, plan.routes, strict=True):
        heights = [plan.centers[a][1], *(y for _, y in route), plan.centers[b][1]]
        assert heights == sorted(heights)
        assert heights[0] < heights[-1]
    assert all(0 <= x <= plan.width and 0 <= y <= plan.height for x, y in plan.centers)


def test_short_names():
    assert [short(n) for n in ("aten.mm.default", "aten.add.Tensor", "relu")] == [
        "mm",
        "add.Tensor",
        "relu",
    ]
