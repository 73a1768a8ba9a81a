"""Infers shapes on symbolic sizes: by a rule that is checked at this call's sizes, or by sampling.

Input: an operator, or a call and a function that runs it, whose arguments have symbolic sizes.
Output: its results with Sizes, or None.

A rule of `graph/operators/shapes.py` gives the result's sizes as functions of the operands' sizes.
torch's C++ meta function needs ints, so it runs at the sizes of this call: it raises what eager
raises and gives the dtype, which does not depend on sizes. If rule and meta function disagree at
these sizes, the result is None.

Without a rule, the call runs on meta tensors of several size tuples that pass the guards, and each
size of its results becomes the formula that has the values seen at all of them (symbols/probe.py).
The result is still a conjecture: `graph/symbolic/concrete.py` compares each spec at each size tuple
that is compiled. A call that is repeated in a trace on tensors of the same layout is not run again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...lazy_dataclass import dataclass
from ...operators.operation import is_elementwise
from ...symbols.context import Context
from ...symbols.expr import Expr, Integer, integer, mod
from ...symbols.probe import (
    FEWEST,
    Formulas,
    SizeValues,
    Verdict,
    note,
    size_tuples,
    size_tuples_in_other_orders,
)
from ...symbols.size import Dimension, Size, SizeFloat, expr_of, size_of, value_of
from ...symbols.symbolic_numbers import Symbol, evaluate, symbols_of
from ...torch_types import Args, Kwargs, OpOverload
from ..attribution import Silence
from ..devices import kernel_device
from ..linked_history import link_history
from ..memory import storages_in
from ..nested import frozen, map_leaves, map_tensors, rebuilt
from ..node_meta import tensors_in
from ..symbolic.sym_node import as_dimension, as_dimensions, as_torch, sizes_in, with_hints
from ..symbolic.symbolic_views import symbolic_view
from .kernel_probing import kernel_result
from .shapes import infer, infer_in_place
from .tensor_iterator import elementwise

__all__ = [
    "CallSignature",
    "infer_checked",
    "infer_symbolic",
    "shapes_by_sampling",
    "with_sizes_of_call",
]

aten = torch.ops.aten
Run = Callable[[object], tuple[object, Collection[int]]]
# Errors by which torch refuses arguments; before 2.13 some meta functions use assert.
_REFUSALS = (RuntimeError, ValueError, IndexError, AssertionError)
_MOST_PAIRS = 8  # of sizes that a call may require to be equal
_NUMBERS, _DIMS = 2, 6  # how many numbers and dimensions of a call are combined
_LARGEST_DIVISOR = 64  # that a call may require of a size
_MARGINS = range(-4, 8)  # kernel extent minus padding: subtracted from a dimension


# -- by rule ---------------------------------------------------------------------------------------


def infer_symbolic(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Return the result of an operator on symbolic sizes, or None if no rule covers it."""
    if (view := symbolic_view(op, args, kwargs)) is not None:
        return view
    if op is aten._to_copy.default and next(sizes_in(args), None) is not None:
        return infer(op, args, kwargs)  # torch's meta function would need ints
    return infer_checked(op, args, kwargs)


