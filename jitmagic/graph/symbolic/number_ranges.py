"""Finds the interval of a float argument in which a call behaves alike, so that the float may vary.

Such an argument must be a Python number (dropout's p); in `x * n` the number is a 0-dim tensor.

Input: a torch call with a float argument that differs between calls of the frame. Output: the
interval around its value in which torch runs the same operators, forward and backward, and gives
results of the same layout. The floats that these operators get must be one function of the argument
(symbols/float_reading.py).

The call is run on meta tensors, at numbers from each region between the values that code compares
with (zero, one, non-finite), and on small CPU tensors, because kernels may refuse a number. If
torch's Python code compares the number, the tracer sees that and adds a guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode

from ...errors import UserLine
from ...symbols.expr import Expr
from ...symbols.float_reading import is_same_float, read_float, value_at
from ...symbols.interval import ANY_FLOAT, Interval
from ...symbols.scalar import Symbol
from ..attribution import Silence, call_from
from ..devices import place
from ..dispatch_mode import DispatchMode
from ..node_meta import tensors_in
from ..propagate import Target, call_on_meta, target_name

__all__ = [
    "READS_NUMBER", "Call", "add_number", "number_in", "range_of_number", "samples_in",
    "takes_float",
]  # fmt: skip

aten = torch.ops.aten
READS_NUMBER = aten._local_scalar_dense.default  # reads the number in a 0-dim tensor

_TINY, _MAX = 5e-324, 1.7976931348623157e308
_BELOW, _ABOVE = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
_NUMBER = Symbol("number", float, ANY_FLOAT, "probe")
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_CPU = torch.device("cpu")
_MOST, _CUT = 1 << 14, 8  # elements of small tensors, and the extents of those that are cut down
# The regions in ascending order, each with sample numbers, the first two of which identify the
# functions.
_REGIONS: tuple[tuple[Interval, tuple[float, ...]], ...] = (
    (Interval(-math.inf, -math.inf), (-math.inf,)),
    (Interval(-_MAX, -_TINY), (-0.37134182367183743, -2.9172618239812375)),
    (Interval(0.0, 0.0), (0.0, -0.0)),
    (Interval(_TINY, _BELOW), (0.29193846251827364, 0.71376152839471625)),
    (Interval(1.0, 1.0), (1.0,)),
    (Interval(_ABOVE, _MAX), (1.6182736451928374, 23.716253948172635)),
    (Interval(math.inf, math.inf), (math.inf,)),
)
_OPEN = (1, 3, 5)  # indices of the regions that are intervals, not single values


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


@dataclass(slots=True)
class _Outcome:
    """The operators that a call runs, in order, each with its float arguments."""

    steps: list[tuple[Any, list[float]]] = field(default_factory=list)

    def note(self, what: object) -> None:
        floats: list[float] = []
        self.steps.append((_described(what, floats), floats))


def _described(value: object, floats: list[float]) -> Any:
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

    def __init__(self, outcome: _Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self._outcome.note((func, _all_arguments(func, args, kwargs)))
        return func(*args, **kwargs)


def _all_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments in the schema's order, with ints for floats converted.

    A dispatch mode does not see arguments that equal their default.
    """
    given = []
    for n, argument in enumerate(func._schema.arguments):
        default = argument.default_value
        value = args[n] if n < len(args) else kwargs.get(argument.name, default)
        is_number = type(value) is int and str(argument.type) in ("number", "float")
        given.append(float(value) if is_number else value)
    return given


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Call = Callable[[float], Arguments]
"""Returns the arguments of a call, on meta tensors, with the given number in one of them."""


def range_of_number(target: Target, arguments: Call, hint: float, grad: bool) -> Interval | None:
    """Return the interval in which the call behaves as for `hint`; None if it may not vary."""
    probe = _Probe(target, arguments, grad)
    return next((found for base in _bases(hint) if (found := probe.around(base)).has(hint)), None)


