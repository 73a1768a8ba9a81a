"""Prints a LoopProgram as readable text, with its loops as nested blocks.

In: a program (and optionally one of its steps). Out: Python-like text. Values that are used twice
get a name; reductions become loops of their own, hoisted to their first use:

    def forward(x0: float32[8, 64]):
        for i0 in points(8):                                  # softmax
            t0 = Max(x0[i0, i1] for i1 in points(64))
            for i2 in points(64):
                out[i0, i2] = exp(x0[i0, i2] - t0)
        return out

The exact form, which reads back as an equal program, is python_form.to_python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..operators.scalar import SCALARS
from ..symbols.symbolic_numbers import Symbol
from .expr import Add, Axis, AxisVar, Expr, FloorDiv, Integer, Mod, Mul, ValueIndex
from .free_axes import value_axes
from .ir import (
    Alias,
    Buffer,
    BufferRef,
    Cast,
    Compute,
    Constant,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    NumberRef,
    Pick,
    Reduction,
    Scan,
    Step,
    Store,
    Value,
    walk,
)

__all__ = ["show", "show_step"]

_INDENT = "    "


def show(program: LoopProgram) -> str:
    """Return the text of the whole program."""
    parameters = ", ".join(f"{n}: {_type(program.buffers[n])}" for n in program.inputs)
    lines = [f"def {program.name}({parameters}):"]
    for name in program.constants:
        lines.append(f"{_INDENT}{name} = constant({_type(program.buffers[name])})")
    for step in program.steps:
        lines += [_INDENT + line for line in _step_lines(program, step)]
    results = ", ".join(str(name) for name in program.outputs)
    return "\n".join([*lines, f"{_INDENT}return {results or None}"])


def show_step(program: LoopProgram, step: Step) -> str:
    """Return the text of one step."""
    return "\n".join(_step_lines(program, step))


def _type(buffer: Buffer) -> str:
    dtype = str(buffer.dtype).removeprefix("torch.")
    device = "" if buffer.device.type == "cpu" else f" on {buffer.device}"
    return f"{dtype}[{', '.join(map(str, buffer.shape))}]{device}"


def _step_lines(program: LoopProgram, step: Step) -> list[str]:
    match step:
        case Alias(name, base, offset):
            made = program.buffers[name]
            return [f"{name} = {base}.as_strided({made.shape}, {made.stride}, {offset})"]
        case Extern():
            return [_extern_line(step)]
        case Nest():
            return _NestText(program, step).lines()
    raise TypeError(f"not a step: {step!r}")


def _extern_line(step: Extern) -> str:
    args = [_argument(arg) for arg in step.args]
    args += [f"{key}={_argument(arg)}" for key, arg in step.kwargs.items()]
    results = ", ".join(name or "_" for name in step.results)
    return f"{results} = {step.op}({', '.join(args)})  # {step.reason}"


def _argument(arg: object) -> str:
    if isinstance(arg, NumberRef):
        return f"{arg.name}.item()"
    if isinstance(arg, BufferRef):
        return arg.name
    if isinstance(arg, (tuple, list)):
        return f"[{', '.join(map(_argument, arg))}]"
    return repr(arg)


def _loop(axes: Sequence[Axis]) -> str:
    names = ", ".join(axis.name for axis in axes)
    return f"for {names} in points({', '.join(str(axis.extent) for axis in axes)})"


class _NestText:
    """Writes the text of one nest."""

    def __init__(self, program: LoopProgram, nest: Nest) -> None:
        self.program, self.nest = program, nest
        nodes = walk(tuple(_roots(nest.stores)))
        self.free = value_axes(nodes)
        self.uses: dict[Value, int] = dict.fromkeys(nodes, 0)
        for node in [part for user in nodes for part in user.operands]:
            self.uses[node] += 1
        self.names: dict[Value, str] = {}
        self.out: list[str] = []
        self.depth = 0

    def lines(self) -> list[str]:
        nest = self.nest
        note = f"  # {', '.join(nest.origins or (nest.name,))}"
        if nest.outer:
            self.put(f"{_loop(nest.outer)}:{note}")
            self.depth += 1
        else:
            self.put(note.strip())
        for store in nest.stores:
            self.store(store, frozenset(nest.outer))
        return self.out

    def put(self, line: str) -> None:
        self.out.append(_INDENT * self.depth + line)

    def store(self, store: Store, bound: frozenset[Axis]) -> None:
        roots = tuple(_roots((store,)))
        self.name_parts(roots, bound)
        if store.inner:
            self.put(f"{_loop(store.inner)}:")
            self.depth += 1
            bound |= frozenset(store.inner)
            self.name_parts(roots, bound)
        target = self.element(store.buffer, store.index)
        sign = "+=" if store.mode == "add" else "="
        total = "total of " if store.mode == "total" else ""
        self.put(f"{target} {sign} {total}{self.text(store.value)}")
        self.depth -= bool(store.inner)

    def name_parts(self, roots: tuple[Value, ...], bound: frozenset[Axis]) -> None:
        """Name every reduction and every shared value that can be computed in this scope."""
        for node in walk(roots):
            if node in self.names or not self.free[node] <= bound:
                continue
            if isinstance(node, Reduction):
                self.reduction(node, bound)
            elif self.uses[node] > 1 and isinstance(node, (Compute, Cast)) and node not in roots:
                text = self.text(node)
                self.names[node] = f"t{len(self.names)}"
                self.put(f"{self.names[node]} = {text}")

    def reduction(self, node: Reduction, bound: frozenset[Axis]) -> None:
        name = f"t{len(self.names)}"
        op = node.op.capitalize()
        mark, self.names[node] = len(self.out), name
        self.put(f"{name} = {op}()")
        self.put(f"{_loop(node.axes)}:")
        self.depth += 1
        self.name_parts((node.value,), bound | frozenset(node.axes))
        plain = len(self.out) == mark + 2
        body = self.text(node.value)
        self.put(f"{name} += {body}")
        self.depth -= 1
        if plain:
            del self.out[mark:]
            self.put(f"{name} = {op}({body} {_loop(node.axes)})")

    # -- expressions -----------------------------------------------------------------------------

    def element(self, buffer: str, index: Sequence[Expr]) -> str:
        inside = ", ".join(self.index(part) for part in index)
        return f"{buffer}[{inside or '()'}]"

    def text(self, node: Value) -> str:
        if node in self.names:
            return self.names[node]
        match node:
            case Load(buffer=buffer, index=index, mask=None):
                return self.element(buffer, index)
            case Load(buffer=buffer, index=index, mask=mask, fill=fill) if mask is not None:
                return f"({self.element(buffer, index)} if {self.text(mask)} else {fill})"
            case Constant(value=value):
                return repr(value)
            case IndexValue(expr=expr):
                return self.index(expr)
            case Cast(value=value, dtype=dtype):
                return f"{str(dtype).removeprefix('torch.')}({self.text(value)})"
            case Pick(row=row, rank=rank, part=part):
                return f"{self.text(row)}.{part}({self.index(rank)})"
            case Scan(op=op, axis=axis, value=value):
                return f"{op.capitalize()}({self.text(value)} up to {axis.name})"
            case Compute(op=op, args=args):
                parts = [self.text(arg) for arg in args]
                if symbol := SCALARS[op].symbol:
                    return f"({parts[0]} {symbol} {parts[1]})"
                return f"{op}({', '.join(parts)})"
        return repr(type(node))

    def index(self, expr: Expr) -> str:
        match expr:
            case Integer(value):
                return str(value)
            case AxisVar(axis):
                return axis.name
            case Add(a, Integer(b)) if b < 0:
                return f"{self.index(a)} - {-b}"
            case Add(a, b):
                return f"{self.index(a)} + {self.index(b)}"
            case Mul(a, b):
                return f"{self._atom(a)}*{self.index(b)}"
            case FloorDiv(a, b):
                return f"{self._atom(a)}//{b}"
            case Mod(a, b):
                return f"{self._atom(a)}%{b}"
            case ValueIndex(value, extent):
                return f"checked({self.text(value)}, {extent})"
            case Symbol(name):
                return name
        raise TypeError(f"not an index expression: {expr!r}")

    def _atom(self, expr: Expr) -> str:
        text = self.index(expr)
        return f"({text})" if isinstance(expr, (Add, Mul, FloorDiv, Mod)) else text


def _roots(stores: Iterable[Store]) -> Iterable[Value]:
    for store in stores:
        yield from Load(store.buffer, store.index, torch.bool).operands
        yield store.value
