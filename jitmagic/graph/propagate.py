"""Runs one torch call on meta tensors: gives shapes, dtypes, views, aliasing and requires_grad.

Input: a call whose tensors are meta tensors, and the grad mode of the traced program. Output: its
result, as meta tensors and plain values. Nothing outside changes: the random number generators, the
grad mode and the inference mode of the thread are as before.

  DataDependent(what)   the result depends on tensor data, which meta tensors do not have
  EagerRaises(error)    the call raised: the traced program would see that error
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..compat.functions import pad_packed_sequence
from ..compat.modes import TorchFunctionOfSubclassesOff, without_dispatch_modes
from ..compat.operators import DispatchKey
from ..devices import row_of
from ..errors import UserLine
from ..late import late_names
from ..operators.operation import operation, overloads_named, takes_device
from ..spec import TensorSpec
from ..symbols.context import Specialize
from ..symbols.symbolic_numbers import symbols_of
from ..torch_types import Args, Kwargs, OpOverload
from .attribution import Attribution, LineOfSizes, Silence, call_from
from .dispatch_mode import DispatchMode
from .distributed.objects import makes_async, mark_async, runs_at_once
from .memory import storage_under
from .operators.device_layouts import differs_by_device
from .operators.foreign import without_data
from .operators.meta_functions import infer_without_rule
from .operators.recurrent import by_one_step
from .operators.registered import infer_registered
from .operators.shapes import infer_accepted, tensors_of
from .rules import Rules
from .symbolic.data_sizes import NewSize, infer_data_dependent, infer_padded_sequence
from .symbolic.sized_calls import call_with_sizes
from .symbolic.sym_node import as_dimension, as_torch, sizes_in
from .symbolic.sym_numbers import refusal
from .symbolic.symbolic_index import INDEXING, select_by_sizes
from .target_names import Target, call_name, target_name
from .targets.control_flow import has_graphs
from .wrappers.wrapping import NotFollowed, is_library_call

if TYPE_CHECKING:
    from .distributed.sharding import placements_of_symbols
    from .operators.symbolic_shapes import CallSignature, shapes_by_sampling, with_sizes_of_call
    from .operators.without_meta import only_writes
else:
    late_names(
        globals(),
        {
            "graph.distributed.sharding": "placements_of_symbols",
            "graph.operators.symbolic_shapes": (
                "CallSignature, shapes_by_sampling, with_sizes_of_call"
            ),
            "graph.operators.without_meta": "only_writes",
        },
    )

__all__ = [
    "DataDependent",
    "EagerRaises",
    "InnerCall",
    "allowing_data_sizes",
    "call_on_meta",
    "input_meta",
    "is_view_in_place",
    "noting_inner_calls",
    "run_on_meta",
    "running_wrappers",
    "strides_are_certain",
]

aten = torch.ops.aten

# torch's errors for operations that need the data of a meta tensor, or have no meta implementation.
_NO_DATA = (
    "cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "meta tensor without output_size",
    "data-dependent",
    "data-depenent",
    "no fake impl or Meta kernel",
    "with Meta tensors",
    "on the expected device meta",
    "tensor with unallocated storage",
    "output Tensor with data-dependent shape",
)


class InnerCall(NamedTuple):
    """A call that `__torch_dispatch__` of a wrapper subclass makes on inner tensors."""

    op: OpOverload
    args: tuple[object, ...]
    kwargs: Kwargs


class DataDependent(Exception):
    """Raised if the result depends on tensor data."""


class EagerRaises(Exception):
    """Raised if the call raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def run_on_meta(
    target: Target,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    grad: bool,
    written: set[int] | None = None,
    line: UserLine | None = None,
    guesses: bool = True,
) -> object:
    """Call `target` (a function, or a method's name) on meta tensors in that grad mode.

    `written` receives the storages written to. Warnings name `line`; without it none are shown.
    `guesses` allows sampling the shapes, which is wrong for calls that read the autograd history of
    their arguments: sampled tensors have none.
    """
    with torch.inference_mode(False):
        storages: set[int] = set() if written is None else written
        return call_on_meta(target, args, kwargs, grad, storages, line=line, guesses=guesses)


def call_on_meta(
    target: Target,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    grad: bool,
    written: set[int],
    above: DispatchMode | None = None,
    line: UserLine | None = None,
    guesses: bool = True,
) -> object:
    """Do `run_on_meta` outside inference mode. `above` sees the ATen calls first; calls that torch
    cannot run at symbolic sizes then raise.
    """
    _SHAPES.written = written
    _SHAPES.names_devices = has_graphs(target) or is_library_call(target)
    repeats = line is None or (above is None and _varies((args, kwargs)))
    attribution = Silence() if line is None or repeats else line
    with torch.set_grad_enabled(grad), _SHAPES, nullcontext() if above is None else above:
        result = _followed(target, args, kwargs, guesses and above is None, attribution)
        if line is not None and isinstance(attribution, Silence) and attribution.has_warned:
            _warn(target, (args, kwargs), line)
        return result


