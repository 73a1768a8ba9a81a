"""Cuts a backward into stages, each of which ends where some gradients are complete.

In: a backward graph, and the number of bytes in a bucket of gradients. Out: subgraphs that run one
after the other. Autograd gets the gradients of a stage before the next one runs
(extensions/runtime/split.h), so that DistributedDataParallel, whose hooks reduce a bucket of
gradients as soon as it is full, communicates during the rest of the backward. Stages follow the
order of the graph, which is that of eager's backward: draws and other effects keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem

from torch.fx import Graph, GraphModule, Node

from ..graph.lazy_module import copy_node
from ..graph.subgraphs import Split, Subgraph
from ..spec import TensorSpec
from .backward_graphs import stages_of
from .memory_budget import spec_bytes
from .nodes import flat_outputs, is_view, module_of, node_spec, placeholders, runs_once

__all__ = ["mark_stages", "split_stages"]

_FIRST = 1 << 20  # DistributedDataParallel's first bucket: communication begins early
_MOST = 16  # stages: each is compiled by itself


def mark_stages(backward: GraphModule | None, bucket: int | None) -> None:
    """Assign the gradients to stages of about `bucket` bytes, in the order in which they are
    computed. The stages are kept as `meta["stages"]` of the output node.
    """
    if backward is None or bucket is None:
        return
    gradients = flat_outputs(backward)
    if any(node is None for node in gradients):
        return
    places = {node: n for n, node in enumerate(backward.graph.nodes)}
    sizes = [spec_bytes(node_spec(node)) for node in gradients if node is not None]
    bucket = max(bucket, -(-sum(sizes) // _MOST))
    stages, current, filled, limit = [0] * len(sizes), 0, 0, min(_FIRST, bucket)
    for n in sorted(range(len(sizes)), key=lambda n: places[gradients[n]]):  # type: ignore[index]
        if filled >= limit:
            current, filled, limit = current + 1, 0, bucket
        stages[n] = current
        filled += sizes[n]
    if current:
        backward.graph.output_node().meta["stages"] = tuple(stages)


def split_stages(backward: GraphModule) -> Split | None:
    """Return the subgraph of each stage; None if there is only one."""
    nodes = list(backward.graph.nodes)
    gradients: Sequence[Node] = nodes[-1].args[0]
    assigned = _assigned(nodes, gradients, stages_of(backward))
    places = sorted(set(assigned.values()))
    if len(places) < 2:
        return None
    bodies = [_body(nodes, assigned, place) for place in places]
    reads = [_read(nodes, body) for body in bodies]
    slots = {node: n for n, node in enumerate(placeholders(backward))}
    constants = dict(backward.named_buffers())
    subgraphs = []
    for index, (place, body, inputs) in enumerate(zip(places, bodies, reads, strict=True)):
        later = {node for read in reads[index + 1 :] for node in read} | set(gradients)
        outputs = [node for node in body if node in later and assigned[node] == place]
        graph = _extracted(inputs, body, outputs)
        dead = tuple(slots[node] for node in inputs if node not in later)
        taken = tuple(slots[node] for node in inputs)
        module = module_of(graph, constants, "Backward")
        subgraphs.append(Subgraph(module, taken, len(outputs), dead))
        for node in outputs:
            slots[node] = len(slots)
    return Split(tuple(subgraphs), tuple(slots[node] for node in gradients))


def _assigned(
    nodes: Sequence[Node], gradients: Sequence[Node], stages: Sequence[int]
) -> dict[Node, int]:
    """Return the stage of each call. The items of a tuple are taken where it is computed."""
    places = {node: n for n, node in enumerate(nodes)}
    ends = [0] * (max(stages, default=0) + 1)
    for node, stage in zip(gradients, stages, strict=bool(stages)):
        ends[stage] = max(ends[stage], places[node])
    assigned: dict[Node, int] = {}
    current = 0
    for place, node in enumerate(nodes):
        if node.op in ("placeholder", "output"):
            continue
        while current + 1 < len(ends) and place > max(ends[: current + 1]):
            current += 1
        parent = node.args[0] if node.target is getitem else None
        assigned[node] = assigned.get(parent, current)  # type: ignore[arg-type]
    return assigned


def _body(nodes: Sequence[Node], assigned: Mapping[Node, int], place: int) -> list[Node]:
    """Return the calls of a stage, and those of earlier stages that it repeats."""
    found = {node for node in nodes if assigned.get(node) == place}
    for node in reversed(nodes):
        if node in found:
            found.update(one for one in node.all_input_nodes if one in assigned and _is_free(one))
    return [node for node in nodes if node in found]


def _is_free(node: Node) -> bool:
    """Return whether a stage repeats the call rather than read its result: a constant, a view,
    whose memory is read anyway, or what is no tensor.
    """
    if node.target is getitem:
        return _is_free(node.all_input_nodes[0])
    is_tensor = isinstance(node.meta.get("spec"), TensorSpec | tuple)
    is_constant = not node.all_input_nodes and not runs_once(node)
    return is_constant or is_view(node) or not is_tensor


def _read(nodes: Sequence[Node], body: Sequence[Node]) -> list[Node]:
    wanted = {value for node in body for value in node.all_input_nodes} - set(body)
    return [node for node in nodes if node in wanted]


def _extracted(inputs: Sequence[Node], body: Sequence[Node], outputs: Sequence[Node]) -> Graph:
    graph = Graph()
    copied: dict[Node, Node] = {}
    for node in inputs:
        copied[node] = graph.placeholder(node.name)
        copied[node].meta.update(node.meta)
    for node in body:
        copied[node] = copy_node(graph, node, copied.__getitem__)
    graph.output(tuple(copied[node] for node in outputs))
    return graph
