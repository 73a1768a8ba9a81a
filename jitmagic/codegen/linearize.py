"""Turns the loop form of a kernel into the linear form: decides where each value is computed, what
it is called, and which values are computed once.

In: a Kernel in the loop form. Out: the linear form, statement by statement; linear_values.py places
the values that each one reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..lazy_dataclass import replace
from ..loops.expr import Axis, axes_of
from ..loops.free_axes import value_axes
from ..loops.ir import Constant, Load, Value, run_time_values, walk
from .kernel import (
    BEGIN,
    END,
    NATIVE,
    Accumulate,
    Barrier,
    Call,
    Dot,
    Fold,
    For,
    Function,
    If,
    Inside,
    Join,
    Kernel,
    Let,
    LoadTile,
    Open,
    Ordered,
    Parallel,
    Parts,
    Prefix,
    Program,
    Result,
    Return,
    Scratch,
    Section,
    Set,
    Start,
    Statement,
    Store,
    Trips,
    Var,
    Whole,
    WholeBlock,
)
from .kernel_walk import statements, values_of
from .linear_values import Block, Known, LinearValues, Style

__all__ = ["Style", "linearize"]

_SCALAR = Style()


def linearize(
    kernel: Kernel, style: Style = _SCALAR, names: Callable[[str], str] | None = None
) -> Kernel:
    """Return the linear form. `names` makes a new name with a prefix."""
    return replace(kernel, body=_Linear(kernel, style, names).body())


class _Linear(LinearValues):
    """Rewrites the statements of one kernel."""

    def __init__(self, kernel: Kernel, style: Style, names: Callable[[str], str] | None) -> None:
        each_statement = [*statements(kernel.body)]
        nodes = walk([root for each in each_statement for root in _roots(each)])
        free = value_axes(nodes, _sections(each_statement))
        for node in nodes:
            if isinstance(node, Inside):  # also where the value is the same for all points
                free[node] |= frozenset(node.block.axes)
        uses = Counter(part for node in nodes for part in node.operands)
        uses.update(root for each in each_statement for root in _results(each))
        empty = {param.name for param in kernel.params if param.is_empty}
        super().__init__(style, free, uses, empty, names)
        self.kernel = kernel
        self.params = {param.name for param in kernel.params}
        # What memory holds may change between two stores of a point.
        self.unchanged = {param.name for param in kernel.params if param.is_constant}

    def body(self) -> tuple[Statement, ...]:
        self.run(self.kernel.body)
        return tuple(self.blocks[0].made)

    # -- statements ----------------------------------------------------------------------------

    def run(self, body: Sequence[Statement]) -> None:
        """Add statements to the innermost block. Stores in a row are of one point."""
        at = 0
        while at < len(body):
            fence = [each for each in body[at : at + 1] if isinstance(each, Barrier)]
            stores = [*self.stores_from(body, at + len(fence))]
            if stores:
                self.stores(stores, fence)
            else:
                self.statement(body[at])
            at += max(len(fence) + len(stores), 1)

    def stores_from(self, body: Sequence[Statement], at: int) -> Iterator[Store]:
        """Yield the stores of a point that begin at a statement."""
        for each in body[at:]:
            if not isinstance(each, Store):
                return
            yield each
            if each.buffer not in self.params:  # a scratch row, or a section
                return

    def statement(self, each: Statement) -> None:
        match each:
            case For(kind="vector" | "vector_counted", axes=(lane,), step=int(lanes)):
                self.emit(replace(each, body=self.block(each.body, {lane}, lane, lanes)))
            case For() | Parallel() | Trips() | Parts() | Whole():
                self.emit(replace(each, body=self.block(each.body, _bound_by(each))))
            case WholeBlock():
                self.whole_block(each)
            case If():
                condition = self.use(each.condition)
                self.emit(If(condition, self.block(each.body, ())))
            case Function():
                self.emit(self.function(each))
            case Call():
                args = [self.function(a) if isinstance(a, Function) else a for a in each.args]
                self.emit(replace(each, args=tuple(args)))
            case Let(target, value):
                self.let(target, value)
            case Accumulate(value=value):
                used = self.use(value)
                self.emit(replace(each, value=used))
            case Set(var, value):
                self.emit(Set(var, self.use(value)))
            case Join(total, part):
                self.emit(Join(total, self.use(part)))
            case Dot(_, a, b):
                left, right = self.named(self.use(a)), self.named(self.use(b))
                self.emit(replace(each, a=left, b=right))
            case Program(blocks):
                self.blocks[-1].bound |= frozenset(axis for b in blocks for axis in b.axes)
                self.emit(each)
            case Open(block):
                self.blocks[-1].bound |= frozenset(block.axes)
                self.emit(each)
            case Return(value):
                self.emit(Return(self.use(value)))
            case Start() | Scratch() | Section() | LoadTile():
                self.emit(each)
            case _:
                raise TypeError(f"no linear form of {type(each).__name__}")

    def block(
        self, body: Sequence[Statement], axes: Iterable[Axis], lane: Axis | None = None,
        lanes: int = 1,
    ) -> tuple[Statement, ...]:  # fmt: skip
        """Return the linear form of a block that binds `axes`."""
        outside = self.blocks[-1]
        if lane is None:
            lane, lanes = outside.lane, outside.lanes
        self.blocks.append(Block(outside.bound | frozenset(axes), lane, lanes))
        self.run(body)
        return tuple(self.blocks.pop().made)

    def whole_block(self, each: WholeBlock) -> None:
        """Compute what varies along the block inside the statement."""
        axes = frozenset(each.block.axes)
        known_outside = [(block, block.bound) for block in self.blocks]
        for block in self.blocks:
            block.bound -= axes
        self.emit(replace(each, body=self.block(each.body, axes)))
        for block, bound in known_outside:
            block.bound = bound

    def function(self, function: Function) -> Function:
        body = self.block(function.body, function.bound, function.lane, NATIVE)
        return replace(function, body=body)

    def let(self, target: Value, value: Value) -> None:
        """Bind a value of the nest to what the loops make of it."""
        known = Known(value, self.depth, is_named=True)
        if isinstance(value, Result) and (value.across or not self.style.longest):
            known.is_named = False
            self.give_name(target, known)
        elif isinstance(value, Ordered):
            self.give_name(target, Known(Ordered(self.named(self.use(value.keys)), value.block,
                                                 value.places), self.depth))  # fmt: skip
            known = self.blocks[-1].known[target]
        elif isinstance(value, (Fold, Prefix)):
            made = replace(value, value=self.named(self.use(value.value)))
            known = Known(made, self.depth)
            self.give_name(target, known)
        elif isinstance(target, Var):
            self.emit(Let(target, self.expression(value, self.depth)))
            known.value = target
        self.blocks[-1].known[target] = known

    def stores(self, stores: Sequence[Store], fence: Sequence[Barrier]) -> None:
        """Add the stores of a point; `fence`: the barrier before them, if there is one."""
        self.settle(stores)
        ready = [self.store(store) for store in stores]
        if fence or (self.style.tiles and len(stores) > 1):
            ready = [replace(store, value=self.named(store.value)) for store in ready]
        self.emit(*fence, *ready)

    def named(self, value: Value) -> Value:
        """Return a variable of the innermost block for an expression of the linear form."""
        if isinstance(value, (Var, Constant, Result)):
            return value
        var = Var(self.new_name("v"), value.dtype)
        self.emit(Let(var, value))
        return var

    def settle(self, stores: Sequence[Store]) -> None:
        """Load the operands of later stores before the first one writes."""
        # The first store may overwrite them: a mutated input, or a dying operand whose memory is
        # reused (memory.py).
        for store in () if self.style.tiles else stores[1:]:
            for value in (store.value, *run_time_values(store.offset)):
                self.use(value)
                known = self.known(value)
                assert known is not None
                if not known.is_named and self.reads_what_changes(value):
                    self.give_name(value, known)

    def reads_what_changes(self, value: Value) -> bool:
        loads = [node.buffer for node in walk((value,)) if isinstance(node, Load)]
        return not self.unchanged.issuperset(loads)

    def store(self, store: Store) -> Store:
        value = self.use(store.value)
        for part in run_time_values(store.offset):
            self.use(part)
        return replace(store, offset=self.offset(store.offset, self.depth), value=value)


def _bound_by(each: Statement) -> tuple[Axis, ...]:
    match each:
        case For(axes):
            return axes
        case Parts(axis, end):
            return axis, end
        case Parallel():
            return BEGIN, END
    return ()


def _sections(body: Iterable[Statement]) -> dict[str, frozenset[Axis]]:
    """Return the axes along which each section moves."""
    found: dict[str, frozenset[Axis]] = {}
    for each in body:
        if isinstance(each, Section):
            found[each.name] = found.get(each.name, frozenset()) | axes_of(each.offset)
    return found


def _roots(each: Statement) -> tuple[Value, ...]:
    """Return the values that a statement reads, with its run-time indexes."""
    inside = run_time_values(each.offset) if isinstance(each, Store) else ()
    read = values_of(each)
    if isinstance(each, Let) and isinstance(each.value, (Fold, Ordered, Prefix)):
        read = (each.target, *each.value.operands)
    elif isinstance(each, Let) and not isinstance(each.target, Var):
        read = (each.target,)  # what it is bound to is of the linear form already
    return (*read, *inside)


def _results(each: Statement) -> tuple[Value, ...]:
    """Return what leaves the kernel in a statement; a reduction's value is its operand."""
    return (each.value,) if isinstance(each, (Store, Return)) else ()
