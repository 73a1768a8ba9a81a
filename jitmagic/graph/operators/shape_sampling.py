"""Infers shapes on symbolic sizes by sampling: torch's own code for these calls needs ints.

Input: a call whose arguments have symbolic sizes, and a function that runs it on meta tensors.
Output: its results with Sizes, or None. The call runs on meta tensors of several size tuples that
pass the guards. A size of its results becomes the expression of these symbols that has the values
seen at two of them, if it has those at the others too. Several remainders of division are among the
tuples; formulas with a number of the call (size_formulas.py) are read off close tuples. The result
is still a conjecture: `graph/symbolic/concrete.py` compares each spec at each size tuple that is
compiled. A call that is repeated in a trace on tensors of the same layout is not run again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...symbols.context import Context
from ...symbols.expr import Expr, Integer, add, floordiv, integer
from ...symbols.interval import Interval
from ...symbols.reading import Readings
from ...symbols.scalar import Symbol, evaluate, symbols_of
from ...symbols.size import Dimension, Size, SizeFloat, expr_of, size_of, value_of
from ..attribution import Silence
from ..linked_history import link_history
from ..memory import storages_in
from ..nested import rebuilt
from ..node_meta import tensors_in
from ..symbolic.sym_node import as_dimension, as_dimensions, as_torch, sizes_in
from .size_formulas import FormulaReader, ResultsDiffer, candidate_sizes

__all__ = [
    "CallSignature",
    "SizeValues",
    "other_size_values",
    "shapes_by_sampling",
    "with_sizes_of_call",
]

SizeValues = dict[Expr, int]
Run = Callable[[Any], tuple[Any, Collection[int]]]
# Errors by which torch refuses arguments; before 2.13 some meta functions use assert.
_REFUSALS = (RuntimeError, ValueError, IndexError, AssertionError)
# Added to the sizes of this call. They cover all remainders of division by 2, 3 and 4, and several
# multiples of 4 and 16.
_STEPS = (0, 97, 12, 35, 46, 61, 64, 240, 211, 48)
_SMALL_STEPS = (1, 2, 3, 5, 7)  # for data-dependent sizes, whose range may be small
# For numbers that are no sizes: most calls refuse large ones (a kernel larger than the image).
_CLOSE_STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, -1)
_APART = 12  # between the steps of two symbols: their values differ, yet may all be even
_FEWEST = 4
_FEW = 2
_PAIRS = ((1, 3), (1, 2), (0, 1), (2, 3))
_WINDOWS, _PARTS = (-1, 1, -2, 2, -3, 3, -4, 4), (2, 3, 4)
_MOST_PAIRS = 8  # of size tuples from which an expression is inferred
_MOST = 1 << 14  # largest size that is sampled: some calls take time for each element


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Identifies a call that may be repeated in a trace on tensors of the same layout, like a cell
    of a recurrent layer. Its warnings are shown each time.
    """

    target: Hashable
    place: Silence

    def key(self, arguments: object) -> Hashable:
        """Return a key of the arguments that `_at` reads; None if the result cannot be cached."""
        modes = torch.is_grad_enabled(), torch.get_default_dtype()
        described = self.target, modes, _described(arguments, {})
        try:
            hash(described)
        except TypeError:
            return None
        return described


@dataclass(frozen=True, slots=True)
class _SampledCall:
    """The sampled results of a call: those of this call's sizes, and the layout of each tensor."""

    like: Any
    layouts: list[tuple[tuple[Dimension, ...], tuple[Dimension, ...]]]

    def of(self, sources: list[torch.Tensor]) -> Any:
        """Return fresh results; they require grad and have a history as in a real run."""
        like = list(tensors_in(self.like))
        fresh = [_laid_out(*layout, t.dtype) for layout, t in zip(self.layouts, like, strict=True)]
        if any(t.requires_grad for t in like):
            for tensor, t in zip(fresh, like, strict=True):
                tensor.requires_grad_(t.requires_grad)
            fresh = list(link_history(fresh, sources, like))
        return _replaced(self.like, iter(fresh))


