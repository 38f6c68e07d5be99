"""The page docs/gradients.md, made from the rows of docs/gradients.json."""

from __future__ import annotations

from typing import Any

from benchmarks import ops_page

COLUMNS = tuple(
    f"{dtype}{path}{order}"
    for dtype in ("float32", "float64")
    for path in ("", " lazy")
    for order in ("", " 2nd")
)
"""A dtype; "lazy" on the lazy device, else compiled; "2nd" for the second order."""

ABOUT = """\
Every entry of `op_db`, PyTorch's own database of operators, that has gradients, with its own
samples, differentiated by eager and by us. `tests/ops/gradient.py` is the judge. Compared are the
results that have a gradient, which gradients there are, and their values, for the same random
cotangents. As for [the operators](ops.md), eager in double precision decides where we differ.

- `float32` and `float64`: compiled. AOTAutograd captures a forward and a backward graph, as
  `torch.compile` does, and all of both goes to XLA where it can (`min_cluster_size=1`).
- `lazy`: autograd on the `xla` device. A verdict there is right, or refused by a named error where
  the device has no such tensors (sparse ones), or wrong.
- `2nd`: the second order, where `op_db` says that there is one: the gradients of the gradients,
  those of the cotangents included. `torch.compile` can't differentiate its backward graph, so
  what is compiled is a function that asks for both by `torch.autograd.grad`, as one graph.

● lowered: all samples right, and no node of any graph outside of XLA (lazy: right). ◐ mixed: right,
some nodes native. ○ native: right, all nodes native. wrong: other results than eager's. error: we
raised. crash: the process died. timeout: it hung. `·`: eager has no gradient for any sample. Empty:
`op_db` has no such gradients. Percentages are of all entries of the column, less those marked `·`.
"""


def page(results: dict[str, Any]) -> str:
    """Return the page, from what `Sweep.load` gives."""
    rows = results["rows"]
    lines = ["# Gradients", "", ops_page.written(results), "", ABOUT]
    for part in (
        ops_page.counts(rows, COLUMNS),
        ops_page.entries(rows, COLUMNS),
        ops_page.native(rows),
    ):
        lines += [*part, ""]
    return "\n".join(lines)