def _followed(
    target: Target,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    may_guess: bool,
    attribution: Attribution,
) -> object:
    try:
        result = _run(target, args, kwargs, attribution)
        if isinstance(result, torch.SymFloat):  # the trace has no such value
            raise refusal(as_dimension(result), "its value as a float")
        return result
    except (DataDependent, EagerRaises):
        raise
    except NotImplementedError as error:
        raise DataDependent(_first_line(error)) from None
    except Exception as error:  # whatever torch raises, the program would see
        silent = attribution if isinstance(attribution, Silence) else Silence()
        run_sampled = partial(_noted, target, silent)
        is_native = isinstance(target, str | BuiltinFunctionType)  # it has no state
        signature = CallSignature(target, silent) if is_native else None
        if may_guess:
            sampled = shapes_by_sampling(run_sampled, (args, kwargs), signature)
            if sampled is not None:
                return sampled
        if isinstance(error, Specialize):
            raise
        if any(sign in str(error) for sign in _NO_DATA):  # not caused by symbolic sizes
            raise DataDependent(_first_line(error)) from None
        _retry_with_ints(target, (args, kwargs))
        raise EagerRaises(error) from None


def _varies(value: object) -> bool:
    """Return whether a size among the arguments is symbolic; runs for each traced call."""
    if isinstance(value, torch.Tensor):
        return any(type(size) is not int for size in value.shape)
    if isinstance(value, tuple | list):
        return any(map(_varies, value))
    return isinstance(value, torch.SymInt) or (
        isinstance(value, dict) and _varies([*value.values()])
    )


def _warn(target: Target, arguments: tuple[Any, object], line: UserLine) -> None:
    """Repeat a call on fresh tensors of this call's sizes, so that its warning names them."""
    try:
        _noted(target, LineOfSizes(line), with_sizes_of_call(arguments))
    except Warning as error:  # the user's filter turns warnings into errors
        raise EagerRaises(error) from None
    except Exception:  # the call itself succeeded: an error on stand-in tensors proves nothing
        return


@contextmanager
def noting_inner_calls() -> Iterator[list[InnerCall]]:
    """Run calls of wrapper subclasses in the block; yields the ATen calls on inner tensors."""
    before, _SHAPES.inner = _SHAPES.inner, []
    try:
        with running_wrappers():
            yield _SHAPES.inner
    finally:
        _SHAPES.inner = before


@contextmanager
def running_wrappers() -> Iterator[None]:
    """Run `__torch_dispatch__` of wrapper subclasses in the block, and no `__torch_function__`:
    the trace has run those.
    """
    with TorchFunctionOfSubclassesOff(), placements_of_symbols(_run_apart):
        yield