def takes_float(target: Target, arguments: Call, number: int, grad: bool) -> bool:
    """Return whether the call of an int equals that of the float; never so for integer tensors."""
    if not any(tensor.is_floating_point() for tensor in tensors_in(arguments(number))):
        return False
    try:
        one, other = (_run(target, *arguments(n), grad) for n in (float(number), number))
    except Exception:  # eager raises too, or needs an int
        return False
    return one == other


def samples_in(limits: Interval) -> list[float]:
    """Return numbers of an interval, from each of the regions."""
    return [n for _, numbers in _REGIONS for n in numbers if limits.has(n)]


def _bases(hint: float) -> Iterator[int]:
    """Yield the open regions that the hint is in, or next to."""
    for n in _OPEN:
        low, high = _REGIONS[n][0][:2]
        near = math.nextafter(low, -math.inf) <= hint <= math.nextafter(high, math.inf)
        if near or math.isnan(hint):
            yield n


class _Probe:
    """Runs one call with different numbers."""

    def __init__(self, target: Target, arguments: Call, grad: bool) -> None:
        self._target, self._arguments, self._grad = target, arguments, grad

    def around(self, base: int) -> Interval:
        """Return the interval around a region in which the call behaves alike, or an empty one.

        It ends at the smallest maximum of the dtypes: eager raises for larger numbers.
        """
        numbers = _REGIONS[base][1]
        outcomes = [self._run(number) for number in numbers]
        first, exprs = outcomes[0], _functions(numbers, outcomes)
        if first is None or exprs is None:
            return Interval(math.inf, -math.inf)

        def is_alike(number: float) -> bool:
            accepted = self._run(number) if self._is_accepted(number) else None
            return _fits(accepted, number, first, exprs)

        low = high = base
        is_accepted = self._is_accepted(numbers[0])
        if not is_accepted and any(self._is_accepted(_REGIONS[n][1][0]) for n in _OPEN):
            return Interval(math.inf, -math.inf)  # empty: the kernel refuses these numbers
        if is_accepted:
            while low > 0 and all(map(is_alike, _REGIONS[low - 1][1])):
                low -= 1
            while high + 1 < len(_REGIONS) and all(map(is_alike, _REGIONS[high + 1][1])):
                high += 1
        found = Interval(_REGIONS[low][0].low, _REGIONS[high][0].high)
        if (most := self._largest()) < _MAX:
            found = found.narrowed(Interval(-most, most))
        return found._replace(nan=found.is_endless and is_alike(math.nan))

    def _largest(self) -> float:
        dtypes = {tensor.dtype for tensor in tensors_in(self._arguments(1.0))}
        return min((torch.finfo(d).max for d in dtypes if d.is_floating_point), default=_MAX)

    def _run(self, number: float) -> _Outcome | None:
        """Return the outcome; None if torch raises."""
        try:
            return _run(self._target, *self._arguments(number), self._grad)
        except Exception:  # eager raises too, or the call needs data
            return None

    def _is_accepted(self, number: float) -> bool:
        """Return whether CPU kernels accept it on small tensors: meta functions accept more."""
        try:
            _differentiated(self._target, *_small(self._arguments(number)), self._grad)
        except Exception:  # or the small tensors are at fault: nothing is known
            return False
        return True


def _functions(
    numbers: Sequence[float], outcomes: Sequence[_Outcome | None]
) -> list[list[Expr]] | None:
    """Return the float arguments of each step as functions of the number, or None."""
    first, second = outcomes[:2]
    if first is None or second is None or not _is_alike(first, second):
        return None
    values = [{_NUMBER: number} for number in numbers]
    found = [
        [read_float(values, pair) for pair in zip(one, other, strict=True)]
        for (_, one), (_, other) in zip(first.steps, second.steps, strict=True)
    ]
    return None if any(None in exprs for exprs in found) else found  # type: ignore[return-value]


def _is_alike(first: _Outcome, second: _Outcome) -> bool:
    return [what for what, _ in first.steps] == [what for what, _ in second.steps]