def shapes_by_sampling(run: Run, arguments: object, signature: CallSignature | None = None) -> Any:
    """Return the result of `run(arguments)` with Sizes, or None. `run` returns results and the
    memory written to.
    """
    sizes = list(dict.fromkeys(sizes_in(arguments)))
    if not sizes or any(isinstance(size, SizeFloat) for size in sizes):
        return None
    context = sizes[0].context
    symbols = list(dict.fromkeys(one for size in sizes for one in symbols_of(size.expr)))
    of_data = [one for one in symbols if context.of_data(one)]
    if not context.has_hints([one for one in symbols if one not in of_data]):
        return None
    key = None if signature is None or of_data else signature.key(arguments)
    sampled = context.sampled.get(key) or _sampled(run, arguments, context, symbols)
    if sampled is None and of_data:
        pairs = _possibly_equal(arguments)
        tried = (_sampled_if_equal(run, arguments, context, symbols, pair) for pair in pairs)
        sampled = next((one for one in tried if one is not None), None)
    if sampled is None:
        return None
    if signature is not None and key is not None and not signature.place.has_warned:
        context.sampled[signature.key(arguments)] = (
            sampled  # the call may have left sizes one value
        )
    return sampled.of(list(tensors_in(arguments)))


def _sampled_if_equal(
    run: Run,
    arguments: object,
    context: Context,
    symbols: Sequence[Symbol],
    pair: tuple[Expr, Expr],
) -> _SampledCall | None:
    """Sample a call that raises unless two sizes are equal, one of them data-dependent."""
    for known in _samples(context, symbols):
        one, other = (evaluate(expr, dict(known)) for expr in pair)
        if one != other and not _raises(run, _at(arguments, known, {})):
            return None
    sampled: _SampledCall | None = context.assuming_equal(
        *pair, lambda: _sampled(run, arguments, context, symbols)
    )
    return sampled


def _raises(run: Run, arguments: object) -> bool:
    try:
        run(arguments)
    except NotImplementedError:
        return False
    except Exception as error:  # other errors do not show what eager does
        return isinstance(error, _REFUSALS)
    return False


def _possibly_equal(arguments: object) -> list[tuple[Expr, Expr]]:
    """Return pairs of different tensor dimensions, one of them data-dependent."""
    tensors = list(tensors_in(arguments))
    found = dict.fromkeys(size for x in tensors for size in as_dimensions(x.shape))
    sizes = [size for size in found if isinstance(size, Size) and size.context.of_data(size.expr)]
    pairs = [(a.expr, expr_of(b)) for a in sizes for b in found if a is not b]
    return list({frozenset(pair): pair for pair in pairs}.values())[:_MOST_PAIRS]


def _sampled(
    run: Run, arguments: object, context: Context, symbols: Sequence[Symbol]
) -> _SampledCall | None:
    sampled = _read(run, arguments, context, symbols, _samples(context, symbols), None)
    if sampled is None and (windows := candidate_sizes(arguments)):
        close = _samples(context, symbols, _CLOSE_STEPS)
        sampled = _read(run, arguments, context, symbols, close, windows)
    return sampled


