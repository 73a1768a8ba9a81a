"""Runs kernels on stand-in inputs, to find the shapes and the layouts of their results.

Input: an operator and its arguments as meta tensors. Output: its results as meta tensors, or None.
The first call of torch's meta functions written in Python imports sympy (0.3 s) or torch._dynamo
(1.8 s); a CPU kernel answers on tensors of the same shapes in some microseconds. Only operators
with such a meta function are asked: their shapes do not depend on data. If the kernel fails, the
meta function is used. Insignificant strides depend on the kernel itself, which therefore runs
whenever there are any.

Many kernels ask at::suggest_memory_format (pads, max_unpool2d, pixel_shuffle), which torch's
decompositions omit. For images in channels_last, the kernel runs on tensors of this call's sizes,
or on a batch of two; only the memory format of its results is used, which does not depend on sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...compat.autograd import run_backward
from ...compat.modes import AutocastOff
from ...compat.operators import DispatchKey
from ...operators.operation import is_elementwise
from ...torch_types import AnyFunction, Args, Kwargs, OpOverload
from ..devices import kernel_device
from ..fresh_meta import META, fresh_meta
from ..nested import map_leaves, map_tensors
from ..node_meta import tensors_in
from ..symbolic.sym_node import sizes_in, with_hints
from .foreign import is_foreign
from .tensor_iterator import (
    CHANNELS_LAST,
    has_insignificant_strides,
    is_of_images,
    strides_along,
)

__all__ = [
    "CPU",
    "META",
    "call_on_fresh",
    "in_kernel_format",
    "kernel_result",
    "running_alone",
    "small_stand_in",
    "takes_workspace",
]

CPU = torch.device("cpu")

_MOST_OF_IMAGES = 1 << 22  # elements of arguments, and of results: that takes some milliseconds
_WORKSPACES = frozenset({"workspace", "reserve", "reserveSpace", "reservedSpace"})
_FEW = 2  # images that the kernel runs on instead of a large batch
_MOST = 1 << 13  # elements of all arguments: their outer product still fits in memory
_DATA = (
    torch.Tag.inplace_view,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)


class _OnDevice(TorchFunctionMode):
    """Replaces device arguments, also in functions under a transform."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        named = {name: self._moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._moved, args), **named)

    def _moved(self, argument: object) -> object:
        return self._device if isinstance(argument, torch.device) else argument


@contextmanager
def running_alone(device: str, grad: bool) -> Iterator[None]:
    """Run kernels of that device without the program's modes, preserving its random state."""
    drawn_on = [torch.cuda.current_device()] if device == "cuda" else []
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(grad),
        AutocastOff(),
        torch.random.fork_rng(drawn_on),
        _OnDevice(device),
    ):
        yield


def call_on_fresh(
    call: AnyFunction,
    args: Args,
    kwargs: Kwargs,
    fresh: Callable[[torch.Tensor], torch.Tensor],
    is_differentiated: bool = True,
) -> Callable[[], None]:
    """Run `call(args, kwargs)` on `fresh` tensors; return its backward."""
    leaves: list[torch.Tensor] = []
    known: dict[int, torch.Tensor] = {}

    def made(value: object) -> Any:
        if isinstance(value, torch.Generator):
            raise TypeError("drawing from the program's generator would change its state")
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in known:
            known[id(value)] = copy = fresh(value)
            if is_differentiated and value.requires_grad:
                leaves.append(copy.requires_grad_())
                with torch.enable_grad():  # the call may write to it
                    known[id(value)] = copy.clone()
        return known[id(value)]

    result = call(map_leaves(tuple(args), made), map_leaves(dict(kwargs), made))
    ends = tuple(tensor for tensor in tensors_in(result) if tensor.requires_grad)

    def backward() -> None:
        if not (ends and leaves):
            return
        with torch.autograd.set_multithreading_enabled(False):
            run_backward(ends, list(map(torch.empty_like, ends)), leaves)

    return backward


def small_stand_in(
    shape: Sequence[int], dtype: torch.dtype, device: str, integer: int
) -> torch.Tensor:
    """Return a row-major tensor that most kernels accept; integers may be indices, of which only
    `integer` is known to be valid.
    """
    half = dtype.is_floating_point or dtype.is_complex
    return torch.full(tuple(shape), 0.5 if half else integer, dtype=dtype, device=device)


def takes_workspace(target: object) -> bool:
    """Return whether a kernel reads bytes that its forward has left for it: stand-ins crash it
    (`mkldnn_rnn_layer_backward`).
    """
    schema = getattr(target, "_schema", None)
    return schema is not None and any(one.name in _WORKSPACES for one in schema.arguments)