def _fits(outcome: _Outcome | None, number: float, like: _Outcome, exprs: list[list[Expr]]) -> bool:
    """Return whether the steps equal those at another number. A product whose factor is 1 may be
    missing: torch's formulas omit it.
    """
    if outcome is None:
        return False
    rest = iter(outcome.steps)
    what, floats = next(rest, (None, []))
    for (wanted, _), functions in zip(like.steps, exprs, strict=True):
        values = [value_at(expr, {_NUMBER: number}) for expr in functions]
        if what == wanted and all(map(_is_same, values, floats)):
            what, floats = next(rest, (None, []))
        elif not (values == [1.0] and wanted[0][1] in _PRODUCTS):
            return False
    return what is None


def _is_same(a: float | None, b: float) -> bool:
    """Compare floats; -0.0 is omitted too where the default is 0.0."""
    return is_same_float(a, b) or a == b == 0


def _run(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> _Outcome:
    """Run forward and backward on fresh tensors and return the outcome."""
    outcome = _Outcome()
    noted = _Noted(outcome)

    def call(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        placed = place(target_name(target), given, named, lambda tensor: _CPU)
        run = placed.method or target
        result = call_on_meta(run, placed.args, placed.kwargs, grad, set(), noted)
        outcome.note(result)
        return result

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    with torch.inference_mode(False), torch.random.fork_rng([]):
        _backward(call, args, kwargs, fresh, noted)
    return outcome


def _differentiated(
    target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool
) -> None:
    """Run the call and its backward on the CPU, preserving the random state."""

    def call(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if isinstance(target, str):
            return getattr(given[0], target)(*given[1:], **named)
        return call_from(Silence(), target, given, named)

    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(grad),
        torch._C._DisableAutocast(),
        torch.random.fork_rng([]),
        _OnTheCpu(),
    ):
        _backward(call, args, kwargs, torch.clone, nullcontext())


class _OnTheCpu(TorchFunctionMode):
    """Replaces device arguments by the CPU, also in functions under a transform."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(_moved, args), **named)


def _moved(argument: object) -> Any:
    return _CPU if isinstance(argument, torch.device) else argument


def _small(arguments: Arguments) -> Arguments:
    """Return small CPU tensors in place of the arguments; indices are zero."""
    tensors = list(tensors_in(arguments))
    extent = _CUT if sum(tensor.numel() for tensor in tensors) > _MOST else _MOST

    def made(tensor: torch.Tensor) -> torch.Tensor:
        number = 0.5 if tensor.is_floating_point() else 0
        shape = [min(n, extent) for n in tensor.shape]
        values = torch.full(shape, number, dtype=tensor.dtype)
        return values.requires_grad_(tensor.requires_grad)

    args, kwargs = (_copied(given, made, {}) for given in arguments)
    return args, kwargs


def _backward(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fresh: Callable[[torch.Tensor], torch.Tensor],
    mode: AbstractContextManager[Any],
) -> None:
    """Run the call on `fresh` tensors, and its backward."""
    leaves: list[torch.Tensor] = []

    def made(tensor: torch.Tensor) -> torch.Tensor:
        copy = fresh(tensor.detach())
        if not tensor.requires_grad:
            return copy
        leaves.append(copy.requires_grad_())
        with torch.enable_grad():  # the call may write to it
            return copy.clone()

    known: dict[int, torch.Tensor] = {}
    result = call(_copied(args, made, known), _copied(kwargs, made, known))
    ends = tuple(tensor for tensor in tensors_in(result) if tensor.requires_grad)
    if not (ends and leaves):
        return
    with torch.autograd.set_multithreading_enabled(False), mode:
        # As in autograd/joint.py: torch.autograd.grad would import sympy first.
        torch.autograd.Variable._execution_engine.run_backward(
            ends,
            tuple(torch.empty_like(tensor) for tensor in ends),
            False,  # keep_graph
            False,  # create_graph
            tuple(leaves),
            allow_unreachable=True,
            accumulate_grad=False,
        )


def _copied(
    value: Any, copied: Callable[[torch.Tensor], torch.Tensor], known: dict[int, torch.Tensor]
) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            known[id(value)] = copied(value)
        return known[id(value)]
    if isinstance(value, torch.Generator):
        raise TypeError("drawing from the program's generator would change its state")
    if isinstance(value, dict):
        return {name: _copied(item, copied, known) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_copied(item, copied, known) for item in value)
    return value
