"""What one operation has to do, counted in the units of cluster.rates; how XLA will fuse it.

A rough count: it ranks regions, it predicts no time to the microsecond. Operators are told by
their name without overload; one that no table names counts as a pass over its tensors.
"""

from __future__ import annotations

import torch
from torch import fx

from torch_galley.capture.fx import is_tensor, is_view
from torch_galley.cluster.flops import flops
from torch_galley.cluster.operation import nbytes
from torch_galley.cluster.rates import NEAR
from torch_galley.cluster.support import is_getitem

_SPECIAL = {
    name: count
    for count, names in {
        1.0: "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf erfc sigmoid gelu silu elu "
        "celu selu softplus logit asin acos atan atan2 sinh cosh asinh acosh atanh logaddexp "
        "logaddexp2 tanh_backward sigmoid_backward silu_backward gelu_backward elu_backward "
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data logsumexp "
        "log_sigmoid_forward log_sigmoid_backward softplus_backward mish hardswish",
        2.0: "pow lgamma digamma erfinv igamma igammac polygamma remainder fmod xlogy "
        "special_erfcx special_ndtri special_zeta special_i0e special_i1e",
    }.items()
    for name in names.split()
}
"""Operators that compute a function like exp, and about how many for each element."""

_CHEAP_POWERS = (0.5, -0.5, 1, 2, 3, -1, -2)
"""Exponents for which pow multiplies, divides or takes a root."""

PASSES = {
    name: passes
    for passes, names in {
        1: "sum mean amax amin max min any all prod argmax argmin aminmax linalg_vector_norm "
        "nansum count_nonzero avg_pool2d _adaptive_avg_pool2d",
        2: "var var_mean std std_mean logsumexp _softmax_backward_data _log_softmax_backward_data",
        3: "_softmax _log_softmax native_layer_norm native_group_norm _fused_rms_norm "
        "_native_batch_norm_legit _native_batch_norm_legit_functional "
        "_batch_norm_with_update_functional native_batch_norm native_layer_norm_backward "
        "native_group_norm_backward native_batch_norm_backward batch_norm_backward "
        "_fused_rms_norm_backward",
    }.items()
    for name in names.split()
}
"""Operators that reduce, and how often an executable goes over what they read."""

_FUSED = {
    *("_to_copy", "clone", "copy", "fill", "full_like", "zeros_like", "ones_like", "where"),
    *("_native_batch_norm_legit_no_training", "constant_pad_nd", "tril", "triu", "rsub"),
    *("slice_scatter", "select_scatter", "expand_copy", "select_backward", "slice_backward"),
    *("full", "arange", "scalar_tensor", "zeros", "ones", "eye"),
}
"""Operators that fuse like elementwise ones, though torch does not tag them so."""

_BY_ELEMENT = {
    "sort": "sort stable_sort topk kthvalue median nanmedian mode searchsorted bucketize unique",
    "gather": "index gather index_select embedding take take_along_dim",
    "scatter": "index_put scatter scatter_add scatter_reduce index_add index_copy index_fill put "
    "embedding_dense_backward masked_scatter _unsafe_index_put",
    "scan": "cumsum cumprod cummax cummin logcumsumexp",
}
_ELEMENTS = {name: kind for kind, names in _BY_ELEMENT.items() for name in names.split()}


def op_name(node: fx.Node) -> str:
    """Return the name of a node's operator, without namespace and overload."""
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", getattr(node.target, "__name__", str(node.target)))


def numel(node: fx.Node) -> int:
    """Return how many elements a node's results have, symbolic sizes as first seen."""
    val = node.meta.get("val")
    tensors = val if isinstance(val, tuple | list) else [val]
    return sum(_numel(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor))


def _numel(tensor: torch.Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size if isinstance(size, int) else (size.node.hint or 1)
    return count


def is_free(node: fx.Node) -> bool:
    """Whether an operation moves no data natively: a view, or the picking of a result."""
    return is_getitem(node) or is_view(node.target)


def fuses(node: fx.Node) -> bool:
    """Whether XLA computes an operation element by element, along with its neighbours."""
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return pointwise or is_free(node) or op_name(node) in _FUSED


def counts(node: fx.Node) -> dict[str, float]:
    """Return an operation's units by kind of work, reading and writing left out.

    Example: {"product": 2 * 64 * 64 * 64} for the product of two matrices of 64 by 64.
    """
    if is_free(node):
        return {}
    name = op_name(node)
    size = max([numel(node), *(numel(arg) for arg in node.all_input_nodes if name in PASSES)])
    if operations := flops(node):
        return {_product_kind(node, name): float(operations)}
    if (kind := _ELEMENTS.get(name)) is not None:
        read = max((numel(arg) for arg in node.all_input_nodes), default=0)
        return {kind: float(max(size, read) if kind == "sort" else _touched(node, name, size))}
    found = {"element": float(size)}
    if (times := _SPECIAL.get(name)) is not None and not _is_cheap_power(node, name):
        found["special"] = times * size
    return found


def _touched(node: fx.Node, name: str, size: int) -> int:
    """Return how many elements an indexed operation fetches, stores or adds up."""
    if name in ("index_put", "_unsafe_index_put"):
        place = 2  # (self, indices, values)
    elif name in _BY_ELEMENT["scatter"].split():
        place = 0 if name == "embedding_dense_backward" else -1
    else:
        return size
    sources = [arg for arg in node.args if isinstance(arg, fx.Node) and is_tensor(arg)]
    if place == 2 and len(node.args) > 2 and isinstance(node.args[2], fx.Node):
        return numel(node.args[2])
    return numel(sources[place]) if sources else size


_GROUPS = {"convolution": 8, "convolution_backward": 9}
"""Where the argument stands that says into how many groups a convolution falls."""


def _product_kind(node: fx.Node, name: str) -> str:
    if name.startswith("convolution"):
        groups = node.args[_GROUPS[name]] if len(node.args) > _GROUPS.get(name, 99) else 1
        return "convolution" if groups == 1 else "grouped"
    halves = (torch.bfloat16, torch.float16)
    value = node.all_input_nodes[0].meta.get("val")
    return "half" if isinstance(value, torch.Tensor) and value.dtype in halves else "product"


def _is_cheap_power(node: fx.Node, name: str) -> bool:
    return name == "pow" and len(node.args) > 1 and node.args[1] in _CHEAP_POWERS


def moved(node: fx.Node) -> list[int]:
    """Return the bytes of each tensor that an operation reads or writes; views none.

    Of what is read by index, as much counts as comes out.
    """
    if is_free(node):
        return []
    out = _result_bytes(node)
    read = [nbytes(arg) for arg in dict.fromkeys(node.all_input_nodes) if is_tensor(arg)]
    if _ELEMENTS.get(op_name(node)) == "gather":
        read = [min(size, out) for size in read]
    return [out, *read]


def _result_bytes(node: fx.Node) -> int:
    val = node.meta.get("val")
    tensors = val if isinstance(val, tuple | list) else [val]
    return sum(_numel(t) * t.dtype.itemsize for t in tensors if isinstance(t, torch.Tensor))


def memory_kind(size: int) -> str:
    """Return the kind of work that reading or writing a tensor of so many bytes is.

    Example:
        >>> memory_kind(512), memory_kind(1 << 24)
        ('near', 'far')
    """
    return "near" if size <= NEAR else "far"
