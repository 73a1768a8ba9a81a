"""Checks whether numpy and its emulation agree on a call, by running both on sample arrays.

Input: a Call with a function of numpy, its counterpart on tensors, and the arguments, arrays as
Slots with ArraySpecs (shape, strides, dtype). Output: a Verdict with the kinds of the results and
whether an argument is written to, or the reason why the call is not recorded. A call with Sizes is
run at several size tuples that the guards admit, beginning with this call's.

Both functions run on values for which implementations tend to differ: signed zeros, infinities,
nan, the largest integers, halves, negative numbers. The results must agree in class, dtype, shape,
strides, memory shared with the arguments, and, to rounding, in values. The program's own data is
not read or changed.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ....graph.nested import frozen, map_leaves
from ....graph.symbolic.sym_node import as_torch
from ....lazy_dataclass import dataclass, replace
from ....symbols.context import Context, Specialize
from ....symbols.probe import Answers, SizeValues, Verdict, other_size_tuples
from ....symbols.size import Size, value_of
from ....symbols.symbolic_numbers import symbols_of
from ..numpy_scalars import np
from .array_samples import ArraySpec, CannotSample, edge_values, materialised, numpy_array, samples
from .emulation import emulated_dtype, emulation, torch_dtype

__all__ = [
    "Call", "Fact", "Result", "SizedCall", "Slot", "at_sizes", "filled", "judge",
    "recorded_constant",
]  # fmt: skip

_LARGEST = 1 << 22  # elements of an argument or a result: a probe costs about a call of numpy
_ROUNDS = 4  # kinds of samples in `samples`
# The two libraries add in different orders, so values agree only to rounding.
_RTOL = {torch.float16: 2e-3, torch.float32: 1e-5, torch.complex64: 1e-5}
_INTS = (torch.int16, torch.int32, torch.int64)
_WIDE = frozenset(
    (
        torch.bool, torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
)  # fmt: skip
_ANSWERS = Answers("torch's emulation agrees with numpy", 512)


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder for the index-th array among the arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call to probe.

    `pointwise`: no element of a result depends on more than one element of each argument. `name`
    identifies a function that is created anew for each call, in place of its id."""

    real: Callable[..., object]
    emulated: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    slots: tuple[ArraySpec, ...]
    pointwise: bool
    name: object = None

    @property
    def key(self) -> Hashable:
        state = torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
        return self.name or self.real, frozen((self.args, self.kwargs), _keyed), self.slots, state


