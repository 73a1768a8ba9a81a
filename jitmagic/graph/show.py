"""Prints a torch-level graph as Python code with shapes and user lines in comments."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ..compat.operators import OpOverload
from ..operators import SCALARS
from ..spec import TensorSpec
from .node_meta import lines_of
from .targets.control_flow import PLACES, control_flow_in, has_graphs
from .targets.regions import FunctionCall
from .targets.transforms import Transformed

__all__ = ["show"]

# Functions of Python's `operator`, most of which have the names of scalar operations.
_OPERATORS = {row.name: row.symbol for row in SCALARS.values() if row.symbol}
_OPERATORS |= {"mod": "%", "matmul": "@", "and_": "&", "or_": "|", "xor": "^"}


def show(module: GraphModule, name: str = "graph") -> str:
    """Return the graph as a Python function; lines end with the result's spec and the user's
    line.
    """
    nodes = list(module.graph.nodes)
    names = ", ".join(node.name for node in nodes if node.op == "placeholder")
    rows = [(f"def {name}({names}):", "")]
    for node in nodes:
        if node.op == "output":
            rows.append((f"    return {_text(node.args[0])}", ""))
        elif node.op == "placeholder":
            rows.append((f"    # {node.name}: {node.meta['spec']}", ""))
        else:
            rows.append((f"    {_statement(node)}", _remark(node)))
    width = min(60, max((len(code) for code, remark in rows if remark), default=0))
    text = "\n".join(f"{code:<{width}}  # {remark}" if remark else code for code, remark in rows)
    calls = [node.target for node in nodes if isinstance(node.target, FunctionCall)]
    regions = [(c.backward.graph, f"{c.__name__}.backward") for c in calls if c.backward]
    transforms = [node.target for node in nodes if isinstance(node.target, Transformed)]
    regions += [(one.region, f"{one.__name__}.function") for one in transforms]
    regions += [
        (body.graph, f"{flow.kind}.{place}")
        for _, flow in control_flow_in(module)
        for place, body in zip(PLACES[flow.kind], flow.bodies, strict=True)
    ]
    return "\n\n".join([text, *(show(*region) for region in regions)])


def _statement(node: Node) -> str:
    call = _call(node)
    return f"{node.name} = {call}" if node.users else call


def _call(node: Node) -> str:
    args, kwargs = node.args, node.kwargs
    name = str(getattr(node.target, "__name__", node.target))
    module = str(getattr(node.target, "__module__", None) or "")
    if node.op == "call_method":
        return f"{_text(args[0])}.{node.target}({_arguments(args[1:], kwargs)})"
    if module == "_operator":
        if name in _OPERATORS:
            return f"{_text(args[0])} {_OPERATORS[name]} {_text(args[1])}"
        if name == "getitem":
            return f"{_text(args[0])}[{_index(args[1])}]"
        if name == "setitem":
            return f"{_text(args[0])}[{_index(args[1])}] = {_text(args[2])}"
    if has_graphs(node.target):
        return f"{name}({_arguments(args, kwargs)})"
    if isinstance(node.target, OpOverload):
        return f"torch.ops.{node.target}({_arguments(args, kwargs)})"
    place = "F" if module in ("torch.nn.functional", "torch._C._nn") else module or "torch"
    return f"{place}.{name}({_arguments(args, kwargs)})"


def _arguments(args: Any, kwargs: Any) -> str:
    return ", ".join([*map(_text, args), *(f"{key}={_text(item)}" for key, item in kwargs.items())])


def _index(key: object) -> str:
    if type(key) is tuple and key:
        return ", ".join(map(_index, key))
    if isinstance(key, slice):
        parts = ["" if part is None else _text(part) for part in (key.start, key.stop)]
        return ":".join(parts if key.step is None else [*parts, _text(key.step)])
    return _text(key)


def _text(value: object) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    return "..." if value is Ellipsis else repr(value)


def _remark(node: Node) -> str:
    lines = lines_of(node)
    where = f"line {lines[0].lineno}" if lines else ""
    return "  ".join(part for part in (_spec_text(node.meta.get("spec")), where) if part)


def _spec_text(spec: object) -> str:
    if isinstance(spec, TensorSpec):
        return str(spec)
    if isinstance(spec, tuple):
        return f"({', '.join(filter(None, map(_spec_text, spec)))})"
    return ""
