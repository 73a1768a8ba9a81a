"""Probes a call of numpy on arrays of varying sizes at several size tuples.

Input: a Call in which sizes of arrays, and ints that are sizes, are Sizes. Output: the call at
several size tuples that the guards admit, beginning with this call's, and the probe's verdicts. If
the results differ in more than sizes, the sizes become constants and the trace starts over. So it
does for a varying int in a call with a narrow dtype: numpy raises if the dtype cannot hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ....graph.symbolic.sym_node import as_torch
from ....symbols.context import Context, Specialize
from ....symbols.probe import SizeValues, other_size_tuples
from ....symbols.scalar import symbols_of
from ....symbols.size import Size, value_of
from .probe import ArraySpec, Call, Result, emulated_constant, judge

__all__ = ["SizedCall", "at_sizes", "recorded_constant"]

_WIDE = frozenset(
    (
        torch.bool, torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
)  # fmt: skip


class SizedCall:
    """A call at several size tuples, this call's first; without varying sizes at one, empty."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._numbers = [n for n in _leaves((call.args, *call.kwargs.values())) if _varies(n)]
        of_arrays = (n for spec in call.slots for n in _numbers_of(spec) if _varies(n))
        sizes = list(dict.fromkeys((*self._numbers, *of_arrays)))
        self._symbols = list(dict.fromkeys(one for n in sizes for one in symbols_of(n.expr)))
        self._context: Context | None = sizes[0].context if sizes else None
        self.size_tuples: list[SizeValues] = [{}]
        if self._context is not None:
            if not self._context.has_hints(self._symbols):
                self.check(False, "they are known only when the kernels have run")
            self.size_tuples = [{one: self._context.hint_of(one) for one in self._symbols}]

    def now(self) -> Call:
        """Return the call with the sizes of this call."""
        return self._at(self.size_tuples[0])

    def check(self, holds: bool, why: str) -> None:
        """Raise Specialize for the call's sizes, if it has any, unless a condition holds."""
        if not holds and self._symbols:
            raise Specialize(self._symbols, f"sizes of a call of numpy ({why})")

    def results(self, first: Any) -> list[Any]:
        """Return the results at each size tuple; `first` is the result in this call.

        Must be called after the call is recorded, because its guards limit the size tuples."""
        if self._context is None:
            return [first]
        self.size_tuples += other_size_tuples(self._context, self._symbols)
        verdicts = [judge(self._at(known)) for known in self.size_tuples[1:]]
        for verdict in verdicts:
            self.check(not verdict.refusal, verdict.refusal)
        results = [first, *(verdict.result for verdict in verdicts)]
        made = [one.spec for one in _leaves(first) if isinstance(one, Result)]
        dtypes = {spec.dtype for spec in (*self._call.slots, *made)}
        self.check(not self._numbers or dtypes <= _WIDE, "an int that the dtype may not hold")
        # The probe's tolerance is fixed, so its verdict holds only for sizes like those it tried.
        self.check(torch.float16 not in dtypes, "rounding errors of float16 grow with the sizes")
        return results

    def _at(self, known: SizeValues) -> Call:
        arguments = self._call.args, list(self._call.kwargs.values())
        args, named = (_valued(part, known) for part in arguments)
        kwargs = dict(zip(self._call.kwargs, named, strict=True))
        specs = tuple(at_sizes(spec, known) for spec in self._call.slots)
        return replace(self._call, args=args, kwargs=kwargs, slots=specs)


def at_sizes(spec: ArraySpec, known: SizeValues) -> ArraySpec:
    """Return the spec of an array for these values of the symbols."""
    shape, stride = (
        tuple(value_of(n, dict(known)) for n in part) for part in (spec.shape, spec.stride)
    )
    return replace(spec, shape=shape, stride=stride, offset=value_of(spec.offset, dict(known)))


def recorded_constant(value: Any) -> Any:
    """Return a constant argument as the emulation takes it during recording."""
    return as_torch(value) if _varies(value) else emulated_constant(value)


def _varies(value: Any) -> bool:
    return isinstance(value, Size)


def _numbers_of(spec: ArraySpec) -> tuple[Any, ...]:
    return (*spec.shape, *spec.stride, spec.offset)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, slice):
        yield from (tree.start, tree.stop, tree.step)
    elif type(tree) in (tuple, list):
        for part in tree:
            yield from _leaves(part)
    else:
        yield tree


def _valued(tree: Any, known: SizeValues) -> Any:
    if isinstance(tree, slice):
        return slice(*(value_of(n, dict(known)) for n in (tree.start, tree.stop, tree.step)))
    if type(tree) in (tuple, list):
        return type(tree)(_valued(part, known) for part in tree)
    return value_of(tree, dict(known))
