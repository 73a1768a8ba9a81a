"""Finds calls that eager's kernels refuse although meta functions accept them.

Input: a call on meta tensors and the device that they stand for. Output: nothing, or `EagerRaises`
with the kernel's own error. Meta functions accept what kernels refuse (subtraction of bools,
`int_tensor *= 0.5`, 1e30 as a factor of float16), and a functional graph would compute a result.

An elementwise operation is run on one element. Any other is run on small tensors of the call's own
shapes, and only for dtypes or numbers that kernels are known to refuse. Large tensors are cut down;
shapes that no longer fit are refused for that reason, so then only a missing kernel
(NotImplementedError) counts. Where running a kernel gives no answer, tables of dtypes do, by name.

Each combination is tried once in a process, at the sizes of this call: elementwise operations and
products on the call's device, others on the CPU, as is all where the device is absent. CPU errors
other than a missing kernel hold for other devices too. A call whose result is unused is always
tried: no kernel will run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from ...devices import row_of
from ...lazy_dataclass import dataclass
from ...operators.operation import is_elementwise, kind_of, operation, overloads_named
from ...symbols.context import Specialize
from ...symbols.probe import Answers, Verdict
from ...symbols.symbolic_numbers import symbols_of
from ...torch_types import AnyFunction, Args
from ..attribution import Silence, call_from
from ..nested import frozen
from ..node_meta import tensors_in
from ..propagate import EagerRaises
from ..symbolic.sym_node import sizes_in, with_hints
from ..target_names import target_name
from .kernel_probing import call_on_fresh, running_alone, small_stand_in, takes_workspace
from .recurrent import takes_packed_sequence

__all__ = ["check_dtypes", "kernel_accepts", "kernel_refusal"]

_MOST = 1 << 14  # elements that the stand-ins of a call may have
_MOST_UNCUT = 1 << 25  # the same if shapes must not be cut, which is rare
_CUT = 8  # the extents that larger tensors are cut to; usual windows and kernels still fit in
_UNCUT = 1 << 62
# Modules of Python functions that are probed like operators: they call operators unknown here.
_IN_PYTHON = ("torch.functional", "torch.nn.functional", "torch._jit_internal")
_LABELS = frozenset({torch.int64, torch.uint8})
_NUMBERS = (bool, int, float, complex)
_PLAIN = (*_NUMBERS, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
_ANSWERS = Answers("eager's kernel accepts the arguments")
_UNKNOWN = Verdict.unknown("it cannot be run on stand-ins")


def check_dtypes(
    target: AnyFunction | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> None:
    """Raise EagerRaises if the kernel refuses the dtypes or the numbers of the call, or may."""
    of_data = [
        symbol
        for size in sizes_in((args, kwargs))
        for symbol in symbols_of(size.expr)
        if size.context.of_data(symbol)
    ]
    args, kwargs = with_hints(args), with_hints(kwargs)
    tensors, elementwise = list(tensors_in((args, kwargs))), is_elementwise(name)
    several = len({t.dtype for t in tensors if t.is_floating_point()}) > 1
    verdict = _UNKNOWN
    if several and not elementwise:
        _refuse_by_dtype(name, tensors)
    if elementwise or _is_suspect(target, name, args, kwargs):
        # Mixed dtypes are tried uncut: sizes that other arguments name cannot be cut.
        most = _MOST_UNCUT if several else _MOST
        large = not elementwise and sum(t.numel() for t in tensors) > most
        extent = _CUT if large else _UNCUT
        verdict = _Trial(target, name, args, kwargs, elementwise, extent).on(device)
    if verdict.outcome == "fails":
        if of_data:  # the error may be due to the example sizes
            raise Specialize(of_data, name)
        assert isinstance(verdict.reason, Exception)
        raise EagerRaises(verdict.reason)
    if tensors and verdict.outcome == "unknown":
        _refuse_by_dtype(name, tensors)


def _refuse_by_dtype(name: str, tensors: list[torch.Tensor]) -> None:
    refused = _dtype_refusal(name, tensors)
    if refused is not None:
        raise EagerRaises(RuntimeError(refused))


def kernel_refusal(
    target: AnyFunction | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Exception | None:
    """Return the error of a call that `check_dtypes` does not try, from its kernel; None if it
    accepts the call's shapes and dtypes, or cannot be tried.
    """
    in_torch = getattr(target, "__module__", None) in _IN_PYTHON
    if is_elementwise(name) or not (in_torch or _number_places(name)[0]):
        return None
    args, kwargs = with_hints(args), with_hints(kwargs)
    if sum(t.numel() for t in tensors_in((args, kwargs))) > _MOST_UNCUT:
        return None
    trial = _Trial(target, name, args, kwargs, False, _UNCUT)
    found = trial.on_best_device(device)
    if found.outcome == "fails" and not isinstance(found.reason, NotImplementedError):
        found = trial.run("cpu", 1)  # with ones: it may refuse zeros
    return found.reason if isinstance(found.reason, Exception) else None


def kernel_accepts(
    target: AnyFunction | str, args: Args, kwargs: dict[str, object], grad: bool
) -> bool:
    """Return whether CPU kernels certainly accept the call and its backward, on small tensors."""
    large = sum(t.numel() for t in tensors_in((args, kwargs))) > _MOST
    extent = _CUT if large else _UNCUT
    trial = _Trial(target, target_name(target), args, kwargs, False, extent, grad)
    return trial.run("cpu").outcome == "holds"


class _Unaskable(Exception):
    """Raised for an argument that no stand-in can replace."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A call to run on stand-ins: of a single element or two, or of extents up to `extent`."""

    target: Callable[..., Any] | str
    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    is_elementwise: bool
    extent: int
    grad: bool | None = None  # None: only forward, without a grad mode

    def on(self, device: torch.device) -> Verdict:
        """Return whether the kernel of that device accepts the call, as far as that is certain.

        With cut shapes only a missing kernel is. Products of integers hardly exist on a GPU: there
        a graph break is the better guess.
        """
        found = self.on_best_device(device)
        no_kernel = isinstance(found.reason, NotImplementedError)
        product = device.type != "cpu" and operation(self.name).is_product
        if self.extent == _CUT and not (no_kernel or product):
            return _UNKNOWN
        return found if found.outcome == "fails" or device.type == "cpu" else _UNKNOWN

    def on_best_device(self, device: torch.device) -> Verdict:
        """Return the answer of that device's kernel, if it can be run, else of the CPU's.

        A GPU is tried for other calls than elementwise ones and products only if the CPU has no
        kernel: a failed device assertion would cost its context. While a CUDA graph is captured,
        nothing else may run on it.
        """
        here = row_of(device).runs_cuda and torch.cuda.is_available()
        here = here and not torch.cuda.is_current_stream_capturing()
        # cuBLAS and cuDNN have no integer products, the CPU has. No value of an input makes their
        # kernels fail a device assertion.
        if here and (self.is_elementwise or operation(self.name).is_product):
            return self.run("cuda")
        found = self.run("cpu")
        if device.type == "cpu" or not isinstance(found.reason, NotImplementedError):
            return found
        return self.run("cuda") if here else Verdict.holds()

    def run(self, device: str, integer: int = 0) -> Verdict:
        """Run the kernel of that device; integers may be indices, of which only 0 is valid."""
        if takes_workspace(self.target):
            return _UNKNOWN
        modes = device, integer, self.grad, torch.get_default_dtype()
        try:
            given = frozen((self._given, self.kwargs), partial(self._described, seen={}))
        except _Unaskable:
            return _UNKNOWN
        ask = partial(self._asked, device, integer)
        if _is_of_torch(self.target):
            return _ANSWERS.of(self.name, (self.target, self.name, modes, given), ask)
        return ask()

    @property
    def _given(self) -> Sequence[object]:
        """Return the arguments; the size of a factory's result is cut down, which always fits."""
        at = operation(self.name).size_at
        if at is None or at >= len(self.args):
            return self.args
        size = self.args[at]
        cut = _few(size) if isinstance(size, tuple | list) else ()
        return *self.args[:at], cut, *self.args[at + 1 :]

    def _shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        shape = tensor.shape
        return _few(shape) if self.is_elementwise else tuple(min(n, self.extent) for n in shape)

    def _described(self, value: object, seen: dict[int, int]) -> Hashable:
        if isinstance(value, torch.Tensor):
            if id(value) in seen:
                return seen[id(value)]
            seen[id(value)] = len(seen)
            needs_grad = self.grad is not None and value.requires_grad
            return value.dtype, self._shape(value), needs_grad, self.is_elementwise
        if not isinstance(value, _PLAIN):
            raise _Unaskable
        return None

    def _asked(self, device: str, integer: int) -> Verdict:
        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            shape, dtype = self._shape(tensor), tensor.dtype
            if self.is_elementwise:
                return torch.ones(shape, dtype=dtype, device=device)
            return small_stand_in(shape, dtype, device, integer)

        def call(args: Args, kwargs: dict[str, object]) -> Any:
            if isinstance(self.target, str):
                return call_from(Silence(), getattr(args[0], self.target), args[1:], kwargs)
            return call_from(Silence(), self.target, args, kwargs)

        try:
            is_differentiated = self.grad is not None
            with running_alone(device, bool(self.grad)):
                call_on_fresh(call, self._given, self.kwargs, fresh, is_differentiated)()
        except Exception as error:  # any error of the kernel is what the program would see
            return Verdict.fails(error.with_traceback(None))
        return Verdict.holds()