def _run_apart(op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> object:
    """Run an operator on meta tensors inside of another call, which does not note it."""
    before = _SHAPES.written, _SHAPES.names_devices, _SHAPES.inner
    _SHAPES.written, _SHAPES.names_devices, _SHAPES.inner = set(), True, None
    try:
        with without_dispatch_modes(), _SHAPES:
            return op(*args, **kwargs)
    finally:
        _SHAPES.written, _SHAPES.names_devices, _SHAPES.inner = before


@contextmanager
def allowing_data_sizes(fresh: NewSize | None) -> Iterator[list[object]]:
    """Allow data-dependent sizes, created by `fresh`, in the block; yields the list of them."""
    made: list[object] = []

    def noted(least: int, most: int) -> Any:
        size = None if fresh is None else fresh(least, most)
        made.append(size)
        return size

    before, _SHAPES.fresh = _SHAPES.fresh, None if fresh is None else noted
    try:
        yield made
    finally:
        _SHAPES.fresh = before


def _run(
    target: Target,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    attribution: Attribution,
) -> Any:
    if isinstance(target, str):
        if isinstance(args[0], torch.Tensor):
            return call_with_sizes(attribution, getattr(type(args[0]), target), args, kwargs)
        return call_from(attribution, getattr(args[0], target), args[1:], kwargs)
    if target in INDEXING and (found := select_by_sizes(args)) is not None:
        return found[0]
    if target is pad_packed_sequence and _SHAPES.fresh is not None:
        made = infer_padded_sequence(_SHAPES.fresh, *args, **kwargs)
        if made is not None:
            return made
    function = by_one_step(target)
    made = call_with_sizes(attribution, function, args, kwargs)
    return _with_kernel_strides(target, args, made)


def _noted(
    target: Target, attribution: Attribution, arguments: tuple[Any, Any]
) -> tuple[object, set[int]]:
    """Return the result of a call and the storages it writes to."""
    before, _SHAPES.written = _SHAPES.written, set()
    try:
        return _run(target, *arguments, attribution), _SHAPES.written
    finally:
        _SHAPES.written = before


def _retry_with_ints(target: Target, args: object) -> None:
    """Restart the trace with ints: a meta function may refuse symbols that eager accepts."""
    symbols = dict.fromkeys(symbol for size in sizes_in(args) for symbol in symbols_of(size.expr))
    if symbols:
        raise Specialize(symbols, f"{call_name(target)} on symbolic sizes") from None


class _Shapes(DispatchMode):
    """Asks `_RULES` for the result of each ATen call, and notes the storages written to."""

    below_wrappers = True

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.fresh: NewSize | None = None
        self.names_devices = False  # True in a graph or library function that names real devices
        self.inner: list[InnerCall] | None = None  # calls of wrappers, while those are noted

    def run_operator(self, op: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> object:
        if self.inner is not None:
            self.inner.append(InnerCall(op, args, kwargs))
            if runs_at_once(op):
                raise NotFollowed("it communicates between processes while it is traced")
        if op._schema.is_mutable:
            self.written.update(_storages_written(op, args, kwargs))
            if only_writes(op):
                return None
        if self.names_devices and takes_device(op) and ("device" in kwargs or not tensors_of(args)):
            kwargs = {**kwargs, "device": torch.device("meta")}
        made = _RULES.ask(op, args, kwargs)
        if makes_async(op) and isinstance(made, torch.Tensor):
            mark_async(made)
        return made


def _sized_by_data(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    if (fresh := _SHAPES.fresh) is None:
        return None

    def call(other: OpOverload, given: tuple[object, ...]) -> object:
        return _SHAPES.run_operator(other, given, {})

    return infer_data_dependent(op, args, kwargs, fresh, call)


def _lifted(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    is_lift = _SHAPES.names_devices and op is aten.lift_fresh.default
    return without_data(args[0]) if is_lift else None


def _by_parts(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Run the operators of a composite one with symbolic sizes, whose C++ reads them as ints. It
    gets here only from the kernel of another operator, below autograd.
    """
    if not op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        return None
    if next(sizes_in((args, kwargs)), None) is None:
        return None
    with _SHAPES:
        return op.decompose(*args, **kwargs)


_RULES: Rules[object] = Rules(
    _sized_by_data,  # before torch's meta functions, which refuse such calls
    _lifted,
    infer_registered,
    infer_accepted,  # before torch's: its meta functions in Python take 150 µs and import Dynamo
    _by_parts,
    partial(infer_without_rule, by_rule=infer_accepted),
)


def _storages_written(func: OpOverload, args: tuple[object, ...], kwargs: Kwargs) -> Iterator[int]:
    """Yield the storages of the arguments that the schema marks as written."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in tensors_of(value):
                yield storage_under(tensor)


_SHAPES = _Shapes()


def is_view_in_place(target: Target) -> bool:
    """Return whether the call only changes the view that its tensor is."""
    return any(torch.Tag.inplace_view in op.tags for op in overloads_named(target_name(target)))


def strides_are_certain(target: Target, device: torch.device | None = None) -> bool:
    """Return whether the meta run gives the strides of the device's real kernels."""
    name = target_name(target)
    if device is not None and row_of(device).kernels != "cpu" and differs_by_device(name):
        return False
    return not operation(name).kernel_strides


_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose", "convolution", "_convolution")


def _with_kernel_strides(target: Target, args: tuple[object, ...], result: object) -> object:
    """Make the result channels_last where input or weight is, as kernels do."""
    if not target_name(target).startswith(_CONVOLUTIONS) or not isinstance(result, torch.Tensor):
        return result
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(result.dim())
    if layout is None or result.is_contiguous(memory_format=layout):
        return result
    for operand in args[:2]:
        if (
            isinstance(operand, torch.Tensor)
            and operand.dim() == result.dim()
            and operand.is_contiguous(memory_format=layout)
            and not operand.is_contiguous()
        ):
            return result.contiguous(memory_format=layout)
    return result


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def input_meta(spec: TensorSpec) -> torch.Tensor:
    """Return the meta tensor of a graph input, a non-leaf if the input is one."""
    with torch.inference_mode(False), torch.enable_grad():
        shape, stride = map(as_torch, spec.shape), map(as_torch, spec.stride)
        meta = torch.empty_strided(tuple(shape), tuple(stride), dtype=spec.dtype, device="meta")
        if not spec.requires_grad:
            return meta
        if spec.is_leaf:
            return meta.requires_grad_()
        return _as_non_leaf(meta)


def _as_non_leaf(meta: torch.Tensor) -> torch.Tensor:
    """Give it a grad_fn without making it a view: it may be written like an intermediate."""
    extents = sorted(zip(meta.stride(), meta.shape, strict=True))
    reach, overlaps = 0, False
    for stride, size in extents:
        if size > 1:
            overlaps = overlaps or stride <= reach
            reach += stride * (size - 1)
    if overlaps:  # torch refuses in-place writes to it, so that it may be a view
        flat = torch.empty(reach + 1, dtype=meta.dtype, device="meta", requires_grad=True) * 1
        return flat.as_strided(meta.shape, meta.stride())
    with _Shapes():
        return meta.add_(torch.empty((), dtype=meta.dtype, device="meta", requires_grad=True))
