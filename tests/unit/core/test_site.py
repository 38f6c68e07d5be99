"""Places: frames in a stack trace, and Dynamo's spellings of module paths."""

from pathlib import Path

import pytest
import torch

from torch_galley.core.site import Site, module_path, parse_stack, site_of

TORCH = Path(torch.__file__).parent / "nn" / "modules" / "linear.py"


@pytest.mark.parametrize(
    ("site", "text"),
    [
        (Site("m.py", 3), "m.py:3"),
        (Site("m.py", 3, "f"), "m.py:3 in f"),
        (Site("m.py", 3, "", "a.0"), "m.py:3 (a.0)"),
    ],
)
def test_text(site, text):
    assert str(site) == text


def test_innermost_frame_of_the_users_own():
    trace = f"""\
  File "model.py", line 10, in forward
    return self.inner(x)
  File "my inner.py", line 20, in <lambda>
    self.fc(x)
  File "{TORCH}", line 130, in forward
    return F.linear(input, self.weight, self.bias)"""
    assert parse_stack(trace) == Site("my inner.py", 20, "<lambda>", "", "self.fc(x)")


def test_torchs_frame_where_there_is_no_other():
    assert parse_stack(f'  File "{TORCH}", line 130, in forward\n    x').line == 130


def test_frame_without_source():
    assert parse_stack('File "a.py", line 1, in f\nFile "b.py", line 2, in g').code == ""


@pytest.mark.parametrize("trace", [None, "", "no frame here"])
def test_no_frame(trace):
    assert parse_stack(trace) is None


@pytest.mark.parametrize(
    ("spelling", "path"),
    [
        ("L['self']", ""),
        ("L['self'].encoder.layer[0]", "encoder.layer.0"),
        ("L['self'].encoder.layer.0", "encoder.layer.0"),
        ("L['self']._modules['0']", "0"),
        ("L['self']._modules['encoder']._modules['layer']._modules['0']", "encoder.layer.0"),
        ("L['self'].blocks['first']", "blocks.first"),
        ("L['model'].fc", "fc"),
        ("encoder.0", "encoder.0"),
    ],
)
def test_module_path(spelling, path):
    stack = {"outer": ("L['self']", object), "inner": (spelling, object)}
    assert module_path({"nn_module_stack": stack}) == path
    assert module_path({"fwd_nn_module_stack": stack}) == path


def test_module_path_at_top_level():
    assert module_path({}) == module_path({"nn_module_stack": {}}) == ""


def test_what_dynamo_really_writes():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
            self.tail = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

        def forward(self, x):
            return self.tail(self.layer[0](x)) + 1

    sites = []

    def look(graph, inputs):
        sites.extend(site_of(n.meta) for n in graph.graph.nodes if n.op.startswith("call"))
        return graph.forward

    torch.compile(Block(), backend=look)(torch.ones(2))
    assert [site.module for site in sites] == ["layer.0", "tail.0", "tail.1", ""]
    assert {site.file for site in sites} == {__file__}
    assert sites[-1].code == "return self.tail(self.layer[0](x)) + 1"


def test_no_place():
    assert site_of({}) is None
