"""The walk over a cluster's nodes that makes one jax function, and StableHLO of it.

It owns what cuts across all operators: type promotion, provenance, the check of each node's
shape and dtype, barriers, and the layouts at the border. A lowering is a jax function and no more.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch
from jax.experimental.xla_metadata import set_xla_metadata
from torch import fx
from torch._ops import OpOverload

from torch_galley.capture.body import bodies as bodies_of
from torch_galley.capture.body import named_inside
from torch_galley.cluster.clustered import XlaCluster
from torch_galley.cluster.support import is_getitem, name_of
from torch_galley.core.config import Config
from torch_galley.core.errors import ConfigError, LoweringError
from torch_galley.core.events import ClusterLowered, emit
from torch_galley.core.site import Site, module_path, site_of
from torch_galley.core.spec import PLATFORM, XLA_DTYPE, TensorSpec, wide_types
from torch_galley.lower import save
from torch_galley.lower.body import Body
from torch_galley.lower.guard import barred, constant
from torch_galley.lower.layout import Layout
from torch_galley.lower.promote import HALF, compute_dtype, promote
from torch_galley.lower.symbol import Bindings, value_of
from torch_galley.ops.aten.cast import number
from torch_galley.ops.check import Check, Checks, collecting
from torch_galley.ops.check import current as collected
from torch_galley.ops.half import kept_rounded
from torch_galley.ops.own import failed
from torch_galley.ops.registry import lookup, lookup_number, revision


@dataclass(frozen=True)
class Argument:
    """What a cluster is lowered for, per input: the tensor, and how it lies in memory."""

    spec: TensorSpec
    layout: Layout | None = None

    @staticmethod
    def like(tensor: torch.Tensor) -> Argument:
        """Describe a tensor, real or fake, of concrete shape."""
        spec = TensorSpec(tuple(tensor.shape), tensor.dtype)
        return Argument(spec, Layout.of(spec.shape, tensor.stride()))

    @staticmethod
    def of(node: fx.Node, bindings: Bindings) -> Argument:
        """Describe a node's tensor, its symbolic sizes as bound.

        Raises:
            RunError: a symbol that is not bound.
        """
        val = node.meta["val"]
        shape = tuple(value_of(size, bindings) for size in val.shape)
        strides = tuple(value_of(stride, bindings) for stride in val.stride())
        return Argument(TensorSpec(shape, val.dtype), Layout.of(shape, strides))

    @property
    def physical(self) -> jax.ShapeDtypeStruct:
        """The dense array that the executable takes."""
        shape = self.layout.physical(self.spec.shape) if self.layout else self.spec.shape
        return jax.ShapeDtypeStruct(shape, XLA_DTYPE[self.spec.dtype])


@dataclass(frozen=True)
class Lowered:
    """StableHLO of a cluster, and what its arguments and results are."""

    name: str
    cluster: XlaCluster
    config: Config
    platform: str
    """jax's name of what it is lowered for: "cpu", "cuda"."""
    stage: jax.stages.Lowered | save.Program
    """jax's own value; a Program in a Lowered that was loaded."""
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    checks: tuple[Check, ...]
    """If any, the executable has one result more: int64[len(checks), 2]; see ops.check."""
    sites: Mapping[str, Site | None]
    """Each node's place in the user's code, by node name."""

    @cached_property
    def plain_results(self) -> bool:
        """Whether every result is dense and row-major, as XLA gives it, and has elements."""
        return all(r.layout is None and 0 not in r.spec.shape for r in self.results)

    @property
    def first_site(self) -> Site | None:
        """The user's place of the first operation that has one, for errors of the whole."""
        return next((site for site in self.sites.values() if site), None)

    def text(self) -> str:
        """Return the StableHLO."""
        return self.stage.as_text()

    def hlo(self) -> str:
        """Return the HLO before optimisation, with metadata that leads back to the nodes."""
        return self.stage.as_text(dialect="hlo", debug_info=True)

    def to_json(self) -> dict[str, Any]:
        """Return all but the text as plain data: arguments, results, checks, places."""
        return save.to_json(self)

    def save(self, folder: str | Path) -> Path:
        """Write the cluster's graph, its StableHLO and its HLO into a folder.

        Raises:
            ToolError: the graph can't be saved, or the folder not written.
        """
        return save.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Lowered:
        """Read what `save` wrote. Equal in text and JSON; to compile, lower its cluster again.

        Raises:
            ToolError: no such folder, or a file in it is corrupt or foreign.
        """
        saved = save.load(folder)
        return cls(
            saved.cluster.name,
            saved.cluster,
            saved.config,
            saved.platform,
            saved.program,
            tuple(Argument(*parts) for parts in saved.arguments),
            tuple(Argument(*parts) for parts in saved.results),
            saved.checks,
            saved.sites,
        )


