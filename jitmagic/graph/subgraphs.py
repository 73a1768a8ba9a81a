"""Splits graphs so that gradients can be computed between their results.

Input: a GraphModule as `GraphBuilder.finish` made it. Output: subgraphs that run one after the
other and give the same results, or None if one graph suffices; CompileFailed says why a graph
cannot be split.

A compiled graph is one autograd node: gradients flow only from its results to its inputs. In eager
the user may also differentiate one result with respect to another (the loss with respect to
features that are also returned), retain the gradient of such a result, or hook it. So a result that
another result is computed from ends a subgraph. Each subgraph is a contiguous range of the graph,
which keeps the order of writes and random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import getitem

import torch
from torch.fx import Graph, GraphModule, Node

from ..compat.modes import switch_grad_mode
from ..errors import CompileFailed
from ..lazy_dataclass import dataclass, replace
from ..spec import TensorSpec
from .gradients import gradients
from .lazy_module import LazyModule, copy_node
from .memory import memory_of
from .node_meta import changes_mode, is_number, mutated_by, tensors_in, value_of
from .operators.target_traits import makes_new
from .targets.regions import FunctionCall, HookCall
from .wrappers.wrapping import Unwrap, is_wrapper

__all__ = [
    "Split",
    "Subgraph",
    "assemble",
    "extract",
    "refuse_crossing",
    "split_if_possible",
    "split_into_subgraphs",
]

_MOST = 16  # splits of a graph: each costs one more compile, and one more native call per call


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A part of the graph. Values have slots: the graph's inputs come first, then the outputs of
    each subgraph in order. `inputs`: slots. `outputs`: their number. `dead`: slots that are not
    read after this subgraph.
    """

    graph: GraphModule
    inputs: tuple[int, ...]
    outputs: int
    dead: tuple[int, ...]

    @property
    def slots(self) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        """Return (inputs, outputs, dead), which a chain of executables needs too."""
        return self.inputs, self.outputs, self.dead


@dataclass(frozen=True, slots=True)
class Split:
    """The subgraphs in order, and the slots of the graph's outputs."""

    subgraphs: tuple[Subgraph, ...]
    outputs: tuple[int, ...]

    def follow(
        self,
        inputs: Sequence[TensorSpec],
        gives: Callable[[Subgraph, Sequence[TensorSpec]], Sequence[TensorSpec]],
    ) -> list[TensorSpec]:
        """Return the specs of all slots. `gives` maps a subgraph and its input specs to its output
        specs.
        """
        specs = list(inputs)
        for subgraph in self.subgraphs:
            specs += gives(subgraph, [specs[slot] for slot in subgraph.inputs])
        return specs


def split_into_subgraphs(gm: GraphModule, asked: Container[int] | None = None) -> Split | None:
    """Split a graph; return None if no result depends on another. `asked`: the indices of results
    that may be differentiated. Raises CompileFailed if a split is needed but impossible.
    """
    nodes = _with_late_factories(gm.graph.nodes)
    flat: Sequence[Node] = nodes[-1].args[0]  # type: ignore[assignment]
    wanted = dict.fromkeys(
        _taken_from(node) for n, node in enumerate(flat) if asked is None or n in asked
    )
    quiet = _not_recorded(nodes)
    ranges = [where for result in wanted if (where := _split_range(nodes, quiet, result))]
    if not ranges:
        return None
    if any(node.target is gradients for node in nodes):
        raise CompileFailed("gradients are computed among them")
    ends = _fewest(ranges)
    if len(ends) > _MOST:
        raise CompileFailed(f"there are {len(ends)} of them in a row, more than {_MOST}")
    numbers = {node for node in nodes if is_number(node)}
    assigned = _assign(nodes, ends)
    for node in numbers:
        del assigned[node]
    for node in nodes:
        refuse_crossing(node, assigned)
    return assemble(nodes, assigned, numbers)


def _taken_from(result: Node) -> Node:
    """Return the wrapper subclass that a result is an inner tensor of, else the result."""
    taken = result.args[0] if result.target is getitem else None
    if isinstance(taken, Node) and isinstance(taken.target, Unwrap):
        return taken.all_input_nodes[0]
    return result


def split_if_possible(gm: GraphModule, asked: Container[int] | None = None) -> Split | None:
    """Do `split_into_subgraphs`, but return None too if the graph cannot be split."""
    try:
        return split_into_subgraphs(gm, asked)
    except CompileFailed:
        return None


