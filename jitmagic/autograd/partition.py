"""Cuts the joint graph into forward and backward with little memory between them.

In: a `Joint`. Out: a `Partition`. A forward value that backward needs is either saved or
recomputed; a minimum cut weighs bytes written and read against work (after Chen et al. 2016,
"Training deep nets with sublinear memory cost", and its min-cut form). Invariants: random draws,
matrix products, convolutions and extern calls run once, unless a memory budget below 1 asks for
less (memory_budget.py). Inputs and results are saved only where eager autograd saves them too, for
the same tangents (`Joint.eager_saved`), so that a later in-place write to them raises exactly where
eager does. A value that is written to an input is saved as that input. The second run of a
checkpointed region (`meta["recomputed"]`, `Recorder.recomputed`) belongs to backward, starting from
the values that enter it (`meta["entered"]`). A saved input is not copied: if the caller has written
to its `.data`, backward reads the new value, as in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Graph, Node

from ..devices import row_of
from ..errors import CompileFailed
from ..graph.lazy_module import copy_node
from ..graph.operators.foreign import is_foreign
from ..graph.operators.raising import may_raise_on_data
from ..graph.operators.registered import registered_cost
from ..graph.reach import ancestors, descendants
from ..graph.symbolic.number_ranges import READS_NUMBER
from ..lazy_dataclass import dataclass, replace
from ..operators.operation import work_of
from ..spec import TensorSpec
from .memory_budget import recomputed_within, saved_bytes, spec_bytes, spec_elements
from .mincut import INFINITE, FlowNetwork
from .nodes import alias_root, flows_of, is_view, mask_of, module_of, placeholders, runs_once
from .offered_copies import offer_copies, withdraw_copies
from .result import EagerSaved, Joint, MemoryBudget, Partition

__all__ = ["partition"]

aten = torch.ops.aten

# Cost units: a quarter of a byte of memory traffic. A saved byte is written once and read once.
_SAVED_BYTE = 8
_READ_BYTE = 4
_CHEAP = 1  # per element: an addition, a comparison, a cast
_TRANSCENDENTAL = 10  # additions, from which on an element costs a device its `costly`
_REDUCED = 6  # per element read by a reduction

_NOT_SAVED = EagerSaved(0)
# A number that a call reads is not a tensor that could be saved.
_FREE = frozenset({aten.full.default, aten.arange.start_step, READS_NUMBER})
_REDUCTIONS = frozenset(
    {
        aten.sum.dim_IntList,
        aten.sum.default,
        aten.mean.dim,
        aten.mean.default,
        aten.amax.default,
        aten.amin.default,
    }
)


def partition(joint: Joint, memory_budget: float = 1.0) -> Partition:
    """Split the joint graph; without gradients it is its own forward.

    memory_budget: from 1, which recomputes only what is cheap, to 0, which saves least
    """
    if not joint.grad_inputs:
        for node in joint.module.graph.nodes:
            node.meta.pop("checkpoint", None)
        return Partition(
            joint.module,
            None,
            joint.outputs,
            len(joint.results),
            (),
            (),
            0,
            (),
            (),
            joint.mutated_inputs,
            aliasing=joint.aliasing,
        )
    copies = offer_copies(joint)
    parts, chosen = _cut(joint)
    if unused := {copied for copied in copies if copied not in chosen[0]}:
        withdraw_copies(unused)
        parts, chosen = parts.without(unused), (chosen[0], chosen[1] - unused)
    if memory_budget < 1:
        cut, budget = _within(memory_budget, parts, chosen)
        return replace(_split(joint, parts, *cut), budget=budget)
    return _split(joint, parts, *chosen)


_Cut = tuple[set[Node], set[Node]]


def _cut(joint: Joint) -> tuple[_Parts, _Cut]:
    """Return the nodes by role, and the cheapest cut."""
    parts = _Parts.of(joint)
    chosen = _choose(parts, _barred(parts))
    if chosen is None and parts.recomputed:
        # A value that enters a checkpointed region cannot be saved.
        parts = _Parts.of(joint, runs_again=False)
        chosen = _choose(parts, _barred(parts))
    if chosen is None:
        raise CompileFailed("autograd: the backward needs a value that cannot be saved")
    return parts, chosen


def _within(memory_budget: float, parts: _Parts, chosen: _Cut) -> tuple[_Cut, MemoryBudget]:
    """Return a cut that saves less than the chosen one, for more work in the backward."""
    barred, cuts = _barred(parts), {frozenset[Node](): chosen}

    def bytes_saved(again: frozenset[Node]) -> int:
        if again not in cuts:
            cuts[again] = _choose(parts, barred, again) or chosen
        between = cuts[again][0] - {*parts.inputs, *parts.results}
        return sum(map(saved_bytes, between))

    costly = [
        node
        for node in parts.needed
        if node in parts.forward
        and _may_run_again(node)
        and _cost_to_recompute(node, parts) >= INFINITE
    ]
    again = recomputed_within(memory_budget, costly, bytes_saved)
    names = tuple(
        str(getattr(node.target, "_opname", node.target))
        for node in costly
        if node in again & cuts[again][1]
    )
    kept, before = bytes_saved(again), bytes_saved(frozenset())
    return cuts[again], MemoryBudget(memory_budget, kept, before, names)


def _may_run_again(node: Node) -> bool:
    if node.op != "call_function" or runs_once(node) or "checkpoint" in node.meta:
        return False
    return node.target is not aten.copy_.default


@dataclass(frozen=True, slots=True)
class _Parts:
    """The joint graph's nodes by role."""

    nodes: list[Node]
    inputs: list[Node]
    tangents: list[Node]
    results: list[Node]
    gradients: list[Node]
    mutated: set[Node]  # inputs that forward overwrites before backward runs
    reach: Sequence[Sequence[int]]  # per gradient: the tangents that reach it
    eager_saved: Mapping[Node, EagerSaved]  # of values that are not views
    in_inputs: dict[Node, int]  # values in an input's memory after forward -> that input
    backward: set[Node]  # nodes that depend on tangents
    forward: set[Node]  # needed for results, writes to inputs and random draws
    needed: list[Node]  # other nodes that backward needs, in order
    ends: list[Node]  # roots of backward: gradients, and its own effects
    recomputed: list[Node]  # second runs of regions

    @staticmethod
    def of(joint: Joint, runs_again: bool = True) -> _Parts:
        """Sort the nodes. `runs_again`: whether backward recomputes checkpointed regions."""
        nodes = list(joint.module.graph.nodes)
        holders = placeholders(joint.module)
        inputs, tangents = holders[: len(joint.inputs)], holders[len(joint.inputs) :]
        flat: tuple[Node, ...] = nodes[-1].args[0]  # type: ignore[assignment]
        results, gradients = list(flat[: len(joint.results)]), list(flat[len(joint.results) :])
        recomputed = [node for node in nodes if runs_again and "recomputed" in node.meta]
        own = [n for n in nodes if runs_once(n) and n.meta.get("tangents")]  # may read none
        backward = descendants((*tangents, *recomputed, *own), nodes[:-1])
        # Attention's CUDA backward counts as random (it replays dropout), but is no forward effect.
        effects = [node for node in nodes if runs_once(node) and node not in backward]
        effects += [node for node in nodes if node.target is aten.copy_.default]
        effects += [n for n in nodes if not n.users and n not in backward and may_raise_on_data(n)]
        ends = [*gradients, *(n for n in nodes if n in backward and _is_own_effect(n))]
        reached = ancestors(ends)
        needed = [n for n in nodes if n in reached and n not in backward]
        return _Parts(
            nodes,
            inputs,
            tangents,
            results,
            gradients,
            {inputs[i] for i in joint.mutated_inputs},
            joint.reach,
            joint.eager_saved,
            _values_in_inputs(nodes, inputs, results, joint.eager_saved),
            backward,
            ancestors((*results, *effects)),
            needed,
            ends,
            recomputed,
        )

    def without(self, erased: set[Node]) -> _Parts:
        """Return the parts after nodes were erased that are no inputs and no results."""
        nodes, needed = ([n for n in each if n not in erased] for each in (self.nodes, self.needed))
        return replace(self, nodes=nodes, needed=needed, forward=self.forward - erased)

    def saved_for(self, node: Node) -> int:
        """Return the tangents (bits) whose backward makes eager save the value's memory."""
        return self.eager_saved.get(alias_root(node), _NOT_SAVED).tangents


