"""How many bytes are alive at once while a cut graph runs, predicted."""

from __future__ import annotations

from torch_galley.tools.report.model import Graph


def peak_bytes(graph: Graph) -> int:
    """Return the most bytes alive at once: tensors between steps, and XLA's intermediates.

    Inputs of the graph are alive all the time, since the caller holds them, and results from when
    they are made. Any other tensor is alive until the last step that reads it. A native view is
    its base. Without compilation, XLA's intermediates are not known and left out.
    """
    nodes = graph.nodes
    base = list(range(len(nodes)))
    given: list[list[int]] = []  # what each step leaves behind
    read: list[list[int]] = []
    parts: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        if node.kind == "part" and node.inputs:
            parts.setdefault(node.inputs[0], []).append(number)
    for step in graph.steps:
        if step >= 0:
            cluster = graph.clusters[step]
            given.append([crossing.node for crossing in cluster.outputs])
            read.append([crossing.node for crossing in cluster.inputs])
        else:
            made = [-1 - step, *parts.get(-1 - step, ())]
            for number in made:
                if nodes[number].view and nodes[number].inputs:
                    base[number] = base[nodes[number].inputs[0]]
            given.append(made)
            read.append(list(nodes[-1 - step].inputs))
    last = [-1] * len(nodes)
    for at, numbers in enumerate(read):
        for number in numbers:
            last[base[number]] = at
    for number, node in enumerate(nodes):
        if node.result:
            last[base[number]] = len(read)
    alive = sum(node.nbytes for node in nodes if node.kind == "input")
    peak = alive
    ends: dict[int, int] = {}
    for at, numbers in enumerate(given):
        fresh = [n for n in numbers if base[n] == n and nodes[n].kind != "input"]
        alive += sum(nodes[n].nbytes for n in fresh)
        step = graph.steps[at]
        made = graph.clusters[step].compilation if step >= 0 else None
        peak = max(peak, alive + (made.temporary_bytes if made else 0))
        for number in fresh:
            until = max(last[number], at)
            ends[until] = ends.get(until, 0) + nodes[number].nbytes
        alive -= ends.pop(at, 0)
    return peak
