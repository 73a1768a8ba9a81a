"""Torch-level graphs for tests: symbolic traces with parameters and buffers lifted to placeholders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx


class _Inliner(fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return False


@contextmanager
def _plain_batch_norm() -> Iterator[None]:
    """Batch norm branches on the rank of its input, which a symbolic trace does not have."""
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
    before = [kind._check_input_dim for kind in kinds]
    for kind in kinds:
        kind._check_input_dim = lambda self, x: None
    try:
        yield
    finally:
        for kind, check in zip(kinds, before):
            kind._check_input_dim = check


def lift(
    program: Callable[..., Any], args: tuple[torch.Tensor, ...]
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """(graph with a flat tuple output, its inputs: args, then parameters and buffers as used)."""
    with _plain_batch_norm():
        graph = _Inliner().trace(program)
    root = program if isinstance(program, torch.nn.Module) else torch.nn.Module()
    inputs = list(args)
    holders: dict[str, fx.Node] = {}
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "get_attr" or not isinstance(program, torch.nn.Module):
            continue
        value: Any = root
        for part in node.target.split("."):
            value = getattr(value, part)
        name = next((k for k, held in enumerate(inputs) if held is value), None)
        if name is None:
            with graph.inserting_after(last):
                last = graph.placeholder(node.target.replace(".", "_"))
            holders[str(len(inputs))] = last
            name = len(inputs)
            inputs.append(value)
        node.replace_all_uses_with(holders[str(name)])
        graph.erase_node(node)
    out = next(node for node in graph.nodes if node.op == "output")
    if not isinstance(out.args[0], (tuple, list)):
        out.args = ((out.args[0],),)
    return fx.GraphModule(root, graph), inputs