@dataclass(frozen=True, slots=True)
class Result:
    """An array result; `same` is the index of the argument that is returned as the result."""

    spec: ArraySpec
    same: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A result that is a Python constant."""

    value: object


class _Differs(CannotSample):
    """Raised with the reason when the two functions do not agree."""


def judge(call: Call) -> Verdict:
    """Run both libraries; `found` is the result (a Result, a Fact, or a tuple or list of them) and
    whether the call writes to an argument.
    """
    return _ANSWERS.of(call.name or call.real, call.key, partial(_judged, call))


def _judged(call: Call) -> Verdict:
    if any(spec.size > _LARGEST for spec in call.slots):
        return Verdict.unknown("an array is too large to probe the call")
    try:
        outcomes = [_round(call, number) for number in range(_ROUNDS)]
        if any(outcome != outcomes[0] for outcome in outcomes):
            raise _Differs("the kind of the result depends on the data")
        if call.pointwise and call.slots:
            _all_pairs(call)
    except CannotSample as differs:
        return Verdict.fails(str(differs))
    return Verdict.holds(outcomes[0])


# -- the two sides ---------------------------------------------------------------------------------


@dataclass
class _Side:
    """One library's run of the call: its arguments, their memory, and the result."""

    arrays: list[object]
    memory: list[torch.Tensor]
    result: object

    def address(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the argument that a result shares memory with, and the byte offset, or None."""
        for index, memory in enumerate(self.memory):
            start = memory.untyped_storage().data_ptr()
            if start <= tensor.data_ptr() < start + memory.untyped_storage().nbytes():
                return index, tensor.data_ptr() - start
        return None


def _round(call: Call, number: int) -> tuple[object, bool]:
    data = [samples(spec, index, number) for index, spec in enumerate(call.slots)]
    for index in _indexes(call):
        most = min(call.slots[0].shape)
        # In [-most, most): in both libraries, negative indices count from the end.
        data[index] = data[index].remainder(2 * most).sub(most)
    return _compared(call, call.slots, data)


def _indexes(call: Call) -> list[int]:
    """Return the arguments that are integer indices of the first; their samples stay in bounds.

    An index out of bounds needs no probe: the graph raises IndexError as numpy does, and eager
    reruns the call.
    """
    if call.real not in (operator.getitem, operator.setitem) or not all(call.slots[0].shape):
        return []
    keys = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    slots = [key.index for key in keys if isinstance(key, Slot)]
    return [n for n in slots if call.slots[n].dtype in _INTS]


def _compared(
    call: Call, slots: Sequence[ArraySpec], data: list[torch.Tensor]
) -> tuple[object, bool]:
    """Run both libraries on the same data; return the result and whether an argument changed."""
    real, emulated = _run(call, slots, data, True), _run(call, slots, data, False)
    result = _alike(call, real, emulated, real.result, emulated.result)
    for expected, actual in zip(real.memory, emulated.memory, strict=True):
        _same_values(call, expected, actual)
    writes = any(
        not torch.equal(_without_nan(memory), _without_nan(before))
        for memory, before in zip(real.memory, materialised(slots, data), strict=True)
    )
    return result, writes


def _run(call: Call, slots: Sequence[ArraySpec], data: list[torch.Tensor], is_real: bool) -> _Side:
    """Run numpy's function, or its emulation."""
    memory = materialised(slots, data)
    wrap = numpy_array if is_real else _emulated_array
    arrays = [wrap(spec, tensor) for spec, tensor in zip(slots, memory, strict=True)]
    constant = (lambda value: value) if is_real else recorded_constant
    args, kwargs = filled((call.args, call.kwargs), arrays, constant)
    # A call that warns of more than floating-point errors is a break, so that numpy itself warns.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        try:
            made = call.real(*args, **kwargs) if is_real else call.emulated(*args, **kwargs)
        except Exception as error:  # the libraries may raise anything for sample values
            kind = type(error).__name__
            if is_real:
                raise _Differs(f"numpy raises {kind} for some values") from None
            raise _Differs(f"torch has no equivalent ({kind}: {error})") from None
    return _Side(arrays, memory, made)


def filled(tree: object, arrays: Sequence[object], constant: Callable[[object], object]) -> Any:
    """Return nested arguments with arrays in place of the Slots."""
    return map_leaves(
        tree, lambda leaf: arrays[leaf.index] if isinstance(leaf, Slot) else constant(leaf)
    )


def recorded_constant(value: object) -> object:
    """Return a constant argument as the emulation takes it, also during recording."""
    if isinstance(value, Size):
        return as_torch(value)
    is_dtype = isinstance(value, np.dtype) or (
        isinstance(value, type) and issubclass(value, np.generic)
    )
    if is_dtype:
        return emulated_dtype(value)
    return value.item() if isinstance(value, np.generic) else value


def _keyed(value: object) -> Hashable:
    """Return the key of a numpy scalar: equality would not distinguish signed zeros."""
    return (type(value), repr(value)) if isinstance(value, np.generic) else None


def _emulated_array(spec: ArraySpec, memory: torch.Tensor) -> object:
    return memory if spec.kind is torch.Tensor else emulation().ndarray(memory)


# -- values ----------------------------------------------------------------------------------------


def _all_pairs(call: Call) -> None:
    """Compare the libraries on each pair of `edge_values` values of two arguments, as 1-dim arrays.

    The pairs are formed for the first argument and one other at a time.
    """
    pools = [edge_values(spec.dtype) for spec in call.slots]
    count = max(map(len, pools))
    for other in range(max(1, len(pools) - 1)):
        data = [
            pool[torch.arange(count * count) % len(pool)].clone()
            if index != other + 1
            else pool[(torch.arange(count * count) // count) % len(pool)].clone()
            for index, pool in enumerate(pools)
        ]
        kinds = [torch.Tensor if spec.kind is torch.Tensor else np.ndarray for spec in call.slots]
        slots = [
            ArraySpec((count * count,), (1,), spec.dtype, kind)
            for spec, kind in zip(call.slots, kinds, strict=True)
        ]
        _compared(call, slots, data)


# -- comparing -------------------------------------------------------------------------------------


def _alike(call: Call, real: _Side, emulated: _Side, expected: object, actual: Any) -> object:
    """Return the result that both libraries agree on. Raises _Differs."""
    if isinstance(expected, tuple | list):
        kinds = {type(expected), type(actual)}
        # np.meshgrid returns a list in numpy 1 and a tuple in numpy 2.
        alike = len(kinds) == 1 or kinds == {list, tuple}
        if not alike or len(expected) != len(actual):
            raise _Differs("it returns another kind of sequence than torch's equivalent")
        parts = [_alike(call, real, emulated, *pair) for pair in zip(expected, actual, strict=True)]
        return parts if isinstance(expected, list) else tuple(parts)
    if isinstance(expected, np.dtype):
        if getattr(actual, "torch_dtype", None) is not torch_dtype(expected):
            raise _Differs("it returns another dtype than torch's equivalent")
        return Fact(expected)
    if isinstance(expected, np.ndarray | np.generic | torch.Tensor):
        return _alike_arrays(call, real, emulated, expected, actual)
    if type(expected) in (float, complex) and type(actual) is type(expected) and expected != 0:
        raise _Differs("it returns a Python number that depends on data")
    if type(expected) is not type(actual) or not (expected == actual or expected is actual):
        raise _Differs(
            f"it returns a {type(expected).__name__}, torch's equivalent a {type(actual).__name__}"
        )
    return Fact(expected)


def _alike_arrays(
    call: Call, real: _Side, emulated: _Side, expected: object, actual: object
) -> Result:
    index = next((at for at, array in enumerate(real.arrays) if array is expected), None)
    if (index is None) != all(array is not actual for array in emulated.arrays):
        raise _Differs("one of numpy and torch returns an argument, the other a copy")
    actual = getattr(actual, "tensor", actual)
    if not isinstance(actual, torch.Tensor):
        raise _Differs(f"torch's equivalent returns a {type(actual).__name__}")
    tensor = _as_tensor(expected)
    if tensor.numel() > _LARGEST:
        raise _Differs("its result is too large to probe the call")
    if (tensor.dtype, tensor.shape) != (actual.dtype, actual.shape):
        wanted, got = (f"{expected.dtype} {tuple(expected.shape)}" for expected in (tensor, actual))
        raise _Differs(f"numpy returns {wanted}, torch's equivalent {got}")
    is_array = not isinstance(expected, np.generic)
    if is_array and real.address(tensor) != emulated.address(actual):
        raise _Differs("numpy and torch differ in which results share memory")
    if is_array and list(_steps(tensor)) != list(_steps(actual)):
        raise _Differs("numpy and torch differ in the strides of the result")
    _same_values(call, tensor, actual)
    kind = torch.Tensor if isinstance(expected, torch.Tensor) else type(expected)
    spec = ArraySpec(tuple(tensor.shape), tuple(actual.stride()), tensor.dtype, kind)
    return Result(spec, index)


def _as_tensor(array: object) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray) and (
        type(array) is not np.ndarray or not array.flags.writeable
    ):
        raise _Differs("it returns an array of a subclass, or a read-only one")
    try:
        return torch.from_numpy(np.asarray(array) if isinstance(array, np.generic) else array)
    except (TypeError, ValueError) as error:
        raise _Differs(f"it returns an array that no tensor can hold ({error})") from None


def _steps(tensor: torch.Tensor) -> Iterator[int]:
    """Yield the significant strides: those of dimensions larger than 1."""
    if tensor.numel():
        yield from (
            step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
        )


def _without_nan(tensor: torch.Tensor) -> torch.Tensor:
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return torch.where(tensor.isnan(), 0, tensor) if inexact else tensor


def _same_values(call: Call, expected: torch.Tensor, actual: torch.Tensor) -> None:
    """Raise _Differs unless the values agree to rounding; for pointwise calls, also the signs of
    zeros.
    """
    if not (expected.is_floating_point() or expected.is_complex()):
        same = torch.equal(expected, actual)
    else:
        rtol = _RTOL.get(expected.dtype, 1e-12)
        finite = expected.abs().nan_to_num(0, 0, 0)
        largest = finite.max().item() if expected.numel() and not call.pointwise else 0.0
        atol = 0.0 if call.pointwise else rtol * max(1.0, largest)
        same = torch.allclose(expected, actual, rtol, atol, equal_nan=True)
        if same and call.pointwise and expected.is_floating_point():
            zeros = expected == 0
            same = torch.equal(expected.signbit() & zeros, actual.signbit() & zeros)
    if not same:
        raise _Differs("numpy and torch differ in its values")


# -- at several sizes ------------------------------------------------------------------------------


class SizedCall:
    """A call at several size tuples, this call's first; without varying sizes at one, empty."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._numbers = [n for n in _leaves((call.args, call.kwargs)) if isinstance(n, Size)]
        of_arrays = (n for spec in call.slots for n in spec.numbers if isinstance(n, Size))
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

    def results(self, first: object) -> list[object]:
        """Return the results at each size tuple; `first` is the result in this call.

        Must be called after the call is recorded, because its guards limit the size tuples."""
        if self._context is None:
            return [first]
        self.size_tuples += other_size_tuples(self._context, self._symbols)
        verdicts = [judge(self._at(known)) for known in self.size_tuples[1:]]
        for verdict in verdicts:
            self.check(verdict.outcome == "holds", str(verdict.reason))
        results = [first, *(verdict.found[0] for verdict in verdicts)]
        made = [one.spec for one in _leaves(first) if isinstance(one, Result)]
        dtypes = {spec.dtype for spec in (*self._call.slots, *made)}
        self.check(not self._numbers or dtypes <= _WIDE, "an int that the dtype may not hold")
        # The probe's tolerance is fixed, so its verdict holds only for sizes like those it tried.
        self.check(torch.float16 not in dtypes, "rounding errors of float16 grow with the sizes")
        return results

    def _at(self, known: SizeValues) -> Call:
        given = self._call.args, self._call.kwargs
        args, kwargs = map_leaves(given, lambda leaf: value_of(leaf, dict(known)))
        specs = tuple(at_sizes(spec, known) for spec in self._call.slots)
        return replace(self._call, args=args, kwargs=kwargs, slots=specs)


def at_sizes(spec: ArraySpec, known: SizeValues) -> ArraySpec:
    """Return the spec of an array for these values of the symbols."""
    shape, stride = (
        tuple(value_of(n, dict(known)) for n in part) for part in (spec.shape, spec.stride)
    )
    return replace(spec, shape=shape, stride=stride, offset=value_of(spec.offset, dict(known)))


def _leaves(tree: object) -> list[object]:
    found: list[object] = []
    map_leaves(tree, found.append)
    return found
