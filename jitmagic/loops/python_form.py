"""Converts a LoopProgram to exact Python text and back.

`to_python(program)` writes constructor calls, shared values by name, no addresses;
`from_python(text)` runs them with the vocabulary of ir.py in scope. Constant tensors are not in the
text: the caller passes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import inf, nan
from typing import Any

import torch

from ..compat.operators import OpOverload
from . import expr as expressions
from . import ir
from .expr import Axis, Expr, ValueIndex
from .ir import Alias, Extern, LoopProgram, Nest, Step, Store, Value, walk

__all__ = ["from_python", "to_python"]


def to_python(program: LoopProgram) -> str:
    """Return Python text that defines `program`."""
    writer = _Writer()
    steps = [writer.step(step) for step in program.steps]
    buffers = [f"    {writer.record(buffer)}," for buffer in program.buffers.values()]
    return "\n".join(
        [
            *writer.lines,
            "buffers = [",
            *buffers,
            "]",
            "steps = (",
            *(f"    {step}," for step in steps),
            ")",
            "program = LoopProgram(",
            f"    {program.name!r},",
            "    {buffer.name: buffer for buffer in buffers},",
            f"    {program.inputs!r},",
            f"    {program.outputs!r},",
            "    steps,",
            "    constants,",
            ")",
            "",
        ]
    )


def from_python(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> LoopProgram:
    """Return the program that `text` (from to_python) defines."""
    scope: dict[str, Any] = {name: getattr(ir, name) for name in ir.__all__}
    scope |= {name: getattr(expressions, name) for name in expressions.__all__}
    scope |= {"torch": torch, "device": torch.device, "inf": inf, "nan": nan}
    scope["constants"] = dict(constants or {})
    exec(compile(text, "<loop program>", "exec"), scope)
    program: LoopProgram = scope["program"]
    return program


class _Writer:
    """Writes a program; values and axes get a line and a name at their first use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[Value, str] = {}
        self.axes: dict[Axis, str] = {}

    def step(self, step: Step) -> str:
        match step:
            case Nest(name, outer, stores, origins):
                made = "".join(f"{self.store(store)}, " for store in stores)
                return f"Nest({name!r}, {self.part(outer)}, ({made}), {origins!r})"
            case Extern() | Alias():
                return self.record(step)
        raise TypeError(f"not a step: {step!r}")

    def store(self, store: Store) -> str:
        return self.record(store)

    def record(self, node: Any) -> str:
        """Write any dataclass by its fields."""
        parts = ", ".join(self.part(getattr(node, field.name)) for field in fields(node))
        return f"{type(node).__name__}({parts})"

    def part(self, part: object) -> str:
        match part:
            case Value():
                return self.value(part)
            case Axis():
                return self.axis(part)
            case ValueIndex(value, extent):
                return f"ValueIndex({self.value(value)}, {extent})"
            case Expr() | ir.BufferRef():
                return self.record(part)
            case tuple():
                return f"({''.join(f'{self.part(inner)}, ' for inner in part)})"
            case list():
                return f"[{', '.join(self.part(inner) for inner in part)}]"
            case dict():
                return f"{{{', '.join(f'{k!r}: {self.part(v)}' for k, v in part.items())}}}"
            case LoopProgram():
                return "None"  # the operator has the function too
            case OpOverload():
                return f"torch.ops.{part}"
        return repr(part)

    def axis(self, axis: Axis) -> str:
        if axis not in self.axes:
            self.axes[axis] = f"a{len(self.axes)}"
            self.lines.append(f"{self.axes[axis]} = Axis({axis.name!r}, {axis.extent})")
        return self.axes[axis]

    def value(self, root: Value) -> str:
        for node in walk((root,)):
            if node not in self.values:
                text = self.record(node)
                self.values[node] = f"v{len(self.values)}"
                self.lines.append(f"{self.values[node]} = {text}")
        return self.values[root]
