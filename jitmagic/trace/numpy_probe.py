"""Whether a call gives with the emulation's functions what it gives with numpy's: tried, not known.

Comes in: a Call: a function of numpy, its counterpart on tensors, and what it is called with,
arrays as Slots whose ArraySpecs have shape, strides and dtype. Goes out: a Verdict: what kind of
objects come back and whether an argument is written to, or why the call is not followed. Both
functions run on arrays with the values at which libraries differ (signed zeros, infinities, nan,
the largest integers, halves, negative numbers); results have to agree in class, dtype, shape,
strides, memory shared with the arguments, and in values to rounding. Nothing of the program is
looked at or changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .numpy_emulation import emulated_dtype, emulation, np, torch_dtype

__all__ = [
    "ArraySpec",
    "Call",
    "Fact",
    "Result",
    "Slot",
    "Verdict",
    "emulated_constant",
    "filled",
    "judge",
]

_LARGEST = 1 << 22  # elements of an argument or a result: a probe costs about a call of numpy
_ROUNDS = 4
_SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 1e-3, 7.0, -8.0, 100.3,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
_WHOLE = (0, 1, -1, 2, -2, 3, -3, 7, -7, 8, 13, 100, -100)
_RTOL = {torch.float16: 2e-3, torch.float32: 1e-5, torch.complex64: 1e-5}
_MOST = 512  # verdicts kept


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for the index-th array among the arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """`kind`: np.ndarray, a scalar class of numpy, or torch.Tensor. Arrays of one `storage` share
    memory, in which each begins at its `offset`; None: nothing else lies in its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    dtype: torch.dtype
    kind: type
    storage: int | None = None
    offset: int = 0  # in elements

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Call:
    """`pointwise`: no element of a result depends on more than one element of each argument.
    `name` tells functions apart that are made for one call."""

    real: Callable[..., Any]
    emulated: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slots: tuple[ArraySpec, ...]
    pointwise: bool
    name: object = None

    @property
    def key(self) -> object:
        state = torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
        function = self.name or id(self.real)
        slots = [Slot(index) for index in range(len(self.slots))]
        given = [filled(one, slots, _told) for one in (self.args, *self.kwargs.values())]
        return function, repr((given, [*self.kwargs])), self.slots, state


@dataclass(frozen=True, slots=True)
class Result:
    """An array that comes back; `same`: it is this argument itself."""

    spec: ArraySpec
    same: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A Python constant that comes back."""

    value: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """`result`: a Result, a Fact, or a tuple or list of them; `refusal`: why not, else empty."""

    refusal: str = ""
    result: Any = None
    writes: bool = False


class _Differs(Exception):
    """The two functions do not agree; says how."""


_known: dict[object, tuple[Any, Verdict]] = {}  # the function stays alive, as its id is in the key


def judge(call: Call) -> Verdict:
    """Try a call; the verdict on one like it is remembered."""
    key = call.key
    if key not in _known:
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = call.real, _tried(call)
    return _known[key][1]


def _tried(call: Call) -> Verdict:
    if any(spec.size > _LARGEST for spec in call.slots):
        return Verdict("an array too large to try the call on")
    try:
        outcomes = [_round(call, number) for number in range(_ROUNDS)]
        if any(outcome != outcomes[0] for outcome in outcomes):
            raise _Differs("what comes back depends on the data")
        if call.pointwise and call.slots:
            _all_pairs(call)
    except _Differs as differs:
        return Verdict(str(differs))
    result, writes = outcomes[0]
    return Verdict(result=result, writes=writes)


# -- the two sides ---------------------------------------------------------------------------------


@dataclass
class _Side:
    """One of the two libraries: the arrays it was given, their memory, and what came of it."""

    arrays: list[Any]
    memory: list[torch.Tensor]
    result: Any = None
    error: Exception | None = None

    def address(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """In which argument's memory a result lies, and where there; None: in its own."""
        for index, memory in enumerate(self.memory):
            start = memory.untyped_storage().data_ptr()
            if start <= tensor.data_ptr() < start + memory.untyped_storage().nbytes():
                return index, tensor.data_ptr() - start
        return None


def _round(call: Call, number: int) -> tuple[Any, bool]:
    data = [_data(spec, place, number) for place, spec in enumerate(call.slots)]
    return _compared(call, call.slots, data)


def _compared(call: Call, slots: Sequence[ArraySpec], data: list[torch.Tensor]) -> tuple[Any, bool]:
    """Both sides on the same data: what comes back, and whether an argument was written to."""
    real = _run(call, call.real, slots, data, _numpys, lambda one: one)
    made = _run(call, call.emulated, slots, data, _emulations, emulated_constant)
    if real.error is not None:
        raise _Differs(f"numpy raises {type(real.error).__name__} for some values")
    if made.error is not None:
        raise _Differs(f"torch has no equal of it ({type(made.error).__name__}: {made.error})")
    result = _alike(call, real, made, real.result, made.result)
    for one, other in zip(real.memory, made.memory, strict=True):
        _same_values(call, one, other)
    writes = any(
        not torch.equal(_without_nan(memory), _without_nan(before))
        for memory, before in zip(real.memory, _laid_out(slots, data), strict=True)
    )
    return result, writes