def lower(
    cluster: XlaCluster,
    arguments: Sequence[Argument],
    bindings: Bindings,
    config: Config,
) -> Lowered:
    """Lower a cluster for given input shapes.

    Args:
        cluster: what to lower.
        arguments: one per cluster input.
        bindings: values of the shape symbols that the cluster's nodes mention.
        config: settings; `check_indices` is read here.

    Raises:
        LoweringError: a lowering raised or gave another shape or dtype than recorded;
            `facts["node"]` is the node's name.
    """
    started = time.perf_counter()
    results = tuple(Argument.of(node, bindings) for node in cluster.outputs)
    checks = Checks()
    constants = constant(cluster.nodes)

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        env: dict[fx.Node, Any] = {}
        for node, argument, array in zip(cluster.inputs, arguments, arrays, strict=True):
            layout = argument.layout
            env[node] = layout.to_logical(array, argument.spec.shape) if layout else array
        for node in cluster.nodes:
            env[node] = _node(node, env, bindings, constants)
        outputs = [
            result.layout.to_physical(env[node]) if result.layout else env[node]
            for node, result in zip(cluster.outputs, results, strict=True)
        ]
        if checks.verdicts:
            outputs.append(jnp.stack(checks.verdicts))
        return _distinct(outputs, arrays)

    run.__name__ = cluster.name
    with wide_types(), collecting(checks if config.check_indices else None):
        physical = [argument.physical for argument in arguments]
        traced = jax.jit(run, keep_unused=True).trace(*physical)
        if len(traced.jaxpr.in_avals) != len(physical):  # jax makes an input of it
            users = [node for node in cluster.nodes if revision(node.target)]
            raise _failure(
                (users or cluster.nodes)[0], "uses a traced value kept from another call"
            )
        platform = platform_of(cluster)
        stage = traced.lower(lowering_platforms=(platform,))
    sites = {
        name: site_of(inner.meta) for node in cluster.nodes for name, inner in named_inside(node)
    }
    lowered = Lowered(
        cluster.name,
        cluster,
        config,
        platform,
        stage,
        tuple(arguments),
        results,
        tuple(checks.entries),
        sites,
    )
    emit(ClusterLowered(lowered, time.perf_counter() - started))
    return lowered


def platform_of(cluster: XlaCluster) -> str:
    """Return jax's name of what a cluster runs on: "cpu", "cuda"."""
    vals = [node.meta["val"] for node in (*cluster.outputs, *cluster.nodes)]
    device = next((val.device.type for val in vals if isinstance(val, torch.Tensor)), "cpu")
    return PLATFORM[device]


