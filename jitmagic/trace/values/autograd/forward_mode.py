"""Models forward-mode differentiation by dual tensors: torch.autograd.forward_ad in a frame.

The graph records what the program computes with dual tensors as for plain ones. A tangent that the
program reads is one node: torch.func.jvp over the recorded calls that lead from the dual tensors to
the tensor. The primal parts are then in the graph twice, and later stages merge equal calls. To
find out if a tensor has a tangent at all, those calls run on meta tensors in a real level.

A level has to begin and end in one graph. Calls whose repetition would differ (draws, writes,
backwards) are a graph break, and so the whole level runs as plain Python.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from ....compat.autograd import forward_level
from ....compat.pytree import tree_flatten
from ....graph.autocast_mode import OFF
from ....graph.gradients import gradients
from ....graph.node_meta import changes_mode, device_of, value_of
from ....graph.reach import ancestors, descendants
from ....graph.subgraphs import extract
from ....graph.targets.control_flow import has_graphs
from ....graph.targets.regions import FunctionCall
from ....graph.targets.transforms import Pattern, Slot, Transformed
from ....guards.guard import StateRead
from ....lazy_dataclass import dataclass, field
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import handles
from ...result import BreakReason
from ..base import Builder, CannotRebuild, Machine, Value
from ..containers.namedtuples import NamedTupleValue
from ..containers.sequences import SequenceValue
from ..tensors.tensor import TensorValue, record
from .transformed import DualLevels, record_call, try_on_meta

__all__: list[str] = []

_NAME = "torch.autograd.forward_ad"


@dataclass(eq=False)
class _Level:
    """An open level: the root's step and the last node before it, the tangent of each dual tensor,
    and the primal parts that the program has read.
    """

    step: int
    last: Node | None
    tangents: dict[Node, TensorValue] = field(default_factory=dict)
    primals: set[Node] = field(default_factory=set)

    def leads_to(self, node: Node) -> bool:
        """Return whether a tensor is computed from dual ones."""
        return not ancestors([node], self.primals).isdisjoint(self.tangents)


# -- what programs call ----------------------------------------------------------------------------


@handles(forward_ad.enter_dual_level)
def _enter(machine: Machine) -> int:
    graph, levels = machine.notes.graph, machine.notes.of(DualLevels)
    machine.guard(StateRead(forward_level, forward_level()))
    if forward_level() != -1 or levels or not graph.is_frame:
        raise _refused("a level is active")
    if graph.has_cast or graph.autocast != OFF:
        raise _refused("the graph has operations under autocast")
    level = _Level(machine.step, next(iter(reversed(graph.graph.nodes)), None))
    levels.append(level)

    def check_closed(builder: Builder) -> None:
        if level in levels:
            reason = _reason("the graph ends within a level")
            raise CannotRebuild("a level of forward-mode differentiation", level.step, reason)

    machine.at_exit(check_closed)
    return 0


@handles(forward_ad.exit_dual_level)
def _exit(machine: Machine, *, level: Value | None = None) -> None:
    _open_level(machine, level)
    machine.notes.of(DualLevels).clear()


@handles(forward_ad.dual_level.__enter__)
def _enter_block(machine: Machine, block: Value) -> int:
    return _enter(machine)


@handles(forward_ad.dual_level.__exit__)
def _exit_block(machine: Machine, block: Value, *error: Value) -> None:
    _exit(machine)


@handles(forward_ad.make_dual)
def _make_dual(
    machine: Machine, tensor: Value, tangent: Value, *, level: Value | None = None
) -> Value:
    own = _open_level(machine, level)
    if not isinstance(tensor, TensorValue) or not isinstance(tangent, TensorValue):
        raise _refused("make_dual() takes another value than a tensor")
    mine, other = tensor.meta, tangent.meta
    same = (mine.shape, mine.dtype) == (other.shape, other.dtype)
    on_same = device_of(tensor.node) == device_of(tangent.node)
    if not (same and on_same) or not (mine.is_floating_point() or mine.is_complex()):
        raise _refused("a tangent does not match its tensor")
    if own.leads_to(tensor.node) or own.leads_to(tangent.node):
        raise _refused("make_dual() takes a dual tensor")
    made = record(machine, "view_as", [tensor, tensor])
    assert isinstance(made, TensorValue)
    own.tangents[made.node] = tangent
    return made


@handles(forward_ad.unpack_dual)
def _unpack_dual(machine: Machine, tensor: Value, *, level: Value | None = None) -> Value:
    kind = machine.class_of(forward_ad.UnpackedDualTensor, None)
    none = machine.constant(None)
    machine.guard(StateRead(forward_level, forward_level()))
    if not machine.notes.of(DualLevels) and forward_level() == -1:
        return NamedTupleValue(kind, [tensor, none])
    own = _open_level(machine, level)
    if not isinstance(tensor, TensorValue):
        raise _refused("unpack_dual() takes another value than a tensor")
    tangent: Value | None = own.tangents.get(tensor.node)
    if tangent is None and own.leads_to(tensor.node):
        tangent = _tangent(machine, own, tensor.node)
    primal = record(machine, "view_as", [tensor, tensor])
    assert isinstance(primal, TensorValue)
    own.primals.add(primal.node)
    return NamedTupleValue(kind, [primal, tangent or none])


# -- levels and tangents ---------------------------------------------------------------------------


def _open_level(machine: Machine, given: Value | None) -> _Level:
    levels = machine.notes.of(DualLevels)
    number = None if given is None else given.as_constant(machine)
    if not levels or number not in (0, None) or not machine.notes.graph.is_frame:
        raise _refused("the level began outside of the graph")
    level: _Level = levels[-1]
    return level


def _tangent(machine: Machine, level: _Level, result: Node) -> TensorValue | None:
    """Record the tangent of a tensor that is computed from dual ones; None if it has none."""
    duals, captured, region = _region(machine, level, result)
    count = len(duals)
    feeds = [("given", n) for n in range(count)] + [("captured", n) for n in range(len(captured))]
    slots = tuple(map(Slot, range(2 * count)))
    arguments, answer = _pattern(((slots[:count], slots[count:]), {})), _pattern(Slot(0))
    target = Transformed(torch.func.jvp, {}, False, region, feeds, arguments, answer)
    given = (*duals, *(level.tangents[node].node for node in duals))

    def has_tangent(*tensors: torch.Tensor) -> bool:
        pairs = zip(tensors[:count], tensors[count : 2 * count], strict=True)
        with forward_ad.dual_level():
            made = [forward_ad.make_dual(primal, tangent) for primal, tangent in pairs]
            (value,) = region.forward(*made, *tensors[2 * count :])
            return forward_ad.unpack_dual(value).tangent is not None

    metas = tuple(value_of(node) for node in (*given, *captured))
    if not try_on_meta(_NAME, has_tangent, metas, machine.notes.graph):
        return None
    pair = record_call(machine, target, (given, tuple(captured)), device_of(result), _NAME)
    assert isinstance(pair, SequenceValue)
    tangent = pair.items[1]
    assert isinstance(tangent, TensorValue)
    return tangent


def _region(
    machine: Machine, level: _Level, result: Node
) -> tuple[list[Node], list[Node], GraphModule]:
    """Return the dual tensors that lead to a result, the other tensors that are read on the way,
    and the graph of the calls.
    """
    nodes = list(machine.notes.graph.graph.nodes)
    own = nodes if level.last is None else nodes[nodes.index(level.last) + 1 :]
    if any(changes_mode(node) or node.meta.get("mutates") for node in own):
        raise _refused("a call in the level writes to a tensor or changes a mode")
    ends = {*level.primals, *level.tangents}
    path = ancestors([result], ends)
    duals = [node for node in level.tangents if node in path]
    depends = descendants(duals, own)
    body = [node for node in own if node in path and node in depends and node not in ends]
    read = dict.fromkeys(arg for node in body for arg in node.all_input_nodes)
    captured = [node for node in read if node not in body and node not in duals]
    tensors = all(isinstance(value_of(node), torch.Tensor) for node in captured)
    devices = {device_of(node) for node in (*duals, *captured)} if tensors else set()
    if any(map(_cannot_repeat, body)) or len(devices) != 1:
        raise _refused("a call in the level cannot be repeated for the tangents")
    return duals, captured, extract([*duals, *captured], body, [result])


def _pattern(structure: object) -> Pattern:
    leaves, spec = tree_flatten(structure)
    return Pattern(tuple(leaves), spec)


def _cannot_repeat(node: Node) -> bool:
    target = node.target
    is_special = target is gradients or isinstance(target, FunctionCall) or has_graphs(target)
    return is_special or bool(node.meta.get("random")) or "checkpoint" in node.meta


def _reason(why: str) -> BreakReason:
    return RefusedTorchCall.of(name=_NAME, why=why)


def _refused(why: str) -> GraphBreak:
    return GraphBreak(_reason(why))
