"""Where a torch-level graph is cut, so that gradients can be asked for between its results.

Comes in: a GraphModule as `GraphBuilder.finish` made it. Goes out: its stages, graphs that run one
after the other and give the same, or nothing where one graph will do; what cannot be had that way
is said in words. What is compiled together is one node to autograd: gradients flow from its results
to its inputs. Eager's user may differentiate the loss with respect to the features beside it, keep
their gradient or hook it, so a result that another result is computed from ends a stage. Stages are
pieces of the graph's order: writes and random draws happen when they did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import getitem

import torch
from torch.fx import Graph, GraphModule, Node

from ..errors import CompileFailed
from ..spec import TensorSpec
from .gradients import gradients
from .node_meta import changes_mode, mutated_by, tensors_in, value_of
from .reach import descendants
from .regions import FunctionCall

__all__ = ["Stage", "Stages", "cut"]

_MOST = 16  # seams: each costs a compile, and a call each time


@dataclass(frozen=True, slots=True)
class Stage:
    """One graph. Its inputs are places: those of the whole graph's inputs come first, then the
    outputs of each stage in order. `outputs`: how many there are. `spent`: places that nobody reads
    after this stage.
    """

    graph: GraphModule
    inputs: tuple[int, ...]
    outputs: int
    spent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages in order, and the places of the whole graph's outputs."""

    stages: tuple[Stage, ...]
    outputs: tuple[int, ...]


def cut(gm: GraphModule) -> Stages | None:
    """The stages of a graph; None if no result depends on another. Raises CompileFailed where one
    does and two graphs cannot do what one does.
    """
    nodes = list(gm.graph.nodes)
    seams = [seam for result in _results(nodes) if (seam := _seam(nodes, result))]
    if not seams:
        return None
    if any(node.target is gradients for node in nodes):
        raise CompileFailed("gradients are computed among them")
    ends = _fewest(seams)
    if len(ends) > _MOST:
        raise CompileFailed(f"there are {len(ends)} of them in a row, more than {_MOST}")
    number = _stage_of(nodes, ends)
    for node in nodes:
        _refuse_crossing(node, number)
    return _assemble(nodes, number)


def _results(nodes: Sequence[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes[-1].args[0]))  # type: ignore[arg-type]


def _differentiable(node: Node) -> bool:
    if node.meta.get("spent"):
        return False
    spec = node.meta.get("spec")
    specs = spec if isinstance(spec, tuple) else (spec,)
    return any(isinstance(one, TensorSpec) and one.requires_grad for one in specs)


def _seam(nodes: Sequence[Node], result: Node) -> range:
    """The places behind which the graph may be cut: the result has been made, but nothing yet of
    what leads from it to other results. Empty where nobody can tell one graph from two.
    """
    if result.op == "placeholder" or not _differentiable(result):
        return range(0)
    others = {node for node in _results(nodes) if node is not result and _differentiable(node)}
    behind = descendants([result], filter(_differentiable, nodes))
    between = others & behind
    for node in reversed(nodes):
        if node in behind and not between.isdisjoint(node.users):
            between.add(node)
    between |= {made for node in between for made in _given_history(node)}
    between.discard(result)
    memory = _memory(result)
    made = [
        n
        for n, node in enumerate(nodes)
        if node is result or any(memory & _memory(target) for target in mutated_by(node))
    ]
    first = min((n for n, node in enumerate(nodes) if node in between), default=0)
    return range(made[-1], first)


def _given_history(node: Node) -> set[Node]:
    """What a call of an autograd function turns from a plain tensor into one with a history."""
    if not isinstance(node.target, FunctionCall):
        return set()
    inputs, made = node.args[:2]
    return {part for part in made if isinstance(part, Node)} - {*inputs}  # type: ignore[union-attr, misc]


def _fewest(seams: Sequence[Sequence[int]]) -> list[int]:
    """Places such that each seam has one."""
    chosen: list[int] = []
    for seam in sorted(seams, key=lambda seam: seam[-1]):
        if not any(place in seam for place in chosen):
            chosen.append(seam[-1])
    return chosen


def _memory(node: Node) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors_in(value_of(node))}