def _is_of_torch(target: AnyFunction | str) -> bool:
    """Return whether the process has one such function, which may be cached."""
    module = getattr(target, "__module__", None) or type(target).__module__
    return isinstance(target, str) or module.partition(".")[0] in ("torch", "_operator", "builtins")


def _few(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a stand-in's shape for elementwise operations: kernels treat 0-dim and single elements
    separately.
    """
    return (2 if math.prod(shape) != 1 else 1,) if shape else ()


def _is_suspect(
    target: AnyFunction | str, name: str, args: Args, kwargs: dict[str, object]
) -> bool:
    """Return whether to probe: integer, bool or complex tensors, several dtypes, or a number that a
    dtype cannot hold; and stand-ins can answer.
    """
    plain = name.removesuffix("_")
    known = _number_places(plain)[0] or getattr(target, "__module__", None) in _IN_PYTHON
    if not known or not operation(name).can_be_probed:
        return False
    tensors = list(tensors_in((args, kwargs)))
    if not tensors:
        return _fills_beyond(plain, args, kwargs)
    if takes_packed_sequence(target, args):
        return False
    if not all(t.is_floating_point() for t in tensors) or len({t.dtype for t in tensors}) > 1:
        return True
    numbers = _numbers(plain, args, kwargs)
    return any(not _holds(t.dtype, number) for number in numbers for t in tensors)


def _fills_beyond(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a factory takes a number that its dtype cannot hold.

    Infinite ranges are refused by the shape rule, so the stand-in is at most as large as the
    result.
    """
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    numbers = list(_numbers(name, args, kwargs))
    return not dtype.is_complex and any(not _holds(dtype, number) for number in numbers)


@lru_cache(maxsize=1024)
def _number_places(name: str) -> tuple[bool, frozenset[int], frozenset[str]]:
    """Return (is an ATen operation, positions, names) of its number arguments. Dimensions and flags
    do not count.
    """
    overloads = overloads_named(name)
    places = {
        (n, argument.name)
        for overload in overloads
        for n, argument in enumerate(overload._schema.arguments)
        if "number" in str(argument.type)
    }
    return bool(overloads), frozenset(n for n, _ in places), frozenset(name for _, name in places)


def _numbers(name: str, args: Args, kwargs: dict[str, object]) -> Iterator[object]:
    """Yield the number arguments, and each float: composites may pass it on as a Scalar."""
    _, positions, names = _number_places(name)
    given = [arg for n, arg in enumerate(args) if n in positions or type(arg) is float]
    given += [value for key, value in kwargs.items() if key in names or type(value) is float]
    for value in given:
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)))


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Return whether the number converts without overflow and is of no type treated specially."""
    if type(number) not in _NUMBERS:
        return True
    if type(number) in (bool, complex):
        return False
    if not dtype.is_floating_point:
        return dtype is torch.bool or _holds_integer(torch.iinfo(dtype), number)
    return not abs(number) > torch.finfo(dtype).max


def _holds_integer(limits: torch.iinfo, number: float) -> bool:
    return limits.min <= number <= limits.max


def _dtype_refusal(name: str, tensors: Sequence[torch.Tensor]) -> str | None:
    """Return why eager would raise for the dtypes of the call's tensors, by name; or None."""
    kinds, row = [t.dtype for t in tensors], operation(name)
    first = kinds[0]
    if kind_of(first) not in row.takes:
        return f"it is not implemented for {first}"
    if row.operands == "one kind" and _differ(name, kinds):
        return "operands of different dtypes, or bools"
    if name in ("index_put", "index_put_") and kinds[-1] != first:
        return "the values have another dtype"
    if row.operands == "one dtype" and len({*kinds[:1], *kinds[2 if row.index else 1 :]}) > 1:
        return "operands of different dtypes"
    if row.operands == "floats" and not all(kind.is_floating_point for kind in kinds):
        return "scales that are not floating-point numbers"
    if row.index and len(kinds) > 1 and kinds[1] not in row.index:
        return f"an index or a mask of {kinds[1]}"
    if row.has_labels and len(kinds) > 1 and not kinds[1].is_floating_point:
        return None if kinds[1] in _LABELS else f"a target of {kinds[1]}"
    return None


def _differ(name: str, kinds: Sequence[torch.dtype]) -> bool:
    """Return whether operands of a product have several dtypes; attention accepts a bool mask."""
    if name == "scaled_dot_product_attention":
        kinds = [kind for kind in kinds if kind is not torch.bool]
    return len({*kinds}) > 1 or torch.bool in kinds
