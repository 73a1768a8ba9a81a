"""Passes over a torch-level graph, each in place and each preserving the program's behaviour.

    drop_dead_code   erases unused pure nodes; draws, writes, mode changes and raising calls stay
    merge_equal      merges equal pure calls (cse) where the results cannot be told apart
    run_passes       user passes: callables that take the GraphModule and may return another one

Mutations, random draws and changes of modes keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.fx import Graph, GraphModule, Node

from .memory import memory_of
from .nested import frozen
from .node_meta import changes_mode, is_effectful
from .operators.raising import may_raise_on_data, takes_data_size

__all__ = ["dead_calls", "drop_dead_code", "merge_equal", "run_passes"]

Pass = Callable[[GraphModule], GraphModule | None]


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


def run_passes(module: GraphModule, passes: Iterable[Pass]) -> GraphModule:
    """Run user passes in order; each may change the module in place or return a new one."""
    for run in passes:
        module = run(module) or module
        module.graph.lint()
        module.recompile()
    return module