def _values_in_inputs(
    nodes: list[Node],
    inputs: list[Node],
    results: list[Node],
    eager_saved: Mapping[Node, EagerSaved],
) -> dict[Node, int]:
    """Return values that eager saves as the input they were written to, with its version checked.
    An example is a parameter that is clipped before use.
    """
    places = {node: i for i, node in enumerate(inputs)}
    in_inputs: dict[Node, int] = {}
    for node in nodes:
        if node.target is not aten.copy_.default:
            continue
        target, value = node.all_input_nodes
        place = places.get(target)
        same_strides = value.meta["spec"].stride == target.meta["spec"].stride
        if place is None or not same_strides or value in results:
            continue
        if place in eager_saved.get(value, _NOT_SAVED).inputs:
            in_inputs[value] = place
    return in_inputs


# -- save or recompute ----------------------------------------------------------------------------


def _choose(
    parts: _Parts, barred: Mapping[Node, set[Node]], again: frozenset[Node] = frozenset()
) -> _Cut | None:
    """Return (nodes saved by forward, forward nodes recomputed in backward), None if there is no
    such cut. `barred` maps a node to users that may not read its saved value; `again`: costly nodes
    that may be recomputed.
    """
    # The source's side of the cut runs in forward, the sink's in backward. Vertex 3i stands for the
    # computation of node i, 3i + 1 for its value: cutting the edge between them saves the value,
    # cutting an edge from the source recomputes it. Loops read the value from vertex 3i + 2: the
    # edge to it from 3i is what reading a value costs that is saved anyway.
    vertex_of = {node: 3 * i for i, node in enumerate(parts.needed)}
    source = 3 * len(vertex_of)
    sink = source + 1
    # Barred users read this vertex, which the save edge does not cut off: such a user in backward
    # forces the value to be recomputed there.
    apart = {node: sink + 1 + i for i, node in enumerate(barred)}
    network = FlowNetwork(sink + 1 + len(apart))
    results, gradients = set(parts.results), set(parts.gradients)
    shown = {alias_root(node) for node in parts.results}  # memory that the user may write to
    for node, vertex in vertex_of.items():
        save, recompute = _costs(node, parts, again, results, shown)
        network.edge(vertex, vertex + 1, save)
        if recompute:
            network.edge(source, vertex, recompute)
        if node in apart:
            network.edge(vertex, apart[node], INFINITE)
        network.edge(vertex + 1, vertex + 2, INFINITE)
        if reading := _cost_to_read(node, parts, save):
            network.edge(vertex, vertex + 2, reading)
        reads = {
            (
                apart[node] if user in barred.get(node, ()) else vertex + 1 + _fusible(user),
                vertex_of.get(user, sink),
            )
            for user in node.users
            if user in vertex_of or user in parts.backward
        }
        if node in gradients:
            reads.add((vertex + 1, sink))
        for value, reader in reads:
            network.edge(value, reader, INFINITE)
    total, early = network.cut(source, sink)
    # Barred users can make a cut impossible: a formula here may read a value that eager's does not.
    if total >= INFINITE:
        return _choose(parts, {}, again) if barred else None
    saved = {node for node, v in vertex_of.items() if v in early and v + 1 not in early}
    late = {node for node, v in vertex_of.items() if v not in early and node in parts.forward}
    return saved, late


