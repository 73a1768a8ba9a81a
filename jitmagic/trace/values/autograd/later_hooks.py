"""Registers the hooks that a backward after the call runs, when an exit is described.

A hook that computes from tensors alone becomes a node of the graph (HookCall, in
graph/targets/regions.py), whose region is traced now, so that the joint graph contains it. Any
other hook, and each hook of an input or a result, is an effect of the exit: it is registered on the
live tensor, whose gradient the autograd engine passes to the program's own function. For that a
tensor that was computed in the trace becomes an output, after which the graph is split
(graph/subgraphs.py).
"""

from __future__ import annotations

from collections.abc import Collection, Container
from operator import getitem
from typing import Any

from torch.fx import Node

from ....graph.gradients import has_freed_history
from ....graph.lazy_module import add_node
from ....graph.nested import nodes_in
from ....graph.node_meta import device_of, lines_of_call, spec_on
from ....graph.targets.regions import HookCall, ProgramBackward, Region
from ....guards.guard import ClassFacts, GlobalMissing, IdentityIs, NamespaceFacts, TypeIs
from ....guards.source import SavedRef
from ....lazy_dataclass import dataclass, replace
from ...breaks import GraphBreak
from ...effects import EffectLog
from ...region import RegionBuilder
from ...residual_torch_calls import register_hook
from ...result import Effect, Perform
from ..base import Builder, Machine, ObservedError, Value
from ..objects.operators import is_none
from ..tensors.tensor import TensorValue, lift
from ..tensors.tensor_hooks import TensorHook, TensorHooks, hooked_output, in_engine_order
from .backward_facts import BackwardFacts
from .rebuilt_objects import ObjectRebuilder
from .traced_backwards import SavedObjects

__all__ = ["register_at_exit"]

# Facts that code does not change at run time. A hook that reads a number or a container runs as
# Python, because a graph would have to be compiled again for each value.
_LASTING = (ClassFacts, GlobalMissing, IdentityIs, NamespaceFacts, TypeIs)
_Inside = dict[Any, list[tuple[TensorHook, "_Followed"]]]  # by TensorValue


def register_at_exit(machine: Machine, builder: Any) -> None:
    """Register the hooks that code after the exit can run.

    One autograd node of the graph may have several hooked results. It runs their hooks in the order
    of registration, so that the exit registers them in the order of the engine.
    """
    hooks = machine.notes.of(TensorHooks)
    builder.settle()
    history = machine.graph.history(machine.graph.differentiable_outputs())
    needed = in_engine_order([one for one in hooks if _is_needed(machine, builder, one, history)])
    inside = _followed(machine, builder, needed)
    found = [registered for registered in needed if registered.tensor not in inside]
    effects = _registered_live(builder, found)
    while escaping := _escaping(machine, builder, inside):
        for _, traced in (pair for tensor in escaping for pair in inside.pop(tensor)):
            traced.facts.give_up()
        # These hooks compute only, so that their order among the others cannot be seen.
        found += (more := [one for one in needed if one.tensor in escaping])
        effects += _registered_live(builder, more)
    # What hooks read has become an output: its gradient can be retained.
    more = [one for one in hooks if one not in needed and machine.graph.is_output(one.tensor.node)]
    effects += _registered_live(builder, more)
    _check_order(machine, found)
    _check_reruns(machine, needed, found)
    for effect in effects:
        builder.effect(effect)
    for registered, traced in (pair for own in inside.values() for pair in own):
        _add(machine.graph, traced, registered)
    for registered in (*needed, *more):
        registered.is_registered = True


def _registered_live(builder: Builder, found: list[TensorHook]) -> list[Effect]:
    """Return the effects that register hooks on live tensors, which become outputs."""
    # An output that is computed first also gets the lower sequence number from the graph.
    for registered in reversed(found):
        hooked_output(builder, registered.tensor)
    return [_registration(builder, registered) for registered in found]


def _is_needed(
    machine: Machine, builder: Builder, registered: TensorHook, history: Container[object]
) -> bool:
    """Return whether code after the exit can run the hook, or see that it is registered.
    `history`: of the results.
    """
    if not _is_seen(machine, builder, registered):
        freed = registered.hook is None or has_freed_history(registered.tensor.meta)
        if freed or registered.history not in history:
            return False
    if registered.is_written:
        raise registered.lost()
    return True


def _is_seen(machine: Machine, builder: Builder, registered: TensorHook) -> bool:
    """Return whether code after the exit can get the tensor or the handle."""
    tensor, handle = registered.tensor, registered.handle
    is_held = handle is not None and builder.is_live(handle)
    return is_held or tensor.live is not None or machine.graph.is_output(tensor.node)


def _check_order(machine: Machine, found: list[TensorHook]) -> None:
    """Raise CannotRebuild if the engine may run the hooks of two tensors in another order than in
    eager: a view of an input is made after the graph has run, so its autograd node is a later one.
    """
    made = [one for one in found if one.tensor.live is None and not one.registers_itself]
    if len({id(registered.tensor) for registered in made}) > 1:
        for registered in made:
            if machine.graph.inputs_sharing(registered.tensor.node):
                raise registered.lost()


def _check_reruns(
    machine: Machine, needed: list[TensorHook], found: Collection[TensorHook]
) -> None:
    """Raise CannotRebuild for a hook in a checkpointed region that is registered on a live tensor,
    or that reads an object: the exit has no source of it, only the backward has.
    """
    held = machine.notes.root.of(SavedObjects)
    for registered in (one for one in needed if one.in_rerun):
        if registered in found or any(isinstance(source.root, SavedRef) for source in held):
            raise registered.lost()