def infer_checked(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Return the result with Sizes. Raises what the operator raises at this call's sizes."""
    if next(sizes_in((tuple(args), dict(kwargs))), None) is None:
        return None
    # First, because the rule may add expectations that change the example sizes read below.
    made = infer(op, args, kwargs)
    if made is None:
        made = infer_in_place(op, args, kwargs)
    here = with_hints(tuple(args)), with_hints(dict(kwargs))
    known = kernel_result(op, *here)
    if known is None:
        known = op(*here[0], **here[1])
    by_iterator = is_elementwise(op) and not op._schema.is_mutable
    if made is None and by_iterator and isinstance(known, torch.Tensor):
        # torch tags aten.full, which has no tensors, as pointwise too.
        tensors = list(tensors_in((tuple(args), dict(kwargs))))
        made = elementwise(tensors, known.dtype) if tensors else None
    return made if made is not None and _is_alike(with_hints(made), known) else None


def _is_alike(made: object, known: object) -> bool:
    if isinstance(made, torch.Tensor) and isinstance(known, torch.Tensor):
        return (made.shape, made.stride(), made.dtype) == (known.shape, known.stride(), known.dtype)
    if isinstance(made, tuple | list) and isinstance(known, tuple | list):
        return len(made) == len(known) and all(map(_is_alike, made, known))
    return False


# -- by sampling -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Identifies a call that may be repeated in a trace on tensors of the same layout, like a cell
    of a recurrent layer. Its warnings are shown each time.
    """

    target: Hashable
    place: Silence

    def key(self, arguments: object) -> Hashable:
        """Return a key of the arguments that `_at` reads; None if the result cannot be cached."""
        modes = torch.is_grad_enabled(), torch.get_default_dtype(), kernel_device()
        seen: dict[int, int] = {}
        key = self.target, modes, frozen(arguments, partial(_layout_of, seen=seen))
        try:
            hash(key)
        except TypeError:
            return None
        return key


def _layout_of(value: object, seen: dict[int, int]) -> Hashable:
    """Return the properties of an argument that `_at` reads; equal if it builds the same tensor."""
    if isinstance(value, torch.SymInt):
        return _known_value(as_dimension(value))
    if not isinstance(value, torch.Tensor):
        return None
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    numbers = (*as_dimensions(value.shape), *as_dimensions(value.stride()))
    return value.dtype, value.dim(), value.requires_grad, tuple(map(_known_value, numbers))


def _known_value(number: Dimension) -> Expr:
    limits = number.context.range_of(number.expr) if isinstance(number, Size) else None
    if limits is not None and limits.low == limits.high:
        return integer(int(limits.low))
    return expr_of(number)


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
        after = iter(fresh)
        return map_tensors(self.like, lambda _: next(after))


def shapes_by_sampling(
    run: Run, arguments: object, signature: CallSignature | None = None
) -> object:
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
    sampled = context.sampled.get(key)
    if sampled is None:
        sampling = _Sampling(run, arguments, context, symbols, of_data)
        subject = signature.target if signature else getattr(run, "args", (run,))[0]
        sampled = note("shape of the result", subject, sampling.verdict()).found
    if sampled is None:
        return None
    if signature is not None and key is not None and not signature.place.has_warned:
        # The key is computed anew: the call may have left sizes one value.
        context.sampled[signature.key(arguments)] = sampled
    return sampled.of(list(tensors_in(arguments)))


class ResultsDiffer(Exception):
    """Raised if the results at two size tuples differ in more than sizes."""


def _value_at(expr: Expr, known: SizeValues) -> int:
    value: int = evaluate(expr, dict(known))
    return value


def _divisors(number: int) -> list[int]:
    return [n for n in range(2, min(number, _LARGEST_DIVISOR) + 1) if number % n == 0]


@dataclass(frozen=True, slots=True)
class _Sampling:
    """A call that is run at several size tuples."""

    run: Run
    arguments: object
    context: Context
    symbols: Sequence[Symbol]
    of_data: Sequence[Symbol]

    def verdict(self) -> Verdict:
        """Return a _SampledCall, or why there is none. A call may raise unless two sizes are equal,
        one of them data-dependent: that is then expected of all calls.
        """
        found = self._sampled()
        for pair in self._possibly_equal() if self.of_data and found.found is None else ():
            if self._raises_unless_equal(*pair):
                infer = partial(self.context.assuming_equal, *pair)
                made = infer(lambda: self._sampled().found)
                if made is not None:
                    return Verdict.holds(made)
        return found

    def _possibly_equal(self) -> list[tuple[Expr, Expr]]:
        """Return pairs of different tensor dimensions, one of them data-dependent."""
        tensors = tensors_in(self.arguments)
        found = dict.fromkeys(size for x in tensors for size in as_dimensions(x.shape))
        sizes = [n for n in found if isinstance(n, Size) and n.context.of_data(n.expr)]
        pairs = [(a.expr, expr_of(b)) for a in sizes for b in found if a is not b]
        return list({frozenset(pair): pair for pair in pairs}.values())[:_MOST_PAIRS]

    def _raises_unless_equal(self, left: Expr, right: Expr) -> bool:
        return all(
            evaluate(left, dict(known)) == evaluate(right, dict(known)) or self._raises_at(known)
            for known in size_tuples(self.context, self.symbols)
        )

    def _raises_at(self, known: SizeValues) -> bool:
        try:
            self.run(_at(self.arguments, known))
        except NotImplementedError:
            return False
        except Exception as error:  # other errors do not show what eager does
            return isinstance(error, _REFUSALS)
        return False

    def _sampled(self) -> Verdict:
        found = self._read(size_tuples(self.context, self.symbols), ())
        if found.found is None and (windows := _sizes_of_windows(self.arguments)):
            found = self._read(size_tuples(self.context, self.symbols, is_close=True), windows)
        return found

    def _read(self, samples: list[SizeValues], windows: Sequence[Expr]) -> Verdict:
        """Sample the results at these size tuples; sizes may be `windows` of others."""
        if len(samples) < FEWEST:
            return Verdict.unknown("the guards leave too few sizes")
        sizes = list(dict.fromkeys(sizes_in(self.arguments)))
        try:
            made_at = self._outcomes(samples)
            samples = [samples[n] for n in made_at]
            results = list(made_at.values())
            formulas = Formulas([size.expr for size in sizes], samples, windows)
            made = _joined(results, partial(self._size, formulas))
        except ResultsDiffer as differ:
            return Verdict.fails(str(differ))
        except Exception as error:  # the sampled sizes may be at fault; the caller raises
            return Verdict.unknown(error.with_traceback(None))
        few = [{**samples[0], **dict.fromkeys(self.of_data, n)} for n in (0, 1) if self.of_data]
        for known in few:
            if not self._holds_at(made, known):
                return Verdict.fails("another shape", known)
        if not self.of_data and not self._holds_in_any_order(made, samples[0]):
            return Verdict.fails("another shape if the sizes have another order")
        layouts = [(as_dimensions(t.shape), as_dimensions(t.stride())) for t in tensors_in(made)]
        return Verdict.holds(_SampledCall(results[0], layouts))

    def _outcomes(self, samples: list[SizeValues]) -> dict[int, object]:
        """Return the call's result for each size tuple, by index. Raises ResultsDiffer.

        The smallest run first: where the number of results depends on a size (`unbind`), large
        sizes would give millions. Where the call raises at some (odd ones, for pixel_unshuffle), a
        guard leaves them out.
        """
        made: dict[int, Any] = {}
        for n in (0, *sorted(range(1, len(samples)), key=lambda n: sum(samples[n].values()))):
            try:
                made[n] = self._outcome(samples[n])
            except _REFUSALS:
                if n == 0 or self.of_data:
                    raise
                continue
            if len(made) == 2 and len({len(list(tensors_in(one))) for one in made.values()}) > 1:
                raise ResultsDiffer("the number of results depends on sizes")
        if len(made) < FEWEST:
            raise ResultsDiffer("the call refuses most sizes")
        refused = [known for n, known in enumerate(samples) if n not in made]
        self._exclude(refused, [samples[n] for n in made])
        return dict(sorted(made.items()))

    def _exclude(self, refused: list[SizeValues], accepted: list[SizeValues]) -> None:
        """Guard what tells the sizes at which the call raises from those at which it does not: a
        divisor or a least size. A kernel checks nothing and would return a result there. Raises
        ResultsDiffer if nothing tells them apart.
        """
        for expr in [size.expr for size in dict.fromkeys(sizes_in(self.arguments))]:
            if not refused:
                return
            at = partial(_value_at, expr)
            least, common = min(map(at, accepted)), math.gcd(*map(at, accepted))
            for divisor in _divisors(common):
                if any(at(known) % divisor for known in refused):
                    self.context.decide("==", mod(expr, divisor), integer(0))
                    refused = [known for known in refused if at(known) % divisor == 0]
            if refused and all(at(known) < least for known in refused):
                self.context.decide(">=", expr, integer(least))
                return
        for rest in _remainders(self.arguments) if refused else ():
            at = partial(_value_at, expr_of(rest))
            if not any(map(at, accepted)) and any(map(at, refused)) and rest == 0:  # a guard
                refused = [known for known in refused if not at(known)]
        if refused:
            raise ResultsDiffer("the call refuses some sizes")

    def _outcome(self, known: SizeValues) -> object:
        given = _at(self.arguments, known)
        held = storages_in(given)
        result, written = self.run(given)
        if not held.isdisjoint(storages_in(result).union(written)):
            raise ResultsDiffer("it is a view or writes")  # symbolic_views.py has rules of views
        return result

    def _size(self, formulas: Formulas, numbers: Sequence[int]) -> object:
        is_known = all(type(number) is int for number in numbers)  # others are data-dependent
        expr = formulas.read(numbers) if is_known else None
        if expr is None:
            raise ResultsDiffer(f"{tuple(numbers)} are not a recognised function of the sizes")
        return size_of(expr, self.context)

    def _holds_in_any_order(self, made: object, hints: SizeValues) -> bool:
        """Return whether the result holds for smaller sizes and other orders of sizes. If not, it
        may be the lesser of two sizes (`diag`): their order is guarded and the check repeated.
        """
        if self._holds_reordered(made, hints):
            return True
        sizes = {n for t in tensors_in(self.arguments) for n in as_dimensions(t.shape)}
        ordered = sorted(map(expr_of, sizes), key=lambda expr: evaluate(expr, dict(hints)))
        for left, right in itertools.pairwise(ordered):
            if not isinstance(left, Integer) or not isinstance(right, Integer):
                self.context.decide("<=", left, right)
        return self._holds_reordered(made, hints)

    def _holds_reordered(self, made: object, hints: SizeValues) -> bool:
        reordered = size_tuples_in_other_orders(self.context, hints)
        return all(self._holds_at(made, known) for known in reordered)

    def _holds_at(self, made: object, known: SizeValues) -> bool:
        """Return whether the results have these shapes at `known`, or the call raises there."""
        try:
            found, _ = self.run(_at(self.arguments, known))
        except Exception:  # the call is invalid at these sizes, so no shape is wrong
            return True
        pairs = zip(tensors_in(made), tensors_in(found), strict=True)
        return all(
            [value_of(n, dict(known)) for n in as_dimensions(a.shape)] == list(b.shape)
            for a, b in pairs
        )


def _remainders(arguments: object) -> Iterator[Size]:
    """Yield what is left of each dimension in parts of a number of the call, or of its square."""
    dims, numbers = _dims_and_numbers(arguments)
    for dim, number in itertools.product(dims, numbers):
        for part in (number, number * number):
            rest = dim - dim // part * part
            if isinstance(rest, Size):
                yield rest


def _dims_and_numbers(arguments: object) -> tuple[list[Dimension], list[Size]]:
    """Return the first dimensions of the tensors of a call, and its other numbers."""
    tensors = tensors_in(arguments)
    dims = list(dict.fromkeys(n for t in tensors for n in as_dimensions(t.shape)))[:_DIMS]
    numbers: dict[Size, None] = {}
    map_leaves(arguments, lambda leaf: _note_number(leaf, numbers))
    return dims, list(numbers)[:_NUMBERS]


def _sizes_of_windows(arguments: object) -> list[Expr]:
    """Return the candidate sizes for windows, steps or parts along a dimension, given by a number
    of the call that is not a size of a tensor (the kernel of a pool, the groups of a norm). The
    number is guarded to be positive.
    """
    dims, numbers = _dims_and_numbers(arguments)
    made: list[Any] = []
    for number in numbers:
        if not number > 0:
            continue
        for dim in dims:
            made += (dim + number, dim - number, dim - number + 1)
            parts = [(dim - margin) // number for margin in _MARGINS]
            made += [*parts, *(part + 1 for part in parts), dim // (number * number)]
    return list(map(expr_of, made))


def _note_number(leaf: object, numbers: dict[Size, None]) -> None:
    number = as_dimension(leaf)
    if isinstance(number, Size):
        numbers[number] = None


def with_sizes_of_call(arguments: object) -> Any:
    """Return the arguments with the sizes of this call, as fresh tensors."""
    known: SizeValues = {
        symbol: size.context.hint_of(symbol)
        for size in dict.fromkeys(sizes_in(arguments))
        for symbol in symbols_of(size.expr)
    }
    return _at(arguments, known)


def _at(arguments: object, known: SizeValues) -> object:
    """Return the nested arguments at these sizes; a tensor that occurs twice stays one tensor."""
    made: dict[int, torch.Tensor] = {}

    def at(value: object) -> Any:
        if isinstance(value, torch.SymInt):
            return value_of(as_dimension(value), dict(known))
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = _tensor_at(value, known)
        return made[id(value)]

    return map_leaves(arguments, at)


def _tensor_at(value: torch.Tensor, known: SizeValues) -> torch.Tensor:
    shape, stride = (
        [value_of(n, dict(known)) for n in as_dimensions(numbers)]
        for numbers in (value.shape, value.stride())
    )
    made = torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    return made.requires_grad_() if value.requires_grad else made


Read = Callable[[Sequence[int]], Any]


def _joined(results: Sequence[Any], read: Read) -> Any:
    first = results[0]
    if len({type(one) for one in results}) > 1:
        raise ResultsDiffer("results of several types")
    if isinstance(first, torch.Tensor):
        return _joined_tensor(results, read)
    if isinstance(first, tuple | list):
        if len({len(one) for one in results}) > 1:
            raise ResultsDiffer("the number of results depends on sizes")
        return rebuilt(first, [_joined(items, read) for items in zip(*results, strict=True)])
    if any(one != first for one in results):
        raise ResultsDiffer("a value among the results depends on sizes")
    return first


def _joined_tensor(tensors: Sequence[torch.Tensor], read: Read) -> torch.Tensor:
    facts = {(t.dtype, t.dim(), t.requires_grad, t.storage_offset(), t.device) for t in tensors}
    if len(facts) > 1 or tensors[0].storage_offset():
        raise ResultsDiffer("the kind of the result depends on sizes")
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
