"""Prints a kernel as one C++ function.

In: a Kernel of the linear form. Out: the lines of the function. Values that vary along the axis of
an open vector loop are jm::Vec. What a kernel computes where has been decided before: every
statement has one template here, every value one in expressions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...loops.expr import Axis, AxisVar, Expr, Integer
from ...loops.ir import IndexValue, Value
from ...symbols.size import Dimension, Size, expr_of
from ..kernel import (
    END,
    NATIVE,
    Accumulate,
    Argument,
    Call,
    Check,
    Divisor,
    For,
    Function,
    Grain,
    Group,
    Join,
    Kernel,
    Let,
    LoadTile,
    Parallel,
    Parts,
    Pointer,
    Result,
    Return,
    Scratch,
    Start,
    Statement,
    Store,
    Trips,
    Var,
    Whole,
)
from ..kernel_walk import statements
from ..text import comment_lines
from .expressions import CppExpressions
from .reductions import Accumulator
from .text import CTYPES

__all__ = ["CppText"]

_WIDTH = 116


class CppText(CppExpressions):
    """Prints one function."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.lines: list[str] = []
        self.indent = 1
        self.checks = any(isinstance(each, Check) for each in statements(kernel.body))

    def function(self) -> list[str]:
        """Return the lines of the whole function."""
        kernel = self.kernel
        head = [f'extern "C" int {kernel.name}(void* const* args) {{']
        for number, param in enumerate(kernel.params):
            kind = f"{'' if param.written else 'const '}{CTYPES[param.dtype]}*"
            head.append(f"    {kind} {self.names[param.name]} = ({kind})args[{number}];")
        for number, symbol in enumerate(kernel.sizes):
            sizes = f"((const int64_t*)args[{len(kernel.params)}])"
            head.append(f"    const int64_t {symbol.name} = {sizes}[{number}];")
        if self.checks:
            head.append("    int bad = 0;  // set by a run-time index that is out of range")
        self.block(kernel.body)
        head += [f"    const int64_t {name} = {code};" for name, code in self.hoisted.items()]
        tail = ["    return bad;" if self.checks else "    return 0;", "}"]
        return [*comment_lines(kernel.origins, "//", _WIDTH), *head, *self.lines, *tail]

    # -- statements --------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append(f"{'    ' * self.indent}{text}")

    def block(self, body: Iterable[Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def inside(self, head: str, body: Iterable[Statement], last: str = "}") -> None:
        """Print a block."""
        for text in head.split("\n"):
            self.line(text)
        self.indent += 1
        self.block(body)
        self.indent -= 1
        self.line(last)

    def lanes(
        self, axis: Axis, width: int, head: str, body: Iterable[Statement], last: str
    ) -> None:
        """Print a block in which values are vectors along an axis."""
        outside = self.lane, self.width
        self.lane, self.width = axis, width
        self.inside(head, body, last)
        self.lane, self.width = outside

    def statement(self, each: Statement) -> None:
        match each:
            case Let(Var() as var, value):
                self.line(self.let(var, value))
            case Store():
                self.line(self.store(each))
            case For():
                self.loop(each)
            case Start(total):
                self.line(self.accumulator(total).declare())
            case Accumulate(total, value, position):
                self.line(self.accumulate(total, value, position))
            case Join(total, part):
                self.line(self.accumulator(total).join_part(self.value(part)))
            case Check():
                self.line(self.check(each))
            case Scratch():
                self.declare(each)
            case Parallel():
                self.parallel(each)
            case Trips():
                self.trips(each)
            case Parts():
                self.parts(each)
            case LoadTile():
                self.load_tile(each)
            case Whole(dtype, width, body):
                head = f"jm::tile_of<{CTYPES[dtype]}, {width}>(some, [&](auto n) JM_BODY {{"
                self.inside(head, body, "});")
            case Function():
                self.function_block(each, f"const auto {each.name} = ", ";")
            case Call():
                self.called(each)
            case Return(value):
                self.line(f"return {self.as_vector(value)};")
            case _:
                raise TypeError(f"no C++ for {each!r}")

    def let(self, var: Var, value: Value) -> str:
        if isinstance(value, Divisor):
            return f"const jm::Divisor<{CTYPES[var.dtype]}> {var.name}({self.value(value.value)});"
        if isinstance(value, Result) and value.across:
            return f"const {CTYPES[var.dtype]} {var.name} = {self.value(value)};"
        if isinstance(value, IndexValue) and var.dtype == torch.int64 and var.lanes == 1:
            return f"const int64_t {var.name} = {self.index(value.expr)};"
        return f"const auto {var.name} = {self.value(value)};"

    def loop(self, loop: For) -> None:
        axis, body = loop.axes[0], "JM_BODY {"
        name = axis.name
        match loop:
            case For(kind="vector", step=int(width)):
                head = f"{self.blocks(loop, width)}[&](int64_t {name}, auto n) {body}"
                self.lanes(axis, width, head, loop.body, "});")
            case For(kind="vector_counted", step=int(width)):
                size = self.size(axis.extent)
                head = f"jm::steps<{width}>({size}, [&](int64_t {name}, int64_t some) {body}"
                self.lanes(axis, width, head, loop.body, "});")
            case For(kind="tile_rows"):
                head = f"jm::tile_rows<{loop.most}>(first, rows, [&](int64_t {name}) {body}"
                self.inside(head, loop.body, "});")
            case _:
                self.serial(loop)

    def blocks(self, loop: For, width: int) -> str:
        """Return the beginning of a loop over blocks of lanes."""
        (axis,) = loop.axes
        if loop.trips:
            return f"jm::told_steps<{width}>({loop.trips}, "
        if loop.stop is None:
            if isinstance(axis.extent, Size):
                return f"jm::blocks<{width}>({self.size(axis.extent)}, "
            # With a constant count only the loops that run are compiled: 124 ms per kernel instead
            # of 139 (mean of 24, g++ and linker).
            return f"jm::blocks<{width}, {axis.extent}>("
        whole = isinstance(axis.extent, int) and axis.extent % width == 0
        name = "whole_blocks" if whole else "blocks"
        return f"jm::{name}<{width}>({self.index(loop.start)}, {self.index(loop.stop)}, "

    def serial(self, loop: For) -> None:
        if len(loop.axes) > 1:
            self.rows(loop)
            return
        (axis,) = loop.axes
        end = expr_of(axis.extent) if loop.stop is None else loop.stop
        start, stop = self.index(loop.start), self.index(end)
        declared = f"{axis.name} = {start}"
        if not isinstance(end, Integer) and end != AxisVar(END):
            declared += f", {axis.name}_end = {stop}"
            stop = f"{axis.name}_end"
        step = f"++{axis.name}"
        if loop.step != 1:
            size = loop.step if isinstance(loop.step, int) else self.index(loop.step)
            step = f"{axis.name} += {size}"
        self.inside(f"for (int64_t {declared}; {axis.name} < {stop}; {step}) {{", loop.body)

    def rows(self, loop: For) -> None:
        """Print a loop over flat positions that also maintains the axes."""
        # A division by a run-time size takes thirty cycles, so the coordinates are incremented from
        # row to row (transpose(0, 1): 1.03 of the static kernel's time, 1.61 with divisions).
        head, first, *others = "int64_t row = begin; row < end; ++row", *loop.axes
        if not any(isinstance(axis.extent, Size) for axis in others):
            lines = [f"const int64_t {line};" for line in self.digits(loop.axes, "row")]
            self.inside("\n    ".join([f"for ({head}) {{", *lines]), loop.body)
            return
        self.line(f"int64_t {', '.join(self.digits(loop.axes, 'begin'))};")
        counted = "".join(f"{a.name}, {self.size(a.extent)}, " for a in reversed(others))
        self.inside(f"for ({head}, jm::count_on({counted}{first.name})) {{", loop.body)

    def digits(self, axes: Sequence[Axis], flat: str) -> list[str]:
        """Return definitions of the coordinates of a flat position."""
        found: list[str] = []
        below: Dimension = 1
        for number, axis in reversed([*enumerate(axes)]):
            step = expr_of(below)
            text = flat if step == Integer(1) else f"{flat} / {self.closed_index(step)}"
            if number:
                text = f"{text} % {self.closed_index(expr_of(axis.extent))}"
            found.insert(0, f"{axis.name} = {text}")
            below = axis.extent * below
        return found

    def parallel(self, each: Parallel) -> None:
        # Where the thread count is decided at run time, g++ would inline the body into each of
        # three calls (row sums: 166 ms instead of 107): it is marked noinline. There, g++ would
        # reload each size after any masked load or store, which it assumes to write to all memory:
        # sizes are captured by copy (512 by 64 plus a column: 0.97 of the static kernel's time, not
        # 1.34).
        range_of = "(int64_t begin, int64_t end)"
        head = f"jm::parallel_for({self.size(each.units)}, {self.grain(each)}, "
        if not self.kernel.sizes:
            self.inside(f"{head}[&]{range_of} {{", each.body, "});")
            return
        # The outer lambda copies too: captured by reference, each value was stored and read through
        # a pointer, 2 to 3 ns of a call and 7% of a kernel's code.
        copies = "[=, &bad]" if self.checks else "[=]"
        head = f"{head}{copies}{range_of} JM_APART {{ {copies}() JM_BODY {{"
        self.inside(head, each.body, "}(); });")

    def grain(self, each: Parallel) -> str:
        grain = each.grain
        if not isinstance(grain, Grain):
            return str(grain)
        sizes = f"{self.size(each.units)}, {self.size(grain.each)}"
        return f"jm::grain({sizes}, {grain.least}, {grain.piece}, {grain.threads})"

    def trips(self, test: Trips) -> None:
        size, width = self.size(test.axis.extent), test.width
        if not test.twice:
            self.line(f"const int64_t {test.name} = {size};")
            self.block(test.body)
            return
        kind = f"one_step<{width}>" if test.most == 1 else f"few_steps<{width}, {test.most}>"
        self.inside(f"jm::{kind}({size}, [&](auto {test.name}) JM_BODY {{", test.body, "});")

    def parts(self, each: Parts) -> None:
        names = f"int64_t {each.axis.name}, int64_t {each.end.name}"
        head = f"jm::in_parts({self.index(each.size)}, {self.index(each.stop)}, "
        following = " ".join(f"{total.var.name}.next();" for total in each.totals)
        last = f"}}, [&]() JM_BODY {{ {following} }});"
        self.inside(f"{head}[&]({names}) JM_BODY {{", each.body, last)

    def declare(self, each: Scratch) -> None:
        self.scratch[each.name] = each
        if each.parts_of is None:
            assert isinstance(each.size, int)
            ctype, size = CTYPES[each.dtype], each.size * each.lanes
            self.line(f"alignas(64) {ctype} {each.name}[{size}];")
            return
        # Static memory, because PARTIAL_SUMS of them need not fit on the stack. Lambdas capture the
        # pointer: a thread_local named in one would be that of the thread that runs the part.
        ctype = Accumulator(each.parts_of).scalar_type
        self.line(f"static thread_local {ctype} {each.name}_memory[{each.size}];")
        self.line(f"auto* const {each.name} = {each.name}_memory;")

    def load_tile(self, each: LoadTile) -> None:
        self.line(f"{self.vector_type(each.dtype)} {each.tile}[{each.width}];")
        at = self.pointer(self.names[each.buffer], each.offset)
        step = each.step if isinstance(each.step, int) else self.index(each.step)
        rows, count = self.index(each.rows), "some" if each.counted else "n"
        self.line(f"jm::load_tile({each.tile}, {at}, {step}, {rows}, {count});")

    # -- calls of the header files -----------------------------------------------------------------

    def function_block(self, each: Function, before: str, after: str) -> None:
        """Print a function over vectors of as many lanes as the header files choose."""
        given = [] if each.given is None else [f"auto {each.given.name}"]
        axes = [f"int64_t {axis.name}" if axis else "int64_t" for axis in each.axes]
        parameters = ", ".join([*given, *axes, *filter(None, [each.count])])
        self.lanes(
            each.lane, NATIVE, f"{before}[&]({parameters}) JM_BODY {{", each.body, f"}}{after}"
        )

    def called(self, call: Call) -> None:
        constants = ", ".join(map(self.argument, call.constants))
        args = [arg if isinstance(arg, Function) else self.argument(arg) for arg in call.args]
        head = f"jm::{call.function}{f'<{constants}>' if constants else ''}("
        if isinstance(args[-1], Function):
            first = ", ".join(arg for arg in args[:-1] if isinstance(arg, str))
            self.function_block(args[-1], f"{head}\n    {first},\n    ", ");")
            return
        for text in f"{head}\n    {f',{chr(10)}    '.join(map(str, args))});".split("\n"):
            self.line(text)

    def argument(self, arg: Argument) -> str:
        match arg:
            case str():
                return arg
            case Expr():
                return self.index(arg)
            case Pointer(buffer, offset):
                return self.pointer(self.names[buffer], offset)
            case Group(args, name):
                inside = ", ".join(map(self.argument, args))
                return f"jm::{name}({inside})" if name else f"{{{inside}}}"
            case float():
                return f"{arg!r}f"
            case int() | Size():
                return self.size(arg)
        raise TypeError(f"not an argument: {arg!r}")