def _barred(parts: _Parts) -> dict[Node, set[Node]]:
    """Return users of inputs and results that run for tangents for which eager saves neither."""
    results, everything = set(parts.results), (1 << len(parts.tangents)) - 1
    partly = {
        node: kept
        for node in parts.needed
        if (node in results or node.op == "placeholder")
        and (kept := parts.saved_for(node))
        and everything & ~kept
    }
    if not partly:
        return {}
    flows = flows_of(parts.nodes, parts.tangents)
    runs_for = dict(flows)
    for gradient, reached_by in zip(parts.gradients, parts.reach, strict=True):
        if gradient not in flows:
            runs_for[gradient] = mask_of(reached_by)
    for node in reversed(parts.needed):
        for user in node.users if node not in flows else ():
            runs_for[node] = runs_for.get(node, 0) | runs_for.get(user, 0)
    barred = {
        node: {user for user in node.users if runs_for.get(user, 0) & ~kept}
        for node, kept in partly.items()
    }
    return {node: users for node, users in barred.items() if users}


def _costs(
    node: Node, parts: _Parts, again: frozenset[Node], results: set[Node], shown: set[Node]
) -> tuple[int, int]:
    """Return what it costs to save the node's value, and to recompute it in backward."""
    is_lost = node in parts.mutated
    is_entered = bool(parts.recomputed) and "entered" in node.meta
    save = INFINITE if is_lost else _cost_to_save(node, parts, results, shown)
    if node in parts.in_inputs:
        save = 0
    if node.op == "placeholder":
        # What enters a checkpointed region is held by eager's checkpoint function too.
        return (0 if is_entered and not is_lost else save), INFINITE
    recompute = _cost_to_recompute(node, parts) if node in parts.forward else 0
    if node in again:
        recompute = 1
    if (is_entered or "checkpoint" in node.meta) and save < INFINITE:
        recompute = INFINITE  # eager saves it: its operands may have been written to
    return save, recompute


