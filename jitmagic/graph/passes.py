"""Passes over a torch-level graph, each in place and each preserving the program's behaviour.

    drop_dead_code   erases unused pure nodes; draws, writes, mode changes and raising calls stay
    merge_equal      merges equal pure calls (cse) where the results cannot be told apart
    describe_edited  gives metas to the calls that a pass of the user has added or changed

Mutations, random draws and changes of modes keep their order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..spec import TensorSpec
from .autocast_mode import preserving_autocast, read_autocast
from .gradients import gradients
from .memory import memory_of
from .meta_calls import MetaCall, Modes
from .nested import frozen, map_nodes, tensor_nodes_in
from .node_meta import changes_mode, device_of, is_effectful, lines_of, spec_on, tensors_in
from .operators.autocast import CastCache
from .operators.raising import may_raise_on_data, takes_data_size
from .operators.target_traits import draws, hidden_writes
from .symbolic.sym_node import as_torch
from .targets.control_flow import has_graphs
from .targets.regions import back_to_entry_mode

__all__ = [
    "GraphState",
    "dead_calls",
    "describe_edited",
    "drop_dead_code",
    "merge_equal",
    "state_of",
]


def drop_dead_code(graph: Graph) -> int:
    """Erase dead pure nodes and mode changes that no call runs under; return their number."""
    dead = dead_calls(graph, lambda node: False)
    for node in dead:
        graph.erase_node(node)
    return len(dead) + _drop_idle_modes(graph)


def dead_calls(graph: Graph, is_output: Callable[[Node], bool]) -> list[Node]:
    """Return pure nodes that only dead nodes read, the last one first. `is_output` is needed for a
    graph that is not finished yet.
    """
    dead: dict[Node, None] = {}
    for node in reversed(graph.nodes):
        if is_output(node) or any(user not in dead for user in node.users):
            continue
        if not (is_effectful(node) or may_raise_on_data(node) or takes_data_size(node)):
            dead[node] = None
    return list(dead)


def _drop_idle_modes(graph: Graph) -> int:
    """Erase all but the last of consecutive changes of one mode."""
    erased = 0
    previous: dict[tuple[object, ...], Node] = {}
    for node in list(graph.nodes):
        if node.op == "placeholder":
            continue
        if not changes_mode(node):
            previous.clear()
            continue
        which = node.target, *node.args[:-1]
        if which in previous:
            graph.erase_node(previous[which])
            erased += 1
        previous[which] = node
    return erased


def merge_equal(graph: Graph) -> int:
    """Merge equal pure calls, unless the graph writes in place; return the number merged.

    Two results that are both outputs (or views of outputs) stay two tensors: the caller may write
    to one of them.
    """
    nodes = list(graph.nodes)
    if any(node.meta.get("mutates") for node in nodes):
        return 0
    leaving = _storages_of_outputs(graph)
    seen: dict[tuple[object, ...], Node] = {}
    mode, merged = 0, 0
    for node in nodes:
        mode += changes_mode(node)
        if node.op not in ("call_function", "call_method") or is_effectful(node):
            continue
        if leaving & memory_of(node):
            continue
        key = (mode, node.op, node.target, frozen((node.args, node.kwargs), _if_node))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            merged += 1
    return merged


def _storages_of_outputs(graph: Graph) -> set[int]:
    leaving: set[int] = set()
    for node in graph.nodes:
        if node.op == "output":
            for source in node.all_input_nodes:
                leaving |= memory_of(source)
    return leaving


def _if_node(item: object) -> Node | None:
    return item if isinstance(item, Node) else None


# -- after an edit ---------------------------------------------------------------------------------


class _State(NamedTuple):
    key: Hashable
    arguments: tuple[tuple[Node, TensorSpec | None], ...]


GraphState = dict[Node, _State]


def state_of(graph: Graph) -> GraphState:
    """Return the calls of a graph as they are now."""
    return {
        node: _State(_key(node), tuple((a, a.meta.get("spec")) for a in node.all_input_nodes))
        for node in graph.nodes
    }


def _key(node: Node) -> Hashable:
    return node.target, frozen((node.args, node.kwargs), _identity)


def _identity(part: object) -> Hashable:
    """Return what stands for an argument that has an identity or that `==` would guard."""
    return None if isinstance(part, bool | int | float | complex | str) else (type(part), id(part))


def describe_edited(graph: Graph, before: GraphState) -> None:
    """Give the metas of `GraphBuilder.call` to the calls that were not in the graph or had other
    arguments, and to those that depend on them.

    They run in the modes that the graph sets. Calls that differentiate or run graphs of their own
    keep their metas, as their history cannot be repeated; their arguments must have the specs that
    they had. Raises ValueError if they do not, and what `MetaCall` raises.
    """
    stale: set[Node] = set()
    with preserving_autocast(), torch.set_grad_enabled(torch.is_grad_enabled()):
        entered = torch.is_grad_enabled()
        for node in graph.nodes:
            if changes_mode(node):
                if node.target is back_to_entry_mode:
                    torch.set_grad_enabled(entered)
                else:
                    node.target(*node.args)  # type: ignore[operator]
                node.meta = node.meta or {"val": None, "spec": None, "lines": ()}
                continue
            is_same = node in before and before[node].key == _key(node)
            if is_same and stale.isdisjoint(node.all_input_nodes):
                continue
            if _has_history(node):
                _check_arguments(node, before)
            elif node.op in ("call_function", "call_method"):
                _describe(node)
                stale.add(node)


def _has_history(node: Node) -> bool:
    target = node.target
    return target is gradients or target == "requires_grad_" or has_graphs(target)


def _check_arguments(node: Node, before: GraphState) -> None:
    known = before[node].arguments if node in before else ()
    if [spec for _, spec in known] != [arg.meta.get("spec") for arg in node.all_input_nodes]:
        raise ValueError(f"changes the arguments of {node.name}, which cannot be run again")


def _meta_of(argument: object) -> dict[str, Any]:
    return argument.meta if isinstance(argument, Node) else {}


def _describe(node: Node) -> None:
    """Run a call on the metas of its arguments."""
    near = next((arg for arg in node.all_input_nodes if lines_of(arg)), None)
    near = near or next((user for user in node.users if lines_of(user)), node)
    node.meta.setdefault("lines", lines_of(near))
    if "step" in near.meta:
        node.meta.setdefault("step", near.meta["step"])
    if node.target is operator.getitem:
        source, index = _meta_of(node.args[0]), node.args[1]
        if isinstance(source.get("val"), tuple | list):
            node.meta.update(val=source["val"][index], spec=source["spec"][index])
            return
    given = tensor_nodes_in((node.args, node.kwargs))
    tensors = [tensor for arg in given for tensor in tensors_in(arg.meta["val"])]
    devices = {id(arg.meta["val"]): device_of(arg) for arg in given}
    values, named = map_nodes((node.args, node.kwargs), lambda arg: as_torch(arg.meta["val"]))
    modes = Modes(torch.is_grad_enabled(), read_autocast(), CastCache(), None, None)
    call = MetaCall(node.target, values, named, devices, modes, tensors)  # type: ignore[arg-type]
    call.run()
    node.meta.update(val=call.value, spec=spec_on(call.value, call.placement.device))
    written = tuple(a for a in given if any(a.meta["val"] is t for t in call.changed))
    written += hidden_writes(call.target, node.args, {**node.kwargs}, written)
    node.meta.pop("mutates", None)
    node.meta.pop("random", None)
    if written:
        node.meta["mutates"] = written
    if draws(call.target, values, named):
        node.meta["random"] = True