def _results(nodes: Sequence[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes[-1].args[0]))  # type: ignore[arg-type]


def _differentiable(node: Node) -> bool:
    if node.meta.get("freed"):
        return False
    spec = node.meta.get("spec")
    specs = spec if isinstance(spec, tuple) else (spec,)
    return any(isinstance(part, TensorSpec) and part.requires_grad for part in specs)


def _has_history(result: Node) -> bool:
    """Return whether a result has a history when the graph ends, its own or through a write."""
    if _differentiable(result):
        return True
    if result.op == "placeholder" or result.meta.get("freed"):
        return False
    return any(tensor.requires_grad for tensor in tensors_in(value_of(result)))


def _with_late_factories(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes with each factory call moved to just before its first use, into the subgraph
    that fills its result.
    """
    waiting: set[Node] = set()
    placed: list[Node] = []

    def place(node: Node) -> None:
        waiting.discard(node)
        for read in node.all_input_nodes:
            if read in waiting:
                place(read)
        placed.append(node)

    for node in nodes:
        is_call = node.op.startswith("call_")
        is_made = is_call and makes_new(node.target)
        if is_made and not node.meta.get("data_dependent"):
            waiting.add(node)
        else:
            place(node)
    return placed


def _not_recorded(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that run while autograd does not record."""
    quiet: set[Node] = set()
    records = True
    for node in nodes:
        if node.target is switch_grad_mode:
            records = bool(node.args[0])
        elif not records:
            quiet.add(node)
    return quiet


def _split_range(nodes: Sequence[Node], quiet: Container[Node], result: Node) -> range:
    """Return the indices of nodes after which the graph may be split for a result: after the result
    itself, before any node on a path from it to another result. Empty if no split is needed.
    """
    if result.op == "placeholder" or not _has_history(result):
        return range(0)
    own = memory_of(result)
    written = [n for n, node in enumerate(nodes) if own & _written_by(node) and node not in quiet]
    final = max(nodes.index(result), *written, 0)
    later = nodes[final + 1 : -1]
    recorded = [node for node in later if node not in quiet]
    behind = _calls_after(result, recorded, own if written else set())
    others = {node for node in _results(nodes) if _taken_from(node) is not result}
    others = set(filter(_has_history, others))
    between = others & behind
    cells = _memory_of_all((*others, *(node for node in nodes if node.op == "placeholder")))
    for node in reversed(later):
        leads = node in between or not between.isdisjoint(node.users) or cells & _written_by(node)
        if node in behind and leads:
            between.add(node)
            cells |= _memory_of_all(node.all_input_nodes)
    between |= {output for node in between for output in _given_history(node)}
    filled = set[int]().union(*map(_written_by, between))
    if filled:
        # Tensors that are created here to be written to by a call in between.
        between |= {node for node in later if memory_of(node) & filled}
    between.discard(result)
    first = min((n for n, node in enumerate(nodes) if node in between), default=0)
    return range(final, first)


def _calls_after(result: Node, recorded: Sequence[Node], cells: set[int]) -> set[Node]:
    """Return the recorded calls from which a gradient would reach the result, also through writes
    to memory. `cells`: storages that such gradients pass through.
    """
    behind, cells = {result}, set(cells)
    for node in recorded:
        reads = not behind.isdisjoint(node.all_input_nodes)
        reads = reads or bool(cells and cells & _memory_of_all(node.all_input_nodes))
        if reads and _passes_gradients(node):
            behind.add(node)
            cells |= _written_by(node)
    return behind


def _passes_gradients(node: Node) -> bool:
    """Return whether gradients of a call's results, or of its writes, may reach what it reads."""
    if isinstance(node.meta.get("spec"), TensorSpec | tuple):
        return _differentiable(node)
    written = (tensor for target in mutated_by(node) for tensor in tensors_in(value_of(target)))
    return any(tensor.requires_grad for tensor in written)


def _written_by(node: Node) -> set[int]:
    """Return the storages that a call writes to."""
    return _memory_of_all(mutated_by(node))


def _memory_of_all(nodes: Iterable[Node]) -> set[int]:
    return set[int]().union(*map(memory_of, nodes))


def _given_history(node: Node) -> set[Node]:
    """Return the plain tensors to which a call of an autograd function gives a history."""
    if not isinstance(node.target, FunctionCall):
        return set()
    inputs, outputs = node.args[:2]
    return {part for part in outputs if isinstance(part, Node)} - {*inputs}  # type: ignore[union-attr, misc]


def _fewest(ranges: Sequence[range]) -> list[int]:
    """Return the fewest indices such that each range holds one: taking the ends in order is
    optimal.
    """
    chosen: list[int] = []
    for where in sorted(ranges, key=lambda where: where[-1]):
        if not any(index in where for index in chosen):
            chosen.append(where[-1])
    return chosen


def _assign(nodes: Sequence[Node], ends: Sequence[int]) -> dict[Node, int]:
    """Return the subgraph of each call; the items of a tuple are taken where it is computed."""
    assigned: dict[Node, int] = {}
    current = 0
    for n, node in enumerate(nodes):
        if node.op not in ("placeholder", "output"):
            parent = node.args[0] if node.target is getitem else None
            is_part = isinstance(parent, Node) and isinstance(parent.meta["spec"], tuple)
            assigned[node] = assigned[parent] if is_part else current  # type: ignore[index]
        current += n in ends
    return assigned


def _is_shared(target: Node, here: int, assigned: Mapping[Node, int]) -> bool:
    """Return whether a subgraph may not write to a tensor of earlier ones. That holds if it has
    another input over that memory, or if their backward may have saved what they read there last.
    """
    cells = memory_of(target)
    earlier = [node for node, at in assigned.items() if at < here and cells & memory_of(node)]
    inputs = [node for node in target.graph.find_nodes(op="placeholder") if cells & memory_of(node)]
    crossing = [n for n in (*inputs, *earlier) if any(assigned.get(u) == here for u in n.users)]
    is_apart = len(crossing) < 2 and not inputs
    if not earlier or (is_apart and not _last_reads(earlier, here, assigned)):
        return False
    return any(assigned.get(user, here) >= here for node in earlier for user in node.users)


def _last_reads(views: Sequence[Node], here: int, assigned: Mapping[Node, int]) -> bool:
    """Return whether a subgraph before `here` reads the views' memory after the last write to
    it.
    """
    cells = _memory_of_all(views)
    users = {user for node in views for user in node.users if assigned.get(user, here) < here}
    calls = [node for node in assigned if node in users]
    last = max((n for n, call in enumerate(calls) if cells & _written_by(call)), default=-1)
    return any(not cells & memory_of(call) for call in calls[last + 1 :])


def refuse_crossing(
    node: Node,
    assigned: Mapping[Node, int],
    is_shared: Callable[[Node, int, Mapping[Node, int]], bool] = _is_shared,
) -> None:
    """Raise CompileFailed if the node crosses a split in an unsupported way. `is_shared` says
    whether a subgraph may not write to a tensor.
    """
    if node not in assigned:
        return
    here = assigned[node]
    if isinstance(node.target, HookCall):
        tensor = node.all_input_nodes[0]
        if assigned.get(tensor, here) != here:
            raise CompileFailed(f"a hook of {tensor.name} reads what is computed after them")
    crosses = any(assigned.get(user, here) != here for user in node.users)
    spec = node.meta["spec"]
    if crosses and (not isinstance(spec, TensorSpec) or is_wrapper(value_of(node))):
        raise CompileFailed(f"{node.name} between them is not a plain tensor")
    if any(is_shared(target, here, assigned) for target in mutated_by(node)):
        raise CompileFailed(f"{node.name} writes to memory that both sides read")


# ----------------------------------------------------------------------------------------- assembly


def assemble(
    nodes: Sequence[Node],
    assigned: Mapping[Node, int],
    copied: Container[Node] = (),
    also: Callable[[list[Node]], set[Node]] = lambda body: set(),
) -> Split:
    """Build the subgraphs that the calls were assigned to. `copied`: calls that are repeated in
    each subgraph which needs them. `also`: nodes that a subgraph reads besides its calls'
    arguments.
    """
    results = _results(nodes)
    slots = {node: n for n, node in enumerate(n for n in nodes if n.op == "placeholder")}
    places = sorted(set(assigned.values()))
    bodies = [_body(nodes, assigned, place, copied) for place in places]
    needed = [also(body) for body in bodies]
    bodies = [
        [node for node in nodes if node in body or (node in more and node in copied)]
        for body, more in zip(bodies, needed, strict=True)
    ]
    read = [_read(nodes, body, more) for body, more in zip(bodies, needed, strict=True)]
    callers = {_mode(node): node for node in nodes if changes_mode(node)}
    others: dict[object, Node] = {}  # nodes that set modes which differ from the caller's
    subgraphs = []
    for index, (place, inputs, body) in enumerate(zip(places, read, bodies, strict=True)):
        later = {node for needed in read[index + 1 :] for node in needed} | set(results)
        outputs = [node for node in body if node in later]
        entered = tuple(others.values())
        others = _other_modes(others, body, callers)
        graph = extract(inputs, (*entered, *body, *map(callers.__getitem__, others)), outputs)
        _mark_histories(graph, inputs, [n for n in nodes if assigned.get(n, place) < place])
        dead = [slots[node] for node in inputs if node not in later and node.op != "placeholder"]
        taken = tuple(slots[node] for node in inputs)
        subgraphs.append(Subgraph(graph, taken, len(outputs), tuple(dead)))
        for node in outputs:
            slots[node] = len(slots)
    flat: Sequence[Node] = nodes[-1].args[0]  # type: ignore[assignment]
    return Split(tuple(subgraphs), tuple(slots[node] for node in flat))


def _mark_histories(graph: GraphModule, inputs: Sequence[Node], before: Sequence[Node]) -> None:
    """Mark the inputs of a subgraph that require grad only since an earlier call wrote to them."""
    cells = _memory_of_all(
        n for call in before if _passes_gradients(call) for n in mutated_by(call)
    )
    for node, held in zip(inputs, graph.graph.find_nodes(op="placeholder"), strict=True):
        records = any(tensor.requires_grad for tensor in tensors_in(value_of(node)))
        if node.op != "placeholder" and records and memory_of(node) & cells:
            held.meta["spec"] = replace(held.meta["spec"], requires_grad=True, is_leaf=False)


def _mode(node: Node) -> object:
    return node.target, node.args[:-1]


def _other_modes(
    before: Mapping[object, Node], body: Sequence[Node], callers: Mapping[object, Node]
) -> dict[object, Node]:
    """Return the modes that differ from the caller's after a subgraph, by mode.

    Each subgraph begins and ends in the caller's grad mode and autocast, which are those at the end
    of the whole graph. An autocast switch comes with its dtype.
    """
    now = {**before, **{_mode(node): node for node in body if changes_mode(node)}}
    differ = [node for mode, node in now.items() if node.args[-1] != callers[mode].args[-1]]
    cast = {node.args[0] for node in differ if node.target is torch.set_autocast_enabled}
    kept = [n for n in now.values() if n.target is torch.set_autocast_dtype and n.args[0] in cast]
    return {_mode(node): node for node in (*kept, *differ)}


def _body(
    nodes: Sequence[Node], assigned: Mapping[Node, int], index: int, copied: Container[Node]
) -> list[Node]:
    found = {node for node in nodes if assigned.get(node) == index}
    for node in reversed(nodes):
        if node in found:
            found.update(one for one in node.all_input_nodes if one in copied)
    return [node for node in nodes if node in found]


def _read(nodes: Sequence[Node], body: Sequence[Node], also: set[Node]) -> list[Node]:
    """Return the nodes that a subgraph reads but does not compute, in order."""
    wanted = (also | {value for node in body for value in node.all_input_nodes}) - set(body)
    return [node for node in nodes if node in wanted]


def extract(inputs: Sequence[Node], body: Sequence[Node], outputs: Sequence[Node]) -> GraphModule:
    """Copy calls of a graph into a graph of their own."""
    graph = Graph()
    copied: dict[Node, Node] = {}
    for node in inputs:
        copied[node] = graph.placeholder(node.name)
        spec: TensorSpec = node.meta["spec"]
        copied[node].meta = {"spec": spec, "val": value_of(node)}
    for node in body:
        copied[node] = copy_node(graph, node, copied.__getitem__)
        copied[node].meta = dict(node.meta)
        if mutated := mutated_by(node):
            copied[node].meta["mutates"] = tuple(copied[target] for target in mutated)
    graph.output(tuple(copied[node] for node in outputs))
    return LazyModule(torch.nn.Module(), graph, "Subgraph")
