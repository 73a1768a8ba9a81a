"""Numbers that the calls of a graph read when it runs, and where a call is the same for all.

Comes in: a call whose argument is a float that differs from call to call. Goes out: the interval
around it in which torch does the same: it calls the same operators, forward and backward, with
floats that are one function of the number (float_reading.py), and results look alike. Told by
running the call on meta tensors at numbers from each region between those that code compares with:
zero, one, what is not finite; and on small tensors of the CPU, whose kernels may refuse a number.
What torch's Python compares, the tracer has seen and guarded.
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
READS_NUMBER = aten._local_scalar_dense.default  # of a 0-dim tensor

_TINY, _MAX = 5e-324, 1.7976931348623157e308
_BELOW, _ABOVE = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
_NUMBER = Symbol("number", float, ANY_FLOAT, "probe")
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_CPU = torch.device("cpu")
_MOST, _CUT = 1 << 14, 8  # elements of small tensors, and the extents of those that are cut down
# In order: each with numbers of it, the first two of which tell the functions.
_REGIONS: tuple[tuple[Interval, tuple[float, ...]], ...] = (
    (Interval(-math.inf, -math.inf), (-math.inf,)),
    (Interval(-_MAX, -_TINY), (-0.37134182367183743, -2.9172618239812375)),
    (Interval(0.0, 0.0), (0.0, -0.0)),
    (Interval(_TINY, _BELOW), (0.29193846251827364, 0.71376152839471625)),
    (Interval(1.0, 1.0), (1.0,)),
    (Interval(_ABOVE, _MAX), (1.6182736451928374, 23.716253948172635)),
    (Interval(math.inf, math.inf), (math.inf,)),
)
_OPEN = (1, 3, 5)  # those between


def number_in(tensor: torch.Tensor) -> float:
    """Return the number that a tensor of the graph is, for a call that takes no tensor there."""
    return float(tensor.item())


def add_number(
    graph: Graph,
    node: Node,
    hint: float,
    range: Interval,
    lines: tuple[UserLine, ...],
    step: int,
) -> Node:
    """Return a node for the float that a 0-dim node is, whose value in this call is `hint`; calls
    are alike in `range`. Each call has its own, so that they stay together.
    """
    made = graph.call_function(number_in, (node,))
    made.meta.update(val=hint, spec=None, lines=lines, step=step, range=range)
    return made


@dataclass(slots=True)
class _Outcome:
    """What a call does, in order, each with the floats that it does it with."""

    steps: list[tuple[Any, list[float]]] = field(default_factory=list)

    def note(self, what: Any) -> None:
        floats: list[float] = []
        self.steps.append((_described(what, floats), floats))


def _described(value: Any, floats: list[float]) -> Any:
    """Return a form that can be compared, without floats."""
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
    """Notes each operator."""

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
    """In the schema's order: a mode is not told of those that are as their default. Ints for floats
    are floats.
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
"""The arguments of a call, on meta tensors, for a number in one place."""


def range_of_number(target: Target, arguments: Call, hint: float, grad: bool) -> Interval | None:
    """Where the call is the same as for `hint`; None: it is no number that may vary."""
    probe = _Probe(target, arguments, grad)
    return next((found for base in _bases(hint) if (found := probe.around(base)).has(hint)), None)


def takes_float(target: Target, arguments: Call, number: int, grad: bool) -> bool:
    """Return whether the call of an int is that of the float. Of integers it never is."""
    if not any(tensor.is_floating_point() for tensor in tensors_in(arguments(number))):
        return False
    try:
        one, other = (_run(target, *arguments(n), grad) for n in (float(number), number))
    except Exception:  # eager raises as well, or wants an int
        return False
    return one == other


def samples_in(limits: Interval) -> list[float]:
    """Numbers of an interval, from each of the regions."""
    return [n for _, numbers in _REGIONS for n in numbers if limits.has(n)]


def _bases(hint: float) -> Iterator[int]:
    """The regions between the exceptional numbers that the hint is in, or next to."""
    for n in _OPEN:
        low, high = _REGIONS[n][0][:2]
        near = math.nextafter(low, -math.inf) <= hint <= math.nextafter(high, math.inf)
        if near or math.isnan(hint):
            yield n


class _Probe:
    """What one call does with numbers."""

    def __init__(self, target: Target, arguments: Call, grad: bool) -> None:
        self._target, self._arguments, self._grad = target, arguments, grad

    def around(self, base: int) -> Interval:
        """Return the regions around one in which the call is alike; an empty interval: not even
        there. No number is beyond what the least of the dtypes holds: eager raises for those.
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
            return Interval(math.inf, -math.inf)  # these are what the kernel refuses
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
        """None: torch raises."""
        try:
            return _run(self._target, *self._arguments(number), self._grad)
        except Exception:  # whatever torch raises: eager would, or has no result without data
            return None

    def _is_accepted(self, number: float) -> bool:
        """Return whether the CPU's kernels take it, on small tensors: meta functions take more."""
        try:
            _differentiated(self._target, *_small(self._arguments(number)), self._grad)
        except Exception:  # also of the small tensors: then nothing is known
            return False
        return True


def _functions(
    numbers: Sequence[float], outcomes: Sequence[_Outcome | None]
) -> list[list[Expr]] | None:
    """What the floats of each step are."""
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
    """Return whether the steps are those of another number; of a product with one that is 1, which
    torch's formulas leave out, nothing is missing.
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
    """-0.0 is left out, too, where the default is 0.0."""
    return is_same_float(a, b) or a == b == 0


def _run(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> _Outcome:
    """Forward and backward, on tensors of its own."""
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
    """The call and its backward on the CPU. What it draws, the program still gets."""

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
    """Calls name the CPU where they name a device: those of a function under a transform, too."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(_moved, args), **named)


def _moved(argument: Any) -> Any:
    return _CPU if isinstance(argument, torch.device) else argument


def _small(arguments: Arguments) -> Arguments:
    """Tensors of the CPU, cut down where they are large; indices are zero."""
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
    """The call on `fresh` tensors, and its backward."""
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
        # As autograd/joint.py has it: torch.autograd.grad imports sympy first.
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
        raise TypeError("its numbers are the program's")
    if isinstance(value, dict):
        return {name: _copied(item, copied, known) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_copied(item, copied, known) for item in value)
    return value
