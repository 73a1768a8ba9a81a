"""Makes a module of an ExportedProgram, for jit to compile.

In: any torch.export.ExportedProgram. Out: its module, whose forward is plain Python that the tracer
follows, with its checks of sizes, and the sizes that its Dims declare, as jit's option `dynamic`.
"""

from __future__ import annotations

import inspect
from types import EllipsisType
from typing import Any

import torch

from ..compat.export import ExportedProgram, InputKind, expression_of, int_oo, plain_checks
from ..compat.pytree import tree_unflatten

__all__ = ["follow_checks", "module_of"]

Dimensions = dict[int, tuple[int, int]]
CHECKS = "_guards_fn"  # the submodule that torch.export gives the module of a program
_LARGEST = 2**31


def module_of(
    program: ExportedProgram,
) -> tuple[torch.fx.GraphModule, dict[str, Dimensions | EllipsisType]]:
    """Return the module of a program, and what varies in its arguments, by their names."""
    module = program.module()
    follow_checks(module)
    if CHECKS in module._modules:
        # The hooks check the structure of the arguments, as forward does when it flattens them.
        # With hooks, each call would leave the compiled code.
        module._forward_pre_hooks.clear()
        module._forward_pre_hooks_with_kwargs.clear()
        module._forward_hooks.clear()
        module._forward_hooks_always_called.clear()
    return module, _dynamic(program, module)


def follow_checks(module: torch.fx.GraphModule) -> None:
    """Let the tracer follow the checks of sizes in the module of an exported program."""
    checks: Any = module._modules.get(CHECKS)
    if checks is not None:
        checks.forward = plain_checks(checks.forward)


def _dynamic(
    program: ExportedProgram, module: torch.fx.GraphModule
) -> dict[str, Dimensions | EllipsisType]:
    """Return what the Dims of a program say about its arguments that are tensors or ints."""
    nodes = program.graph.find_nodes(op="placeholder")
    specs = zip(nodes, program.graph_signature.input_specs, strict=True)
    values = [node.meta["val"] for node, spec in specs if spec.kind is InputKind.USER_INPUT]
    args, kwargs = tree_unflatten(values, program.call_spec.in_spec)
    names = tuple(inspect.signature(module.forward).parameters)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found: dict[str, Dimensions | EllipsisType] = {}
    for name, value in given.items():
        if isinstance(value, torch.SymInt):
            found[name] = ...
        elif isinstance(value, torch.Tensor):
            dims = {dim: _range(program, size) for dim, size in enumerate(value.shape)}
            if known := {dim: limits for dim, limits in dims.items() if limits is not None}:
                found[name] = known
    return found


def _range(program: ExportedProgram, size: Any) -> tuple[int, int] | None:
    """Return the range of a size; None for a constant."""
    if not isinstance(size, torch.SymInt):
        return None
    limits = program.range_constraints.get(expression_of(size))
    low = 2 if limits is None else max(2, int(limits.lower))
    high = _LARGEST if limits is None or limits.upper == int_oo else int(limits.upper)
    return low, high
