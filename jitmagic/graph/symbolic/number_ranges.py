"""Finds the interval of a float argument in which a call behaves alike, so that the float may vary.

Such an argument must be a Python number (dropout's p); in `x * n` the number is a 0-dim tensor.

Input: a torch call with a float argument that differs between calls of the frame. Output: the
interval around its value in which torch runs the same operators, forward and backward, and gives
results of the same layout. The floats that these operators get must be one function of the argument
(symbols/probe.py).

The call is run on meta tensors, at numbers from each region between the values that code compares
with (zero, one, non-finite), and on small CPU tensors, because kernels may refuse a number. If
torch's Python code compares the number, the tracer sees that and adds a guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ...errors import UserLine
from ...symbols.expr import Expr
from ...symbols.interval import ANY_FLOAT, Interval
from ...symbols.probe import (
    MAX_FLOAT,
    OPEN_REGIONS,
    REGIONS,
    Verdict,
    is_same_float,
    note,
    read_float,
    value_at,
)
from ...symbols.symbolic_numbers import Symbol
from ...torch_types import Kwargs, OpOverload
from ..devices import place
from ..dispatch_mode import DispatchMode
from ..node_meta import tensors_in
from ..operators.kernel_probing import CPU, call_on_fresh
from ..operators.kernel_refusals import kernel_accepts
from ..propagate import call_on_meta
from ..target_names import Target, target_name
from ..triton.launches import launch_of

__all__ = [
    "READS_NUMBER", "Call", "add_number", "number_in", "range_of_number",
    "takes_float",
]  # fmt: skip

aten = torch.ops.aten
READS_NUMBER = aten._local_scalar_dense.default  # reads the number in a 0-dim tensor

_NUMBER = Symbol("number", float, ANY_FLOAT, "probe")
_NOWHERE = Verdict.unknown("no interval has it")
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_MOST, _CUT = 1 << 14, 8  # elements of small tensors, and the extents of those that are cut down


def number_in(tensor: torch.Tensor) -> float:
    """Return the number in a tensor of the graph, for a call that takes no tensor there."""
    return float(tensor.item())


def add_number(
    graph: Graph,
    node: Node,
    hint: float,
    range: Interval,
    lines: tuple[UserLine, ...],
    step: int,
) -> Node:
    """Add a node for the float in a 0-dim node, whose value in this call is `hint`; calls behave
    alike in `range`. Each call has a node of its own, so that they stay together.
    """
    made = graph.call_function(number_in, (node,))
    made.meta.update(val=hint, spec=None, lines=lines, step=step, range=range)
    return made


Steps = list[tuple[Any, list[float]]]
"""The operators that a call runs, in order, and its result, each with its float arguments."""


def _step(what: object) -> tuple[object, list[float]]:
    floats: list[float] = []
    return _described(what, floats), floats


def _described(value: object, floats: list[float]) -> object:
    """Return a comparable form without the floats, which are appended to `floats`."""
    if type(value) is float:
        floats.append(value)
        return float
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    if isinstance(value, tuple | list):
        return [_described(item, floats) for item in value]
    if isinstance(value, Mapping):
        return [(name, _described(item, floats)) for name, item in value.items()]
    return type(value), value


class _Noted(DispatchMode):
    """Records each operator."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def run_operator(self, op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> object:
        self._steps.append(_step((op, _all_arguments(op, args, kwargs))))
        return super().run_operator(op, args, kwargs)