def _read(
    run: Run,
    arguments: object,
    context: Context,
    symbols: Sequence[Symbol],
    samples: list[SizeValues],
    windows: list[Expr] | None,
) -> _SampledCall | None:
    """Sample the results at these size tuples; sizes may be `windows` of others."""
    sizes = list(dict.fromkeys(sizes_in(arguments)))
    of_data = [one for one in symbols if context.of_data(one)]
    if len(samples) < _FEWEST:
        return None
    given = [_at(arguments, known, {}) for known in samples]
    held = [storages_in(one) for one in given]
    try:
        made_at = _outcomes(run, given, samples, bool(of_data))
    except Exception:  # the sampled sizes may be at fault; the caller raises for this call's
        return None
    if len(made_at) < _FEWEST:
        return None
    samples, outcomes = [samples[n] for n in made_at], list(made_at.values())
    for (result, written), memory in zip(outcomes, [held[n] for n in made_at], strict=True):
        if not memory.isdisjoint(storages_in(result).union(written)):
            return None  # symbolic_views.py has the rules of views
    results = [result for result, _ in outcomes]
    exprs = [*(size.expr for size in sizes), *_nearby_formulas(symbols)]
    reader = FormulaReader if windows else _Reader
    try:
        made = _joined(results, reader([*exprs, *(windows or ())], samples, context))
    except ResultsDiffer:
        return None
    for few in (0, 1) if of_data else ():
        if not _holds_for(made, run, arguments, {**samples[0], **dict.fromkeys(of_data, few)}):
            return None
    if not of_data and not _holds_in_any_order(made, run, arguments, context, samples[0]):
        return None
    layouts = [(as_dimensions(t.shape), as_dimensions(t.stride())) for t in tensors_in(made)]
    return _SampledCall(results[0], layouts)


def _holds_in_any_order(
    made: object, run: Run, arguments: object, context: Context, hints: SizeValues
) -> bool:
    """Return whether the result holds for smaller sizes and other orders of sizes. If not, it may
    be the lesser of two sizes (`diag`): their order is guarded and the check repeated.
    """
    if _holds_reordered(made, run, arguments, context, hints):
        return True
    sizes = {n for t in tensors_in(arguments) for n in as_dimensions(t.shape)}
    ordered = sorted(map(expr_of, sizes), key=lambda expr: evaluate(expr, dict(hints)))
    for left, right in itertools.pairwise(ordered):
        if not isinstance(left, Integer) or not isinstance(right, Integer):
            context.decide("<=", left, right)
    return _holds_reordered(made, run, arguments, context, hints)


def _holds_reordered(
    made: object, run: Run, arguments: object, context: Context, hints: SizeValues
) -> bool:
    return all(_holds_for(made, run, arguments, known) for known in _reordered(context, hints))


def _reordered(context: Context, hints: SizeValues) -> list[SizeValues]:
    """Return smaller values, and values in other orders, that pass the guards."""
    count = len(hints)
    large = max(hints.values()) + count * _APART
    reordered = [range(2, count + 2), range(count + 1, 1, -1), range(large, 0, -_APART)]
    samples = [dict(zip(hints, values, strict=False)) for values in reordered]
    return [known for known in samples if context.allows(known)]


def other_size_values(context: Context, symbols: Sequence[Symbol]) -> list[SizeValues]:
    """Return a few values of the symbols that pass the guards: larger than in this call, the
    smallest, at which tensors may be empty, and those of `_reordered`.
    """
    hints: SizeValues = {symbol: context.hint_of(symbol) for symbol in symbols}
    larger = [known for known in _samples(context, symbols) if known != hints]
    smallest: SizeValues = dict(hints)
    for symbol in symbols:
        limits = context.range_of(symbol)
        if limits is not None and limits.low >= 0:
            smallest[symbol] = int(limits.low)
    allowed = [smallest] if context.allows(smallest) else []
    return [*larger[:_FEW], *allowed, *_reordered(context, hints)]


def _outcomes(
    run: Run, given: list[Any], samples: list[SizeValues], of_data: bool
) -> dict[int, tuple[Any, Any]]:
    """Return the call's result for each size tuple, by index.

    The smallest run first: where the number of results depends on a size (`unbind`), large sizes
    would give millions. Sizes of inputs that are refused (odd ones, for pixel_unshuffle) are
    skipped: the call refuses them in the program too.
    """
    made: dict[int, tuple[Any, Any]] = {0: run(given[0])}
    for n in sorted(range(1, len(samples)), key=lambda n: sum(samples[n].values())):
        try:
            made[n] = run(given[n])
        except _REFUSALS:
            if of_data:
                raise
            continue
        if len(made) == 2 and len({len(list(tensors_in(one))) for one, _ in made.values()}) > 1:
            raise ResultsDiffer
    return dict(sorted(made.items()))