def _run(
    call: Call,
    function: Callable[..., Any],
    slots: Sequence[ArraySpec],
    data: list[torch.Tensor],
    wrap: Callable[[ArraySpec, torch.Tensor], Any],
    constant: Callable[[Any], Any],
) -> _Side:
    memory = _laid_out(slots, data)
    arrays = [wrap(spec, one) for spec, one in zip(slots, memory, strict=True)]
    side = _Side(arrays, memory)
    args = filled(call.args, arrays, constant)
    kwargs = {name: filled(value, arrays, constant) for name, value in call.kwargs.items()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        try:
            side.result = function(*args, **kwargs)
        except Exception as error:  # whatever a library raises for these values
            side.error = error
    return side


def filled(tree: Any, arrays: Sequence[Any], constant: Callable[[Any], Any]) -> Any:
    """Arguments with the arrays in place of the Slots."""
    if isinstance(tree, Slot):
        return arrays[tree.index]
    if type(tree) in (tuple, list):
        return type(tree)(filled(one, arrays, constant) for one in tree)
    if isinstance(tree, slice):
        return slice(*(filled(one, arrays, constant) for one in (tree.start, tree.stop, tree.step)))
    return constant(tree)


def emulated_constant(one: Any) -> Any:
    """A constant argument as the emulation takes it."""
    is_dtype = isinstance(one, np.dtype) or (isinstance(one, type) and issubclass(one, np.generic))
    if is_dtype:
        return emulated_dtype(one)
    return one.item() if isinstance(one, np.generic) else one


def _told(one: Any) -> Any:
    """A constant argument in a key: numpy 1 writes its scalars as Python does its numbers."""
    return (type(one), one) if isinstance(one, np.generic) else one


def _numpys(spec: ArraySpec, memory: torch.Tensor) -> Any:
    if spec.kind is torch.Tensor:
        return memory
    return memory.numpy() if spec.kind is np.ndarray else memory.numpy()[()]


def _emulations(spec: ArraySpec, memory: torch.Tensor) -> Any:
    return memory if spec.kind is torch.Tensor else emulation().ndarray(memory)


# -- values ----------------------------------------------------------------------------------------


def _laid_out(slots: Sequence[ArraySpec], data: list[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments' memory, shared where theirs is."""
    ends: dict[object, int] = {}
    for index, spec in enumerate(slots):
        group = index if spec.storage is None else ("shared", spec.storage)
        reach = sum((n - 1) * step for n, step in zip(spec.shape, spec.stride, strict=True))
        end = spec.offset + reach + 1 if spec.size else 0
        ends[group] = max(end, ends.get(group, 0))
    storages: dict[object, torch.Tensor] = {}
    made = []
    for index, (spec, values) in enumerate(zip(slots, data, strict=True)):
        group = index if spec.storage is None else ("shared", spec.storage)
        if group not in storages:
            storages[group] = torch.zeros(ends[group], dtype=spec.dtype)
        if storages[group].dtype is not spec.dtype:
            raise _Differs("its arguments share memory and have different dtypes")
        part = storages[group].as_strided(spec.shape, spec.stride, spec.offset)
        made.append(part.copy_(values.reshape(spec.shape)))
    return made


def _data(spec: ArraySpec, place: int, number: int) -> torch.Tensor:
    """Values of one argument: different ones, some alike, one nan, both infinities."""
    made = np.random.RandomState(31 * place + number).randn(spec.size) * 3
    if number == 1:
        made = np.round(np.abs(made) * 300)  # squares overflow in float16
    elif number == 2 and spec.size:
        made[spec.size // 2] = np.nan
    elif number == 3:
        made[: spec.size // 3] = np.inf
        made[: spec.size // 5] = -np.inf
    if not (spec.dtype.is_floating_point or spec.dtype.is_complex):
        made = np.nan_to_num(made, posinf=5, neginf=-5)
        return torch.from_numpy(made).to(torch.int64).to(spec.dtype)
    return torch.from_numpy(made).to(spec.dtype)


def _pool(dtype: torch.dtype) -> torch.Tensor:
    """The values at which libraries differ."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor([*_SPECIAL, torch.finfo(dtype).max, torch.finfo(dtype).tiny]).to(dtype)
    if dtype.is_complex:
        parts = torch.tensor(_SPECIAL, dtype=torch.float64)
        return torch.complex(parts, parts.flip(0)).to(dtype)
    limits = torch.iinfo(dtype)
    inside = [one for one in _WHOLE if limits.min <= one <= limits.max]
    return torch.tensor([*inside, limits.min, limits.max], dtype=dtype)


def _all_pairs(call: Call) -> None:
    """Each such value of one argument with each of the others, whatever the call's own sizes are.

    Two arguments at a time; the others go along with the first.
    """
    pools = [_pool(spec.dtype) for spec in call.slots]
    count = max(map(len, pools))
    for other in range(max(1, len(pools) - 1)):
        data = [
            pool[torch.arange(count * count) % len(pool)].clone()
            if place != other + 1
            else pool[(torch.arange(count * count) // count) % len(pool)].clone()
            for place, pool in enumerate(pools)
        ]
        slots = [
            ArraySpec((count * count,), (1,), spec.dtype, _array_kind(spec)) for spec in call.slots
        ]
        _compared(call, slots, data)


def _array_kind(spec: ArraySpec) -> type:
    kind: type = torch.Tensor if spec.kind is torch.Tensor else np.ndarray
    return kind


# -- comparing -------------------------------------------------------------------------------------


def _alike(call: Call, real: _Side, made: _Side, one: Any, other: Any) -> Any:
    """What comes back, where both sides agree on it."""
    if isinstance(one, tuple | list):
        if type(one) is not type(other) or len(one) != len(other):
            raise _Differs("it gives another kind of tuple than torch's equal")
        parts = [_alike(call, real, made, *pair) for pair in zip(one, other, strict=True)]
        return parts if isinstance(one, list) else tuple(parts)
    if isinstance(one, np.dtype):
        if getattr(other, "torch_dtype", None) is not torch_dtype(one):
            raise _Differs("it gives another dtype than torch's equal")
        return Fact(one)
    if isinstance(one, np.ndarray | np.generic | torch.Tensor):
        return _alike_arrays(call, real, made, one, other)
    if type(one) in (float, complex) and type(other) is type(one) and one != 0:
        raise _Differs("it turns data into a Python number")
    if type(one) is not type(other) or not (one == other or one is other):
        raise _Differs(f"it gives a {type(one).__name__}, torch's equal a {type(other).__name__}")
    return Fact(one)


def _alike_arrays(call: Call, real: _Side, made: _Side, one: Any, other: Any) -> Result:
    index = next((at for at, array in enumerate(real.arrays) if array is one), None)
    if (index is None) != all(array is not other for array in made.arrays):
        raise _Differs("one of numpy and torch hands an argument back, the other a copy")
    other = getattr(other, "tensor", other)
    if not isinstance(other, torch.Tensor):
        raise _Differs(f"torch's equal gives a {type(other).__name__}")
    tensor = _as_tensor(one)
    if tensor.numel() > _LARGEST:
        raise _Differs("its result is too large to try the call")
    if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
        wanted, got = (f"{one.dtype} {tuple(one.shape)}" for one in (tensor, other))
        raise _Differs(f"numpy gives {wanted}, torch's equal {got}")
    is_array = not isinstance(one, np.generic)
    if is_array and real.address(tensor) != made.address(other):
        raise _Differs("numpy and torch differ in what shares memory")
    if is_array and list(_steps(tensor)) != list(_steps(other)):
        raise _Differs("numpy and torch differ in the order of its elements in memory")
    _same_values(call, tensor, other)
    kind = torch.Tensor if isinstance(one, torch.Tensor) else type(one)
    spec = ArraySpec(tuple(tensor.shape), tuple(other.stride()), tensor.dtype, kind)
    return Result(spec, index)


def _as_tensor(one: Any) -> torch.Tensor:
    if isinstance(one, torch.Tensor):
        return one
    if isinstance(one, np.ndarray) and (type(one) is not np.ndarray or not one.flags.writeable):
        raise _Differs("it gives an array of a class of its own, or one that is only to be read")
    try:
        return torch.from_numpy(np.asarray(one) if isinstance(one, np.generic) else one)
    except (TypeError, ValueError) as error:
        raise _Differs(f"it gives what no tensor can hold ({error})") from None


def _steps(tensor: torch.Tensor) -> Iterator[int]:
    """The strides that matter."""
    if tensor.numel():
        yield from (
            step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
        )


def _without_nan(tensor: torch.Tensor) -> torch.Tensor:
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return torch.where(tensor.isnan(), 0, tensor) if inexact else tensor


def _same_values(call: Call, one: torch.Tensor, other: torch.Tensor) -> None:
    """To rounding; where each element stands alone, signs of zeros as well."""
    if not (one.is_floating_point() or one.is_complex()):
        same = torch.equal(one, other)
    else:
        rtol = _RTOL.get(one.dtype, 1e-12)
        finite = one.abs().nan_to_num(0, 0, 0)
        largest = finite.max().item() if one.numel() and not call.pointwise else 0.0
        atol = 0.0 if call.pointwise else rtol * max(1.0, largest)
        same = torch.allclose(one, other, rtol, atol, equal_nan=True)
        if same and call.pointwise and one.is_floating_point():
            zeros = one == 0
            same = torch.equal(one.signbit() & zeros, other.signbit() & zeros)
    if not same:
        raise _Differs("numpy and torch differ in its values")