def _all_arguments(op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> list[object]:
    """Return the arguments in the schema's order, with ints for floats converted.

    A dispatch mode does not see arguments that equal their default.
    """
    given = []
    for n, argument in enumerate(op._schema.arguments):
        default = argument.default_value
        value = args[n] if n < len(args) else kwargs.get(argument.name, default)
        takes_float = str(argument.type) in ("number", "float")
        given.append(float(value) if takes_float and type(value) is int else value)
    return given


Arguments = tuple[tuple[object, ...], dict[str, object]]
Call = Callable[[float], Arguments]
"""Returns the arguments of a call, on meta tensors, with the given number in one of them."""


def range_of_number(target: Target, arguments: Call, hint: float, grad: bool) -> Interval | None:
    """Return the interval in which the call behaves as for `hint`; None if it may not vary."""
    if launch_of(target) is not None:  # it is not run for a probe, and gets the number as it is
        return ANY_FLOAT
    probe = _Probe(target, arguments, grad)
    tried = (probe.around(base) for base in _bases(hint))
    found = next((one for one in tried if one.found is not None and one.found.has(hint)), _NOWHERE)
    interval: Interval | None = note("range of a number", target_name(target), found).found
    return interval


def takes_float(target: Target, arguments: Call, number: int, grad: bool) -> bool:
    """Return whether the call of an int equals that of the float; never so for integer tensors."""
    is_float = any(tensor.is_floating_point() for tensor in tensors_in(arguments(number)))
    if not is_float or launch_of(target) is not None:  # to a kernel, an int has another type
        return False
    try:
        one, other = (_run(target, *arguments(n), grad) for n in (float(number), number))
    except Exception:  # eager raises too, or needs an int
        return False
    return one == other


def _bases(hint: float) -> Iterator[int]:
    """Yield the open regions that the hint is in, or next to."""
    for n in OPEN_REGIONS:
        low, high = REGIONS[n][0][:2]
        near = math.nextafter(low, -math.inf) <= hint <= math.nextafter(high, math.inf)
        if near or math.isnan(hint):
            yield n


class _Probe:
    """Runs one call with different numbers."""

    def __init__(self, target: Target, arguments: Call, grad: bool) -> None:
        self._target, self._arguments, self._grad = target, arguments, grad

    def around(self, base: int) -> Verdict:
        """Return the interval around a region in which the call behaves alike.

        It ends at the smallest maximum of the dtypes: eager raises for larger numbers.
        """
        numbers = REGIONS[base][1]
        outcomes = [self._run(number) for number in numbers]
        first, exprs = outcomes[0], _functions(numbers, outcomes)
        if first is None or exprs is None:
            return Verdict.fails("torch runs other operators for other numbers", numbers)

        def is_alike(number: float) -> bool:
            accepted = self._run(number) if self._is_accepted(number) else None
            return _fits(accepted, number, first, exprs)

        low = high = base
        is_accepted = self._is_accepted(numbers[0])
        if not is_accepted and any(self._is_accepted(REGIONS[n][1][0]) for n in OPEN_REGIONS):
            return Verdict.fails("the kernel refuses the number", numbers[0])
        if is_accepted:
            while low > 0 and all(map(is_alike, REGIONS[low - 1][1])):
                low -= 1
            while high + 1 < len(REGIONS) and all(map(is_alike, REGIONS[high + 1][1])):
                high += 1
        found = Interval(REGIONS[low][0].low, REGIONS[high][0].high)
        if (most := self._largest()) < MAX_FLOAT:
            found = found.narrowed(Interval(-most, most))
        return Verdict.holds(found._replace(nan=found.is_endless and is_alike(math.nan)))

    def _largest(self) -> float:
        dtypes = {tensor.dtype for tensor in tensors_in(self._arguments(1.0))}
        return min((torch.finfo(d).max for d in dtypes if d.is_floating_point), default=MAX_FLOAT)

    def _run(self, number: float) -> Steps | None:
        """Return the outcome; None if torch raises."""
        try:
            return _run(self._target, *self._arguments(number), self._grad)
        except Exception:  # eager raises too, or the call needs data
            return None

    def _is_accepted(self, number: float) -> bool:
        """Return whether CPU kernels accept it: meta functions accept more."""
        return kernel_accepts(self._target, *self._arguments(number), self._grad)


def _functions(
    numbers: Sequence[float], outcomes: Sequence[Steps | None]
) -> list[list[Expr]] | None:
    """Return the float arguments of each step as functions of the number, or None."""
    first, second = outcomes[:2]
    if first is None or second is None or not _is_alike(first, second):
        return None
    values = [{_NUMBER: number} for number in numbers]
    found = [
        [read_float(values, pair) for pair in zip(one, other, strict=True)]
        for (_, one), (_, other) in zip(first, second, strict=True)
    ]
    return None if any(None in exprs for exprs in found) else found  # type: ignore[return-value]


def _is_alike(first: Steps, second: Steps) -> bool:
    return [what for what, _ in first] == [what for what, _ in second]


def _fits(outcome: Steps | None, number: float, like: Steps, exprs: list[list[Expr]]) -> bool:
    """Return whether the steps equal those at another number. A product whose factor is 1 may be
    missing: torch's formulas omit it.
    """
    if outcome is None:
        return False
    rest = iter(outcome)
    what, floats = next(rest, (None, []))
    for (wanted, _), functions in zip(like, exprs, strict=True):
        values = [value_at(expr, {_NUMBER: number}) for expr in functions]
        if what == wanted and all(map(_is_same, values, floats)):
            what, floats = next(rest, (None, []))
        elif not (values == [1.0] and wanted[0][1] in _PRODUCTS):
            return False
    return what is None


def _is_same(a: float | None, b: float) -> bool:
    """Compare floats; -0.0 is omitted too where the default is 0.0."""
    return is_same_float(a, b) or a == b == 0


def _run(target: Target, args: tuple[object, ...], kwargs: dict[str, object], grad: bool) -> Steps:
    """Run forward and backward on fresh meta tensors and return the operators."""
    steps: Steps = []
    noted = _Noted(steps)

    def call(given: tuple[object, ...], named: dict[str, object]) -> Any:
        placed = place(target_name(target), given, named, lambda tensor: CPU)
        run = placed.method or target
        result = call_on_meta(run, placed.args, placed.kwargs, grad, set(), noted)
        steps.append(_step(result))
        return result

    def fresh(t: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    with torch.inference_mode(False), torch.random.fork_rng([]):
        backward = call_on_fresh(call, args, kwargs, fresh)
        # By jitmagic's shape rules: torch's own import sympy, which took 1.5 s of a first compile.
        call_on_meta(backward, (), {}, grad, set(), noted)
    return steps