def with_sizes_of_call(arguments: object) -> Any:
    """Return the arguments with the sizes of this call, as fresh tensors."""
    known: SizeValues = {
        symbol: size.context.hint_of(symbol)
        for size in dict.fromkeys(sizes_in(arguments))
        for symbol in symbols_of(size.expr)
    }
    return _at(arguments, known, {})


def _holds_for(made: object, run: Run, arguments: object, known: SizeValues) -> bool:
    """Return whether the results have these shapes at `known`, or the call raises there."""
    try:
        found, _ = run(_at(arguments, known, {}))
    except Exception:  # the call is invalid at these sizes, so no shape is wrong
        return True
    pairs = zip(tensors_in(made), tensors_in(found), strict=True)
    return all(
        [value_of(n, dict(known)) for n in as_dimensions(a.shape)] == list(b.shape)
        for a, b in pairs
    )


def _nearby_formulas(symbols: Sequence[Symbol]) -> Iterator[Expr]:
    """Yield common formulas of windows and strides for a size: `n - 1`, `(n + 1) // 2`."""
    for symbol in symbols:
        for apart in _WINDOWS:
            moved = add(symbol, Integer(apart))
            yield from (moved, *(floordiv(moved, part) for part in _PARTS))


def _samples(
    context: Context, symbols: Sequence[Symbol], steps: Sequence[int] = _STEPS
) -> list[SizeValues]:
    """Return values of the symbols that pass the guards, those of this call first."""
    ranges = {symbol: context.range_of(symbol) for symbol in symbols}
    free = [s for s, limits in ranges.items() if limits is None or limits.low != limits.high]
    hints: SizeValues = {symbol: context.hint_of(symbol) for symbol in symbols}
    steps = (*_STEPS, *_SMALL_STEPS) if any(map(context.of_data, symbols)) else steps

    def samples(moving: Sequence[Symbol]) -> Iterator[SizeValues]:
        for step in steps if moving else ():
            known = dict(hints)
            if step:
                known.update(
                    (s, _moved(hints[s], step, n, ranges[s])) for n, s in enumerate(moving)
                )
            agreeing = context.agreeing(known) if context.expected else known
            if agreeing is None or not all(value < _MOST for value in agreeing.values()):
                continue
            if context.allows(agreeing):
                yield agreeing

    found = list(samples(free))
    if len(found) < _FEWEST:  # comparisons may leave but few values of one, and many of another
        found = list(samples([s for s in free if len(list(samples([s]))) >= _FEWEST])) or found
    return found


def _moved(hint: int, step: int, n: int, limits: Interval | None) -> int:
    """Return a size away from the hint, within the range that the guards leave."""
    value = hint + step + _APART * n
    if limits is None or value <= limits.high:
        return value
    low, high = int(limits.low), int(limits.high)
    return low + (step + n) % (high - low + 1)


def _at(value: Any, known: SizeValues, made: dict[int, torch.Tensor]) -> Any:
    """Return the nested arguments at these sizes; a tensor that occurs twice stays one tensor."""
    if isinstance(value, torch.SymInt):
        return value_of(as_dimension(value), dict(known))
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            made[id(value)] = _tensor_at(value, known)
        return made[id(value)]
    if isinstance(value, dict):
        return {key: _at(item, known, made) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_at(item, known, made) for item in value)
    if isinstance(value, slice):
        return slice(*(_at(part, known, made) for part in (value.start, value.stop, value.step)))
    return value


def _tensor_at(value: torch.Tensor, known: SizeValues) -> torch.Tensor:
    shape, stride = (
        [value_of(n, dict(known)) for n in as_dimensions(numbers)]
        for numbers in (value.shape, value.stride())
    )
    made = torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    return made.requires_grad_() if value.requires_grad else made


