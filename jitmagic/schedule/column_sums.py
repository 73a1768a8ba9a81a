"""Sums over rows in the nest that computes these rows, so that memory is read once for both.

In: the fused program, for a GPU. Out: the same program, in which a nest over rows also adds up,
for each group of rows that one program takes, what another nest sums over all rows:

    dx[i, j] = f(row i);  dw[j] = sum{i} g[i, j]
      ->  for rows i of group p:  dx[i, j] = f(row i);  part[p, j] = sum g[i, j]
          dw[j] = sum{p} part[p, j]

These are the gradients of a norm's input and of its weights, or of an activation and of the bias
before it. Both nests read the same operands, which is what they cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ..budget import check
from ..devices import Target
from ..lazy_dataclass import dataclass, replace
from ..loops.expr import Axis, AxisVar, Expr, add, mul
from ..loops.ir import (
    Alias,
    Buffer,
    Load,
    LoopProgram,
    Nest,
    Reduction,
    Step,
    Store,
    Value,
    binders,
    unused_name,
    walk,
)
from ..loops.values import cast
from ..symbols.size import Size, is_same
from .dependencies import loads_of, reads_of, storages, store_values, writes_of
from .score import buffer_bytes, extent_of, extent_product
from .substitution import Rebuilder, free_axes, fresh_axis
from .tile import final_nest

__all__ = ["with_column_sums"]

GROUPS = 2  # groups of rows for each multiprocessor
LONGEST = 8192  # elements of a row: a program holds it, and its sums, in registers
SHORTEST = 256


def with_column_sums(program: LoopProgram, target: Target) -> LoopProgram:
    """Move sums over rows into nests over the same rows."""
    if target.tier != "triton" or not target.multiprocessors:
        return program
    joiner = _Joiner(program, target)
    for nest in [step for step in program.steps if isinstance(step, Nest)]:
        check()
        if not joiner.join(nest) and (parts := _apart(nest)) is not None:
            joiner.join_parts(nest, *parts)
    return replace(program, buffers=joiner.buffers, steps=tuple(joiner.steps))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Describes a nest over rows: the axes of the rows, and the axis along them."""

    nest: Nest
    rows: tuple[Axis, ...]
    along: Axis

    @property
    def stores(self) -> list[Store]:
        """Return the stores with loops along the rows."""
        if self.nest.outer == self.rows:
            return [*self.nest.stores]
        return [replace(store, inner=(self.along,)) for store in self.nest.stores]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Describes groups of rows: `at` is the position of each axis of rows; `outer` has the axes of
    the groups and then those inside a group, `inside`.
    """

    at: Mapping[Axis, Expr]
    outer: tuple[Axis, ...]
    inside: tuple[Axis, ...]

    @property
    def across(self) -> tuple[Axis, ...]:
        return self.outer[: len(self.outer) - len(self.inside)]


class _Joiner:
    """Holds the steps of the program while nests are joined."""

    def __init__(self, program: LoopProgram, target: Target) -> None:
        self.target = target
        self.steps: list[Step] = [*program.steps]
        self.buffers = dict(program.buffers)
        self.owner = storages(program)
        self._known: dict[str, tuple[Reduction, ...]] = {}

    def join_parts(self, nest: Nest, rows: Nest, sums: Nest) -> None:
        """Replace a nest over columns by one over rows and their sums, if these can be joined."""
        if nest not in self.steps:
            return
        before, at = self.steps, self.steps.index(nest)
        self.steps = [*before[:at], rows, sums, *before[at + 1 :]]
        if not self.join(rows) or sums in self.steps:
            self.steps = before

    def join(self, nest: Nest) -> bool:
        """Move all sums that fit into a nest over rows; return whether there are any."""
        rows = _rows_of(nest)
        groups = None if rows is None else self.groups(rows.rows)
        if rows is None or groups is None or nest not in self.steps:
            return False
        at = self.steps.index(nest)
        found = [
            (number, sums)
            for number, step in enumerate(self.steps)
            if isinstance(step, Nest) and (sums := self.sums(at, rows, number, step))
        ]
        held = sum(len(sums) for _, sums in found) * extent_of((rows.along,))
        if not found or held > 2 * LONGEST:
            return False
        self.rewrite(at, rows, groups, found)
        return True

    def groups(self, rows: tuple[Axis, ...]) -> _Groups | None:
        """Return groups of equal size, about GROUPS for each multiprocessor; None if there are
        none.
        """
        wanted = extent_product(rows) // (GROUPS * self.target.multiprocessors)
        inside: list[Axis] = []
        for number in range(len(rows) - 1, -1, -1):
            axis, below = rows[number], extent_product(inside)
            if below * axis.extent < wanted:
                inside.insert(0, axis)
                continue
            lengths = [n for n in range(1, axis.extent + 1) if axis.extent % n == 0]
            length = min(lengths, key=lambda n: abs(n * below - wanted))
            if not wanted <= 2 * length * below <= 4 * wanted or wanted < 2:
                return None
            group, offset = fresh_axis(axis, axis.extent // length), fresh_axis(axis, length)
            place = add(mul(AxisVar(group), length), AxisVar(offset))
            outer = (*rows[:number], group, offset, *inside)
            return _Groups({axis: place}, outer, (offset, *inside))
        return None

    # -- what fits -----------------------------------------------------------------------------

    def sums(self, at: int, rows: _Rows, number: int, nest: Nest) -> dict[Reduction, Value]:
        """Return what the nest sums over rows, each with its value at a point of a row; nothing if
        its sums do not fit or if that would not save memory traffic.
        """
        nodes = self.reductions(nest)
        if (
            number == at
            or not nodes
            or not all(_sums_rows(node, nest.outer[0], rows) for node in nodes)
        ):
            return {}
        made = {}
        for node in nodes:
            bind = {nest.outer[0]: AxisVar(rows.along)}
            bind |= {a: AxisVar(b) for a, b in zip(node.axes, rows.rows, strict=True)}
            value = self.at_point(Rebuilder(bind).value(node.value), rows)
            if value is None:
                return {}
            made[node] = value
        more = _wide_loads(made.values()).difference(loads_of(rows.stores))
        if 2 * self.bytes_of(more) > self.bytes_of(_wide_loads(nodes)):
            return {}
        return made if self.may_move(at, number, rows.nest, nest) else {}

    def reductions(self, nest: Nest) -> tuple[Reduction, ...]:
        """Return the reductions of a nest over columns alone."""
        if nest.name not in self._known:
            is_column = len(nest.outer) == 1 and not any(store.inner for store in nest.stores)
            nodes = walk(store_values(nest.stores)) if is_column else ()
            self._known[nest.name] = tuple(n for n in nodes if isinstance(n, Reduction))
        return self._known[nest.name]

    def bytes_of(self, loads: Iterable[Load]) -> int:
        return sum(buffer_bytes(self.buffers[load.buffer]) for load in loads)

    def at_point(self, value: Value, rows: _Rows) -> Value | None:
        """Return a value with what the rows' nest stores in place of its loads; None if it reads
        that elsewhere.
        """
        stored: dict[Value, Value] = {
            Load(store.buffer, store.index, store.value.dtype): store.value for store in rows.stores
        }
        written = {self.owner[store.buffer] for store in rows.stores}
        value = Rebuilder(made=stored).value(value)
        below = walk((value,))
        if any(isinstance(x, Load) and self.owner[x.buffer] in written for x in below):
            return None
        inside = [node for node in below if isinstance(node, Reduction)]
        return value if all(node.axes == (rows.along,) for node in inside) else None

    def may_move(self, at: int, number: int, rows: Nest, sums: Nest) -> bool:
        """Return whether the sums may be computed where the rows are: earlier, without the steps
        between having written what they read; or later, before anything uses the results.
        """
        reads, writes = {*reads_of(sums)}, self.memory(writes_of(sums))
        between = self.steps[at + 1 : number] if at < number else self.steps[number + 1 : at + 1]
        for step in between:
            made = self.memory(writes_of(step))
            if made & self.memory(tuple(reads)) or (isinstance(step, Alias) and step.name in reads):
                return False
            if at > number and writes & (made | self.memory(reads_of(step))):
                return False
        # The result of a sum must not be memory that the rows read or write.
        touched = self.memory((*reads_of(rows), *writes_of(rows)))
        return writes.isdisjoint(touched)

    def memory(self, names: Sequence[str]) -> set[str]:
        return {self.owner.get(name, name) for name in names}

    # -- rewriting -----------------------------------------------------------------------------

    def rewrite(
        self,
        at: int,
        rows: _Rows,
        groups: _Groups,
        found: Sequence[tuple[int, Mapping[Reduction, Value]]],
    ) -> None:
        place = Rebuilder(groups.at)
        stores = [place.store(store) for store in rows.stores]
        totals: dict[int, Nest] = {}
        for number, sums in found:
            nest = self.steps[number]
            assert isinstance(nest, Nest)
            results: dict[Value, Value] = {}
            for node, value in sums.items():
                wide = torch.promote_types(value.dtype, torch.float32)
                part = self.temporary(nest, (*groups.across, rows.along), wide)
                point = tuple(AxisVar(axis) for axis in (*groups.across, rows.along))
                term = cast(place.value(value), wide)
                stores.append(Store(part, (rows.along,), point, term, "total"))
                load = Load(part, (*point[:-1], AxisVar(nest.outer[0])), wide)
                results[node] = Reduction("sum", groups.across, load, node.dtype)
            use = Rebuilder(made=results)
            made = [use.store(store) for store in nest.stores]
            totals[number] = final_nest(nest.name, nest.outer, made, nest.origins, self.buffers)
        origins = (nest.origins for nest in (rows.nest, *totals.values()))
        names = tuple(dict.fromkeys(name for each in origins for name in each))
        joined = final_nest(rows.nest.name, groups.outer, stores, names, self.buffers)
        steps: list[Step] = []
        for number, step in enumerate(self.steps):
            if number == at:
                steps += [joined, *(nest for n, nest in totals.items() if n < at)]
            elif number not in totals:
                steps.append(step)
            elif number > at:
                steps.append(totals[number])
        self.steps = steps

    def temporary(self, nest: Nest, axes: tuple[Axis, ...], dtype: torch.dtype) -> str:
        name = unused_name(f"{nest.name}_part", self.buffers, "")
        device = self.buffers[nest.stores[0].buffer].device
        self.buffers[name] = Buffer.over(name, axes, dtype, device)
        self.owner[name] = name
        return name


def _rows_of(nest: Nest) -> _Rows | None:
    """Return the rows over which a nest loops; None if it loops otherwise."""
    outer, *inner = binders(nest)
    loops = {axes for axes in inner if axes}
    if any(store.mode != "set" for store in nest.stores) or len(loops) > 1:
        return None
    if loops:
        ((along, *more),) = loops
        rows = outer
        if more:
            return None
    elif len(outer) > 1:
        *before, along = outer
        rows = tuple(before)
    else:
        return None
    extents = [axis.extent for axis in (*rows, along)]
    if any(isinstance(extent, Size) for extent in extents) or not rows:
        return None
    return _Rows(nest, rows, along) if SHORTEST <= along.extent <= LONGEST else None


def _apart(nest: Nest) -> tuple[Nest, Nest] | None:
    """Return a nest over columns as one over all points and one that reduces the columns; None for
    other nests.
    """
    points = [store for store in nest.stores if store.inner]
    rest = tuple(store for store in nest.stores if not store.inner)
    inner = {store.inner for store in points}
    if len(nest.outer) != 1 or len(inner) != 1 or not rest:
        return None
    if any(isinstance(node, Reduction) for node in walk(store_values(points))):
        return None
    outer = (*inner.pop(), *nest.outer)
    stores = tuple(replace(store, inner=()) for store in points)
    rows = Nest(nest.name, outer, stores, nest.origins)
    return rows, Nest(f"{nest.name}_sums", nest.outer, rest, nest.origins)


def _sums_rows(node: Reduction, column: Axis, rows: _Rows) -> bool:
    """Return whether the node sums floats over all of the rows."""
    if node.op != "sum" or not node.value.dtype.is_floating_point:
        return False
    if len(node.axes) != len(rows.rows) or not is_same(column.extent, rows.along.extent):
        return False
    equal = (is_same(a.extent, b.extent) for a, b in zip(node.axes, rows.rows, strict=True))
    return all(equal) and free_axes(node) == {column}


def _wide_loads(values: Iterable[Value]) -> set[Load]:
    """Return the loads that differ from row to row and along them."""
    loads = (node for node in walk(tuple(values)) if isinstance(node, Load))
    return {load for load in loads if len(free_axes(load)) > 1}