def _registration(builder: Builder, registered: TensorHook) -> Effect:
    handle, hook = registered.handle, registered.hook
    if registered.registers_itself and hook is not None:
        return Perform(builder.constant(id), (builder(hook),))
    parts = [builder(part) for part in (registered.tensor, hook) if part is not None]
    parts += [builder(handle)] if handle is not None and builder.is_live(handle) else []
    name = builder.constant(registered.name)
    return Perform(builder.constant(register_hook), (name, *parts))


# -- hooks in the graph ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Followed:
    """A hook that was traced: the node that registers it, and the facts that it relies on."""

    call: HookCall
    args: tuple[tuple[Node, ...], ...]
    facts: BackwardFacts


def _followed(machine: Machine, builder: Builder, needed: list[TensorHook]) -> _Inside:
    """Return the hooks that can be in the graph, by their tensors: all hooks of these."""
    nodes = machine.graph.graph.nodes
    # A gradient that the graph computes would run them too. Partitions at data-dependent calls
    # would separate them from their tensors.
    apart = any(registered.registers_itself for registered in needed)
    if machine.graph.backwards or apart or any(node.meta.get("data_dependent") for node in nodes):
        return {}
    found: _Inside = {}
    for tensor in dict.fromkeys(registered.tensor for registered in needed):
        own = [registered for registered in needed if registered.tensor is tensor]
        if any(_is_seen(machine, builder, one) for one in own) or not _has_own_node(tensor):
            continue
        traced = [(one, call) for one in own if (call := _call(machine, one)) is not None]
        if len(traced) == len(own):
            found[tensor] = traced
            continue
        for _, one in traced:
            one.facts.give_up()
    return found


def _escaping(machine: Machine, builder: Builder, inside: _Inside) -> list[Any]:
    """Return the tensors that the caller gets, and those with a hook that reads what it gets."""
    found = []
    for tensor, traced in inside.items():
        read = any(one.facts.escaping(builder) is not None for _, one in traced)
        if read or machine.graph.is_output(tensor.node):
            found.append(tensor)
    return found


def _add(graph: Any, traced: _Followed, registered: TensorHook) -> None:
    """Add the node right after what it reads, and the tensor's last write: near the tensor, so that
    both stay in a subgraph.
    """
    tensor: Node = registered.tensor.node
    earlier = [one for one in tensor.users if isinstance(one.target, HookCall)]
    read = {*nodes_in(traced.args), *earlier, *graph.writes.to(tensor)}
    last = [node for node in graph.graph.nodes if node in read][-1]
    with graph.graph.inserting_after(last):
        node = add_node(graph.graph, "call_function", traced.call, traced.args, {})
    node.meta.update(val=(), spec=(), step=registered.created_at_step)
    node.meta["lines"] = lines_of_call(registered.lines, registered.name)


def _has_own_node(tensor: Any) -> bool:
    """Return whether the graph has an autograd node of the tensor alone.

    One of several results of a call may have no gradient, for which eager passes None. Views that
    are results of the graph, or of a part of it, are views of live tensors: their gradients do not
    pass through a view in the graph.
    """
    if tensor.meta._is_view():
        return False
    whole = tensor.node.args[0] if tensor.node.target is getitem else None
    return not (isinstance(whole, Node) and isinstance(whole.meta["spec"], tuple))


def _call(machine: Machine, registered: TensorHook) -> _Followed | None:
    """Trace a hook; return None if it has to run as Python."""
    assert registered.hook is not None
    name, node = "hook", registered.tensor.node
    facts = BackwardFacts(machine, name)
    with facts.followed():
        try:
            call = HookCall(name)
            hook = facts.rebind(registered.hook).realize(machine)
            call.backward, captured = _traced(machine, facts, hook, node)
            facts.check_copies()
            rebuilder = ObjectRebuilder(machine, facts)
            make, left = rebuilder.rebuilt([registered.hook])
            lasts = all(isinstance(guard, _LASTING) for guard in facts.known.book.since(0))
            if facts.is_stale or not lasts or not all(isinstance(one, Node) for one in left):
                raise facts.refused("it reads what may change")
        except (GraphBreak, ObservedError):
            facts.give_up()
            return None
    call.original = ProgramBackward(make, facts.guards)
    return _Followed(call, ((node,), (), (), captured, left), facts)


def _traced(
    machine: Machine, facts: BackwardFacts, hook: Value, node: Node
) -> tuple[Region, tuple[Node, ...]]:
    """Trace the hook as a region, and return it with the nodes that it captures."""
    outer = machine.notes
    region = RegionBuilder(outer, "hook")
    effects, machine.effects, machine.notes = machine.effects, EffectLog(), region.notes  # type: ignore[misc]
    try:
        spec = spec_on(node.meta["val"].detach(), device_of(node))
        given = region.feed("gradient", 0, replace(spec, requires_grad=True, is_leaf=False))
        region.unknown_strides.add(given)  # autograd promises no layout
        version = given.meta["val"]._version
        answer = hook.call(machine, [lift(machine, given)], {}).realize(machine)
        if machine.effects.count or given.meta["val"]._version != version:
            raise facts.refused("it has side effects")
    finally:
        machine.notes, machine.effects = outer, effects  # type: ignore[misc]
    if is_none(answer):
        return region.close([None])
    if not isinstance(answer, TensorValue) or not _replaces(answer, given):
        raise facts.refused("it returns something other than a gradient")
    return region.close([answer.node])


def _replaces(answer: TensorValue, given: Node) -> bool:
    mine, wanted = answer.meta, given.meta["val"]
    alike = (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
    return alike and device_of(answer.node) == device_of(given)