def _distinct(outputs: list[jax.Array], inputs: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Copy an output that is an input or an earlier output: each must own its memory.

    The caller may write any of them in place, and eager gives each operator's result its own.
    """
    seen = {id(array) for array in inputs}
    distinct = []
    for array in outputs:
        distinct.append(jnp.copy(array) if id(array) in seen else array)
        seen.add(id(array))
    return tuple(distinct)


def _node(
    node: fx.Node,
    env: Mapping[fx.Node, Any],
    bindings: Bindings,
    constants: Container[fx.Node],
    inside: str = "",
) -> Any:
    """Return the traced value of one node; `inside` is the path of the body that it is in."""
    if is_getitem(node):
        return env[node.args[0]][node.args[1]]  # type: ignore[index]
    name = inside + node.name
    bodies = bodies_of(node)

    def concrete(arg: fx.Node) -> Any:
        if arg in bodies:
            return Body(bodies[arg], f"{name}.{arg.target}", bindings, _node)
        return env[arg] if arg in env else value_of(arg.meta["val"], bindings)

    args, kwargs = fx.map_arg((node.args, node.kwargs), concrete)
    args = [list(a) if isinstance(a, list) else a for a in args]
    checks = collected()
    if checks is not None:
        checks.node, checks.op = name, _name(node.target)
    module = module_path(node.meta)
    scope = f"{module}/{name}:{node.target}" if module else f"{name}:{node.target}"
    try:
        with jax.named_scope(scope), set_xla_metadata(fx=name):
            value = _call(node, args, kwargs, barred(node, constants))
    except LoweringError as error:
        if not bodies:
            raise
        # What can be made native is the whole.
        facts = {"node": node.name, "op": str(node.target)}
        raise LoweringError(error.message, site=error.site, **facts) from error
    except ConfigError:  # says itself what was asked of an operator, and need not be lowered
        raise
    except Exception as error:
        raise _failure(node, error) from error
    return _checked(node, value, bindings)


def _name(target: Any) -> str:
    """Return what a message calls an operator: aten.gather.default is gather."""
    if isinstance(target, OpOverload):
        return target._schema.name.rpartition("::")[2]
    return name_of(target)


def _call(node: fx.Node, args: list[Any], kwargs: dict[str, Any], barred: Sequence[int]) -> Any:
    lowering = lookup(node.target) or lookup_number(node.target)
    assert lowering is not None, node.target
    val = node.meta["val"]
    if lowering.is_promoted and isinstance(val, torch.Tensor):
        compute = val.dtype if lowering.halves and val.dtype in HALF else None
        compute = compute or compute_dtype(node, val.dtype)
        if compute is not None:
            args, kwargs = promote(node, args, kwargs, compute)
        for place in barred:
            like = XLA_DTYPE[compute or val.dtype]
            args[place] = jax.lax.optimization_barrier(number(args[place], like))
        result = jnp.asarray(lowering.function(*args, **kwargs)).astype(XLA_DTYPE[val.dtype])
        return kept_rounded(result) if val.dtype is torch.float16 else result
    return lowering.function(*args, **kwargs)


def _checked(node: fx.Node, value: Any, bindings: Bindings) -> Any:
    """Return the value if it has the recorded shape and dtype, else raise LoweringError."""
    wanted = node.meta["val"]
    pairs = [(wanted, value)]
    if isinstance(wanted, tuple | list):
        if not isinstance(value, tuple | list):
            raise _failure(node, f"gave one {type(value).__name__}, recorded {len(wanted)} results")
        if len(wanted) != len(value):
            raise _failure(node, f"gave {len(value)} results, recorded {len(wanted)}")
        pairs = list(zip(wanted, value, strict=True))
    for want, got in pairs:
        if not isinstance(want, torch.Tensor):
            continue
        spec = TensorSpec(tuple(value_of(size, bindings) for size in want.shape), want.dtype)
        if isinstance(got, torch.Tensor):
            raise _failure(node, f"gave a torch tensor, not a jax array; recorded {spec}")
        if not hasattr(got, "shape") or not hasattr(got, "dtype"):
            raise _failure(node, f"gave a {type(got).__name__}, recorded {spec}")
        if tuple(got.shape) != spec.shape or got.dtype.name != XLA_DTYPE[spec.dtype]:
            raise _failure(node, f"gave {got.dtype.name}{list(got.shape)}, recorded {spec}")
    return value


def _failure(node: fx.Node, what: Exception | str) -> LoweringError:
    lowering, facts = lookup(node.target), {"site": site_of(node.meta), "node": node.name}
    if lowering is not None and lowering.revision:
        if isinstance(what, str):
            what = f"it {what.replace('recorded', 'and the fake rule says')}"
        return failed(cast(OpOverload, lowering.overload), lowering.function, what, **facts)
    if isinstance(what, Exception):
        what = f"{type(what).__name__}: {what}"
    message = f"lowering {node.target} failed: {what.splitlines()[0]}"
    return LoweringError(message, op=str(node.target), **facts)
