"""A captured graph as JSON and back: nodes by name, their arguments, fake values and places.

No pickle: what a file names is looked up among torch's operators and a few plain functions, so
that reading a graph runs nothing. A constant's elements stand in a file of raw bytes, dense.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from torch_galley.capture.body import attribute, elements
from torch_galley.capture.encode import (
    Decoder,
    decode_target,
    encode,
    encode_symbols,
    encode_target,
    encode_value,
)
from torch_galley.core.config import Config
from torch_galley.core.errors import ToolError
from torch_galley.core.site import Site, module_path, site_of
from torch_galley.core.store import Fields, Record, read_record, write_record

if TYPE_CHECKING:
    from torch_galley.capture.fx import Captured

_OPS = ("placeholder", "get_attr", "call_function", "output")


def save(captured: Captured, folder: str | Path) -> Path:
    """Write a captured graph into a folder; see Captured.save."""
    files: dict[str, bytes] = {}
    value = {
        "role": captured.role,
        "config": dataclasses.asdict(captured.config),
        "graph": graph_to_json(captured.graph, files),
    }
    return write_record(folder, "captured", value, files)


def load(folder: str | Path) -> tuple[fx.GraphModule, str, Config]:
    """Read what `save` wrote; see Captured.load."""
    record = read_record(folder, "captured")
    graph = graph_from_json(record.value.inside("graph"), record)
    return graph, record.value.get("role", str), config_from_json(record.value)


def config_from_json(fields: Fields) -> Config:
    """Return the settings in the field "config".

    Raises:
        ToolError: a setting that this version does not have.
    """
    values = fields.inside("config")
    known = {f.name for f in dataclasses.fields(Config)}
    for name in values.data:
        if name not in known:
            raise values.wrong(name, "is no setting of this version")
    found: dict[str, Any] = {}
    for f in dataclasses.fields(Config):
        if f.name in values.data:
            kind: Any = list if isinstance(f.default, tuple) else type(f.default)
            given: Any = values.get(f.name, object if f.default is None else kind)
            found[f.name] = tuple(map(str, given)) if kind is list else given
    return Config(**found)


def graph_to_json(module: fx.GraphModule, files: dict[str, bytes]) -> dict[str, Any]:
    """Return a graph as plain data; its constants' elements are added to `files`.

    Raises:
        ToolError: the graph calls or holds something that can't be saved.
    """
    graphs: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    nodes = []
    for node in module.graph.nodes:
        if node.op not in _OPS:
            raise ToolError(f"a {node.op} node ({node.name}) can't be saved", node=node.name)
        if node.op == "get_attr":
            path = str(node.target)
            found = attribute(module, path)
            if isinstance(found, fx.GraphModule):  # a branch of cond, a body of a loop
                graphs[path] = graph_to_json(found, files)
            else:
                constants[path] = _constant(node, found, files)
        nodes.append(_node_to_json(node))
    symbols = encode_symbols(module.graph)
    return {"symbols": symbols, "constants": constants, "graphs": graphs, "nodes": nodes}


def _node_to_json(node: fx.Node) -> dict[str, Any]:
    data = {
        "name": node.name,
        "op": node.op,
        "target": encode_target(node.target),
        "args": [encode(arg) for arg in node.args],
        "kwargs": {name: encode(arg) for name, arg in node.kwargs.items()},
    }
    if "val" in node.meta:
        data["val"] = encode_value(node.meta["val"])
    site, module = site_of(node.meta), module_path(node.meta)
    if site is not None:
        data["site"] = dataclasses.asdict(site)
    elif module:
        data["module"] = module
    return data


def _constant(node: fx.Node, found: Any, files: dict[str, bytes]) -> dict[str, Any]:
    if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor):
        kind = type(found).__name__
        raise ToolError(f"constant {node.target} is a {kind}, which can't be saved", node=node.name)
    name = f"constant_{len(files)}.bin"
    files[name] = elements(found)
    return {"file": name, "value": encode_value(found)}


def graph_from_json(fields: Fields, record: Record | None) -> fx.GraphModule:
    """Return the graph for what `graph_to_json` gave, with fake values in `meta["val"]`.

    Args:
        fields: the graph.
        record: holds the constants' files, if the graph has any.

    Raises:
        ToolError: a field is missing, of a wrong type, or names what does not exist here.
    """
    root: dict[str, Any] = {}
    graphs, constants = fields.inside("graphs"), fields.inside("constants")
    for path in graphs.data:
        root[path] = graph_from_json(graphs.inside(path), record)
    for path in constants.data:
        root[path] = _constant_from(constants.inside(path), record)
    decoder = Decoder(fields.get("symbols", dict))
    graph = fx.Graph()
    for node in fields.each("nodes"):
        made = _node_from_json(graph, node, decoder)
        if made.op == "get_attr" and made.target not in root:
            raise node.wrong("target", f"is {made.target!r}, which the file does not hold")
        decoder.nodes[made.name] = made
    return fx.GraphModule(root, graph)


def _node_from_json(graph: fx.Graph, fields: Fields, decoder: Decoder) -> fx.Node:
    op, name = fields.get("op", str), fields.get("name", str)
    if op not in _OPS:
        raise fields.wrong("op", f"is {op!r}, which no graph here has")
    target: Any = fields.get("target", str)
    if op == "call_function":
        target = decode_target(target)
        if target is None:
            raise fields.wrong("target", f"is {fields.data['target']!r}, no operator here")
    args, kwargs = fields.get("args", list), fields.get("kwargs", dict)
    args = [decoder.argument(a, lambda text: fields.wrong("args", text)) for a in args]
    kwargs = {
        key: decoder.argument(a, lambda text: fields.wrong("kwargs", text))
        for key, a in kwargs.items()
    }
    node = graph.create_node(op, target, tuple(args), kwargs, name=name)
    if node.name != name:
        raise fields.wrong("name", f"is {name!r}, which is no name here, or the second of it")
    if "val" in fields.data:
        node.meta["val"] = decoder.value(fields, "val")
    if "site" in fields.data:
        _set_site(node, site_from_json(fields.inside("site")))
    elif "module" in fields.data:
        node.meta["nn_module_stack"] = {"": (fields.get("module", str), None)}
    return node


def site_from_json(fields: Fields) -> Site:
    """Return the place in the user's code.

    Raises:
        ToolError: a part of it is missing or of a wrong type.
    """
    line = fields.get("line", int)
    file, function, module, code = (
        fields.get(name, str) for name in ("file", "function", "module", "code")
    )
    return Site(file, line, function, module, code)


def _set_site(node: fx.Node, site: Site) -> None:
    """Write a place the way torch.fx keeps it, so that core.site finds it again."""
    frame = f'  File "{site.file}", line {site.line}, in {site.function}\n'
    node.meta["stack_trace"] = frame + (f"    {site.code}\n" if site.code else "")
    if site.module:
        node.meta["nn_module_stack"] = {"": (site.module, None)}


def _constant_from(fields: Fields, record: Record | None) -> torch.Tensor:
    like = Decoder({}).value(fields, "value")
    name = fields.get("file", str)
    if record is None or not isinstance(like, torch.Tensor):
        raise fields.wrong("value", "is no tensor with a file")
    data = record.bytes(name)
    if len(data) != like.numel() * like.dtype.itemsize:
        raise fields.wrong("file", f"is {name}, which has {len(data)} bytes, too few or too many")
    if not data:
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(like.dtype)
    return flat.reshape(like.shape).to(like.device)