def _cost_to_save(node: Node, parts: _Parts, results: set[Node], shown: set[Node]) -> int:
    if node.op == "get_attr":
        return 0
    kept = parts.saved_for(node)
    if node.op == "placeholder" or node in results:
        return 0 if kept else INFINITE
    spec = node.meta.get("spec")
    if spec is None or is_view(node) or node.target in _FREE or (node in shown and not kept):
        return INFINITE
    return spec_bytes(spec) * _SAVED_BYTE + 1


def _cost_to_read(node: Node, parts: _Parts, save: int) -> int:
    """Return what loops of the backward pay for reading a value that is saved for others too: a
    batch norm followed by relu computes the mask from its input, and not from relu's result.
    """
    spec = node.meta.get("spec")
    if spec is None or not row_of(spec.device).rereads or save >= INFINITE:
        return 0
    others = any(user in parts.backward and not _fusible(user) for user in node.users)
    return spec_bytes(spec) * _READ_BYTE if not save or others else 0


def _cost_to_recompute(node: Node, parts: _Parts) -> int:
    """Return the cost of recomputing a forward node in backward; INFINITE forbids it."""
    if node.op == "get_attr" or is_view(node) or node.target in _FREE:
        return 0
    if node.target is operator.getitem:
        return 0
    if runs_once(node) or node.op == "placeholder":
        return INFINITE
    if (registered := registered_cost(node)) is not None:
        return int(registered) + 1
    spec: TensorSpec | None = node.meta.get("spec")
    if spec is None:
        return INFINITE
    if work := work_of(node.target):
        each = row_of(spec.device).costly if work >= _TRANSCENDENTAL else _CHEAP
        cost = each * spec_elements(spec)
        return cost + spec_bytes(spec) * _READ_BYTE if _read_whole(node, parts) else cost
    if node.target in _REDUCTIONS:
        argument = node.all_input_nodes[0].meta["spec"]
        return _REDUCED * spec_elements(argument) + 1
    return INFINITE


