"""Autograd functions of the program's own in a joint graph: their backward need not be linear.

A backward of torch's own is linear in its tangents: without some of them, what hangs on those alone
is zero. A backward that the program wrote is run by eager if a gradient reaches it, with zeros for
those that do not, and may compute anything from them. So each node recorded by one is told which
tangents lead to it (`meta["behind"]`), by the history as eager walks it and not by data. So are the
zeros that some of torch's formulas make for a gradient without reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch.autograd.function import BackwardCFunction
from torch.fx import Node

from ...errors import CompileFailed
from ...graph.reach import ancestors
from .traced import Traced

__all__ = ["Behind", "check_gradients", "custom_nodes", "leading_to"]

Behind = Mapping[Any, tuple[int, ...]]


def custom_nodes(results: Sequence[Traced]) -> Behind:
    """The autograd nodes of the program's functions behind the results."""
    return leading_to(results, _is_programs)


def _is_programs(node: Any) -> bool:
    return isinstance(node, BackwardCFunction) and not getattr(node, "is_linear", False)


def leading_to(results: Sequence[Traced], wanted: Callable[[Any], bool]) -> Behind:
    """Autograd nodes behind the results: for each the positions of the results that lead to it."""
    found: dict[Any, tuple[int, ...]] = {}
    for place, result in enumerate(results):
        seen: set[Any] = set()
        stack: list[Any] = [result.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            stack.extend(before for before, _ in node.next_functions)
            if wanted(node):
                found[node] = (*found.get(node, ()), place)
    return found


def check_gradients(nodes: Behind, tangents: Collection[Node]) -> None:
    """Have each of the nodes refuse gradients that no tangent is part of, where a backward may run
    without this function: it could not be told that they are missing then.
    """
    for node, behind in nodes.items():
        if len(behind) < len(tangents):
            node.register_hook(lambda made, given: _refuse_independent(made, tangents))


def _refuse_independent(made: Sequence[Any], tangents: Collection[Node]) -> None:
    for gradient in made:
        if not isinstance(gradient, Traced):
            continue
        if ancestors([gradient.sym.node]).isdisjoint(tangents):
            raise CompileFailed("an autograd function gives a gradient that depends on none")