def _stage_of(nodes: Sequence[Node], ends: Sequence[int]) -> dict[Node, int]:
    """Each call's stage; the parts of a tuple are taken out of it where it is made."""
    number: dict[Node, int] = {}
    stage = 0
    for n, node in enumerate(nodes):
        if node.op not in ("placeholder", "output"):
            whole = node.args[0] if node.target is getitem else None
            part = isinstance(whole, Node) and isinstance(whole.meta["spec"], tuple)
            number[node] = number[whole] if part else stage  # type: ignore[index]
        stage += n in ends
    last = max(number.values())
    return {node: min(stage, last) for node, stage in number.items()}


def _refuse_crossing(node: Node, number: dict[Node, int]) -> None:
    """Raise CompileFailed if the node stands across a seam in a way that two graphs cannot have."""
    if node not in number:
        return
    here = number[node]
    crosses = any(number.get(user, here) != here for user in node.users)
    spec = node.meta["spec"]
    if crosses and not isinstance(spec, TensorSpec):
        raise CompileFailed(f"{node.name} between them is no tensor")
    if crosses and spec.requires_grad != value_of(node).requires_grad:
        raise CompileFailed(f"{node.name} requires grad only since it was written to")
    if any(_is_shared(target, here, number) for target in mutated_by(node)):
        raise CompileFailed(f"{node.name} writes to memory that both sides know")


def _is_shared(target: Node, here: int, number: dict[Node, int]) -> bool:
    """Whether a stage that writes to `target` is given its memory by a stage before: graphs are
    compiled for inputs of which none is written to through another.
    """
    memory = _memory(target)
    given = (node for node, stage in number.items() if stage < here and memory & _memory(node))
    return any(number.get(user, here) >= here for node in given for user in node.users)


# ----------------------------------------------------------------------------------------- assembly


def _assemble(nodes: Sequence[Node], number: dict[Node, int]) -> Stages:
    results = _results(nodes)
    held = {node: n for n, node in enumerate(n for n in nodes if n.op == "placeholder")}
    read = [_read(nodes, number, stage) for stage in range(max(number.values()) + 1)]
    callers = {_mode(node): node for node in nodes if changes_mode(node)}
    others: dict[object, Node] = {}  # what sets the modes that are not as the caller has them
    stages = []
    for stage, inputs in enumerate(read):
        later = {node for other in read[stage + 1 :] for node in other} | set(results)
        body = [node for node in nodes if number.get(node) == stage]
        made = [node for node in body if node in later]
        entered = tuple(others.values())
        others = _other_modes(others, body, callers)
        graph = _piece(inputs, (*entered, *body, *map(callers.__getitem__, others)), made)
        spent = [held[node] for node in inputs if node not in later and node.op != "placeholder"]
        stages.append(Stage(graph, tuple(held[node] for node in inputs), len(made), tuple(spent)))
        for node in made:
            held[node] = len(held)
    flat: Sequence[Node] = nodes[-1].args[0]  # type: ignore[assignment]
    return Stages(tuple(stages), tuple(held[node] for node in flat))


def _mode(node: Node) -> object:
    return node.target, node.args[:-1]


def _other_modes(
    before: Mapping[object, Node], body: Sequence[Node], callers: Mapping[object, Node]
) -> dict[object, Node]:
    """Behind a stage: a stage begins and ends in the caller's grad mode and autocast, which are
    those at the end of the whole graph.
    """
    now = {**before, **{_mode(node): node for node in body if changes_mode(node)}}
    return {mode: node for mode, node in now.items() if node.args[-1] != callers[mode].args[-1]}


def _read(nodes: Sequence[Node], number: dict[Node, int], stage: int) -> list[Node]:
    """What a stage reads that it does not make, in order."""
    wanted = {
        value
        for node in nodes
        if number.get(node) == stage
        for value in node.all_input_nodes
        if number.get(value) != stage
    }
    return [node for node in nodes if node in wanted]


def _piece(inputs: Sequence[Node], body: Sequence[Node], made: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copied: dict[Node, Node] = {}
    for node in inputs:
        copied[node] = graph.placeholder(node.name)
        spec: TensorSpec = node.meta["spec"]
        copied[node].meta = {"spec": spec, "val": value_of(node)}
    for node in body:
        copied[node] = graph.node_copy(node, copied.__getitem__)
        copied[node].meta = dict(node.meta)
        if mutated := mutated_by(node):
            copied[node].meta["mutates"] = tuple(copied[target] for target in mutated)
    graph.output(tuple(copied[node] for node in made))
    return GraphModule(torch.nn.Module(), graph, "Stage")