def _read_whole(node: Node, parts: _Parts) -> bool:
    """Return whether backward reads the value from memory, in an operation that is not a loop."""
    for user in node.users:
        if is_view(user):
            if _read_whole(user, parts):
                return True
        elif user in parts.backward and not _fusible(user):
            return True
    return False


def _fusible(node: Node) -> bool:
    return bool(work_of(node.target)) or node.target in _REDUCTIONS


def _is_own_effect(node: Node) -> bool:
    """Return whether the kernel of a foreign operator may have effects."""
    return is_foreign(node.target) and runs_once(node)


# -- the two graphs --------------------------------------------------------------------------------


def _split(joint: Joint, parts: _Parts, saved: set[Node], recomputed: set[Node]) -> Partition:
    used = ancestors(parts.ends, saved | set(parts.inputs) | set(parts.tangents))
    carriers = {i: node for i, node in enumerate(parts.inputs) if node in used}
    carriers |= {i: node for node, i in parts.in_inputs.items() if node in used and node in saved}
    inputs = tuple(sorted(carriers))
    kept_results = tuple(
        i
        for i, node in enumerate(parts.results)
        if node in used and node in saved and parts.results.index(node) == i
    )
    result_nodes = set(parts.results)
    between = [
        node
        for node in parts.needed
        if node in saved
        and node in used
        and node not in result_nodes
        and node.op == "call_function"
        and node not in parts.in_inputs
    ]
    constants = dict(joint.module.named_buffers())
    forward = _forward_graph(parts, between)
    carried = [*(carriers[i] for i in inputs), *(parts.results[i] for i in kept_results)]
    backward = _backward_graph(parts, [*carried, *between])
    return Partition(
        module_of(forward, constants, "Forward"),
        module_of(backward, constants, "Backward"),
        joint.outputs,
        len(joint.results),
        inputs,
        kept_results,
        len(between),
        joint.tangents,
        joint.grad_inputs,
        joint.mutated_inputs,
        tuple(node.name for node in parts.needed if node in recomputed and _is_work(node, used)),
        reach=joint.reach,
        freed=joint.freed,
        aliasing=joint.aliasing,
    )


def _is_work(node: Node, used: set[Node]) -> bool:
    if node not in used or node.op != "call_function" or is_view(node):
        return False
    return node.target not in _FREE and node.target is not operator.getitem


def _copy(graph: Graph, node: Node, env: dict[Node, Node]) -> Node:
    copied = copy_node(graph, node, env.__getitem__)
    copied.meta.pop("checkpoint", None)  # its live objects could not be stored; the cut is made
    env[node] = copied
    return copied


def _forward_graph(parts: _Parts, between: list[Node]) -> Graph:
    graph, env = Graph(), dict[Node, Node]()
    wanted = parts.forward | ancestors(between) | set(parts.inputs)
    for node in parts.nodes:
        if node in wanted:
            _copy(graph, node, env)
    graph.output(tuple(env[node] for node in (*parts.results, *between)))
    return graph


def _backward_graph(parts: _Parts, carried: list[Node]) -> Graph:
    """Build the backward; recomputed nodes come right before their first use."""
    graph, env = Graph(), dict[Node, Node]()
    for node in (*carried, *parts.tangents):
        placeholder = graph.placeholder(node.name)
        placeholder.meta.update(spec=node.meta["spec"], lines=node.meta.get("lines", ()))
        env[node] = placeholder
    wanted = ancestors(parts.ends, set(env))
    for node in parts.nodes:
        if node in wanted and node in parts.backward:
            _emit(graph, node, env)
    for node in parts.gradients:
        _emit(graph, node, env)
    graph.output(tuple(env[node] for node in parts.gradients))
    return graph


def _emit(graph: Graph, node: Node, env: dict[Node, Node]) -> None:
    """Copy node and the operands it still lacks, operands first."""
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [n for n in top.all_input_nodes if n not in env] if top not in env else []
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if top not in env:
            if top.op == "placeholder":
                raise CompileFailed(f"autograd: the backward needs {top.name}, which is not saved")
            _copy(graph, top, env)