def kernel_result(op: OpOverload, args: Args, kwargs: Kwargs, most: int = _MOST) -> object:
    """Return the operator's results, or None if the kernel cannot run or refuses. `most`: the limit
    for the elements of all arguments.
    """
    if not _can_be_asked(op) or kernel_device().type != "cpu":  # layouts may differ on a GPU
        return None
    if next(sizes_in((args, dict(kwargs))), None) is not None:
        return None  # symbolic sizes: a kernel needs ints
    tensors = list(tensors_in((args, dict(kwargs))))
    if not (_has_slow_meta(op) or any(map(has_insignificant_strides, tensors))):
        return None
    if not tensors or sum(t.numel() for t in tensors) > most or not all(map(_is_plain, tensors)):
        return None
    named = _named(op, args, kwargs)
    pivots = _pivots_in(named)
    elementwise = is_elementwise(op)  # integers are operands, not indexes, and may not be 0
    indexes = [t for t in tensors if _counts(t) and t.numel() and id(t) not in pivots]
    # Kernels of gradients are unsafe without elements: they write to the indexed row of an empty
    # table, and since torch 2.14 batch norm's divides by the size of its batch.
    is_empty = 0 in map(torch.Tensor.numel, tensors)
    if not elementwise and indexes and (is_empty or _has_no_rows(named)):
        return None
    if is_empty and "_backward" in op._opname:
        return None
    stand_ins = {id(t): _stand_in(t, int(elementwise or id(t) in pivots)) for t in tensors}

    def on_cpu(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return stand_ins[id(value)]
        return CPU if value == META else value

    try:
        with AutocastOff():
            made = op(*map_leaves(tuple(args), on_cpu), **map_leaves(dict(kwargs), on_cpu))
    except Exception:  # bad numbers or shapes: the meta function raises for them
        return None
    if any(stand_ins[id(t)].shape != t.shape for t in tensors):
        return None
    given = {id(stand_ins[id(t)]): t for t in tensors}  # an argument that is written stays itself
    return map_tensors(
        made, lambda t: given[id(t)] if id(t) in given else fresh_meta(t.shape, t.dtype, t.stride())
    )


def _counts(t: torch.Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool)


def _named(op: OpOverload, args: Args, kwargs: Kwargs) -> dict[str, object]:
    """Return the arguments by their names in the schema."""
    names = (argument.name for argument in op._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _pivots_in(named: Mapping[str, object]) -> set[int]:
    """Return the ids of LAPACK pivots, which count from 1 and are not checked.

    Other indexes are filled with 0, which every table has: some kernels do not check them either.
    """
    return {id(value) for name, value in named.items() if "pivots" in name.lower()}


def _has_no_rows(named: Mapping[str, object]) -> bool:
    """Return whether a number says that a table is empty: `num_weights` of a gradient."""
    return any(value == 0 for name, value in named.items() if name.startswith("num_"))


@lru_cache(maxsize=4096)
def _can_be_asked(op: OpOverload) -> bool:
    if is_foreign(op) or any(tag in op.tags for tag in _DATA):  # its kernel may have side effects
        return False
    writes_only = all(info is None or info.is_write for info in _alias_infos(op._schema))
    return writes_only and not takes_workspace(op)


def _has_slow_meta(op: OpOverload) -> bool:
    return DispatchKey.Meta in op.py_kernels or op._opname.startswith("_foreach_")


def _alias_infos(schema: Any) -> list[Any]:
    return [returned.alias_info for returned in schema.returns]


def _is_plain(t: torch.Tensor) -> bool:
    return t.is_meta and t.layout is torch.strided and not t.is_conj() and not t.is_neg()


def _stand_in(t: torch.Tensor, integer: int) -> torch.Tensor:
    """Return a CPU tensor of the same layout whose matrices are invertible."""
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
    if not (made.is_floating_point() or made.is_complex()):
        return made.fill_(integer)
    (made.zero_().diagonal(dim1=-2, dim2=-1) if made.dim() > 1 else made).fill_(1)
    return made


# -- formats of images -----------------------------------------------------------------------------


def in_kernel_format(op: OpOverload, args: Sequence[Any], kwargs: Kwargs, made: object) -> object:
    """Return the meta results `made` in the memory format of the CPU's kernel."""
    results = list(tensors_in(made))
    if op._schema.is_mutable or not any([t.dim() in CHANNELS_LAST for t in results]):
        return made
    images = [t for t in tensors_in((tuple(args), dict(kwargs))) if t.dim() in CHANNELS_LAST]
    if not any(map(is_of_images, images)):
        return made
    known = _kernel_formats(
        op, with_hints(tuple(args)), with_hints(dict(kwargs)), with_hints(results)
    )
    if known is None:
        return made
    laid_out = iter(known)
    return map_tensors(made, lambda tensor: _in_format(tensor, next(laid_out)))


def _kernel_formats(
    op: OpOverload, args: object, kwargs: object, results: list[torch.Tensor]
) -> Any:
    """Return the kernel's results, or None if it cannot run or gives other shapes."""
    (batch, *_) = (t.shape[0] for t in tensors_in((args, kwargs)) if t.dim() in CHANNELS_LAST)
    for few in (batch, _FEW):
        shapes = [(few, *t.shape[1:]) if _has_batch(t, batch) else t.shape for t in results]
        if sum(torch.Size(shape).numel() for shape in shapes) > _MOST_OF_IMAGES:
            continue
        cut = partial(_cut, batch=batch, few=few)
        known = kernel_result(op, map_leaves(args, cut), map_leaves(kwargs, cut), _MOST_OF_IMAGES)
        if known is not None:
            laid_out = list(tensors_in(known))
            return laid_out if [t.shape for t in laid_out] == shapes else None
    return None


def _has_batch(t: torch.Tensor, batch: int) -> bool:
    return t.dim() in CHANNELS_LAST and t.shape[0] == batch


def _cut(value: Any, batch: int, few: int) -> object:
    """Return `few` images in place of `batch`."""
    is_cut = few < batch and isinstance(value, torch.Tensor) and _has_batch(value, batch)
    return value[:few] if is_cut else value


def _in_format(made: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    last = CHANNELS_LAST.get(made.dim())
    if last is None or with_hints(made).stride() == known.stride():
        return made
    for order in (last, range(made.dim() - 1, -1, -1)):
        if known.stride() == strides_along(known.shape, order):
            return fresh_meta(made.shape, made.dtype, strides_along(made.shape, order))
    return made