def _described(value: object, seen: dict[int, int]) -> Hashable:
    """Return the properties that `_at` reads; equal if it builds the same tensors."""
    if isinstance(value, torch.Tensor):
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
        numbers = (*as_dimensions(value.shape), *as_dimensions(value.stride()))
        return value.dtype, value.dim(), value.requires_grad, tuple(map(_known_value, numbers))
    if isinstance(value, torch.SymInt):
        return _known_value(as_dimension(value))
    if isinstance(value, dict):
        return tuple((key, _described(item, seen)) for key, item in value.items())
    if isinstance(value, slice):
        value = (slice, value.start, value.stop, value.step)
    if isinstance(value, tuple | list):
        return type(value), tuple(_described(item, seen) for item in value)
    number = repr(value) if isinstance(value, float | complex) else value  # 0.0 equals -0.0
    return type(value), number


def _known_value(number: Dimension) -> Expr:
    limits = number.context.range_of(number.expr) if isinstance(number, Size) else None
    if limits is not None and limits.low == limits.high:
        return integer(int(limits.low))
    return expr_of(number)


class _Reader:
    """Finds one expression for the numbers seen at all size tuples."""

    def __init__(
        self, exprs: Sequence[Expr], samples: Sequence[SizeValues], context: Context
    ) -> None:
        self._exprs, self._samples, self._context = exprs, samples, context
        self._readings: dict[
            tuple[int, int], Readings
        ] = {}  # filled on demand: the first pair nearly always suffices

    def __call__(self, numbers: Sequence[int]) -> Any:
        """Return the Dimension. Small numbers fit several expressions, so several pairs are
        tried.
        """
        for a, b in _PAIRS:
            if (a, b) not in self._readings:
                one, two = self._samples[a], self._samples[b]
                self._readings[a, b] = Readings(self._exprs, one, two)  # type: ignore[arg-type]
            expr = self._readings[a, b].read(numbers[a], numbers[b])
            if expr is not None and self._values(expr) == list(numbers):
                return size_of(expr, self._context)
        raise ResultsDiffer

    def _values(self, expr: Expr) -> list[int]:
        made = size_of(expr, self._context)
        return [value_of(made, dict(known)) for known in self._samples]


Read = Callable[[Sequence[int]], Any]


def _joined(results: Sequence[Any], read: Read) -> Any:
    first = results[0]
    if len({type(one) for one in results}) > 1:
        raise ResultsDiffer
    if isinstance(first, torch.Tensor):
        return _joined_tensor(results, read)
    if isinstance(first, tuple | list):
        if len({len(one) for one in results}) > 1:
            raise ResultsDiffer
        return rebuilt(first, [_joined(items, read) for items in zip(*results, strict=True)])
    if any(one != first for one in results):
        raise ResultsDiffer
    return first


def _joined_tensor(tensors: Sequence[torch.Tensor], read: Read) -> torch.Tensor:
    facts = {(t.dtype, t.dim(), t.requires_grad, t.storage_offset(), t.device) for t in tensors}
    if len(facts) > 1 or tensors[0].storage_offset():
        raise ResultsDiffer
    shape, stride = (
        [read(numbers) for numbers in zip(*each, strict=True)]
        for each in ([t.shape for t in tensors], [t.stride() for t in tensors])
    )
    return _laid_out(shape, stride, tensors[0].dtype)


def _laid_out(
    shape: Sequence[Dimension], stride: Sequence[Dimension], dtype: torch.dtype
) -> torch.Tensor:
    sizes, strides = ([*map(as_torch, numbers)] for numbers in (shape, stride))
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")


def _replaced(value: object, after: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(after)
    if isinstance(value, tuple | list):
        return rebuilt(value, [_replaced(item, after) for item in value])
    return value
