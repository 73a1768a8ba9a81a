"""Refuses calls that real kernels reject and meta kernels accept, so that eager raises its error.

Input: the name and meta arguments of a call that the meta run accepted, and what it wrote. Output:
nothing, or `EagerRaises`: the traced program then runs the call as plain Python. Being stricter
than eager costs a graph break; being laxer would give a result where eager raises.

Dtypes and plain numbers are probed on the kernels themselves (kernel_refusals.py). The checks here,
registered by the names of calls, are for what cannot be probed: checks of data or memory layouts
that stand-ins lack, layouts and draws that raise no error, kernels that end the process instead of
raising. Schemas and tags do not declare these; each was found by the sweeps of tests/operators,
which run every sample of every operator, so that a missing name fails there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from ...devices import row_of
from ...late import late_names
from ...operators.operation import overloads_named
from ...torch_types import Args
from ..fresh_meta import broadcast, has_elements, refuse_empty
from ..node_meta import tensors_in
from ..propagate import EagerRaises
from .overlap import why_order_matters
from .tensor_iterator import dense, like

if TYPE_CHECKING:
    from ..symbolic.symbolic_views import symbolic_view
else:
    late_names(globals(), {"graph.symbolic.symbolic_views": "symbolic_view"})

__all__ = ["check_as_kernels_do", "check_for_meta", "check_out"]

_WHOLE_FLOATS = (torch.float32, torch.float64)


class _Call(NamedTuple):
    """A call that the meta run accepted, with at least one tensor."""

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    device: torch.device

    @property
    def first(self) -> torch.Tensor:
        return self.tensors[0]

    @property
    def is_kept(self) -> bool:
        """Return whether the first tensor is dense, so that results like it have its strides."""
        return self.first.is_contiguous() or dense(self.first.shape, self.first.stride())

    def argument(self, position: int, name: str, default: object = None) -> Any:
        return _argument(self.args, self.kwargs, position, name, default)


_CHECKS: dict[str, list[Callable[[_Call], None]]] = {}
Check = TypeVar("Check", bound=Callable[[_Call], None])


def _checks(names: str) -> Callable[[Check], Check]:
    """Register a check of calls with these names, exactly as they are spelled."""

    def register(check: Check) -> Check:
        for name in names.split():
            _CHECKS.setdefault(name, []).append(check)
        return check

    return register


def check_for_meta(name: str, args: Args, kwargs: dict[str, object]) -> None:
    """Raise EagerRaises if a meta function would end the process by dividing by an integer 0."""
    shuffles = name in ("channel_shuffle", "native_channel_shuffle")
    if shuffles and _argument(args, kwargs, 1, "groups") == 0:
        _reject("groups is 0")


def check_as_kernels_do(
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    written: Sequence[torch.Tensor],
    device: torch.device,
) -> None:
    """Raise EagerRaises if a kernel of the device raises although the meta run did not."""
    tensors = list(tensors_in((args, kwargs)))
    _check_arguments(name, args, kwargs, tensors, device)
    collision = why_order_matters(name, args, kwargs, written)
    if collision is not None:
        _reject(collision)
    call = _Call(name, args, kwargs, tensors, device)
    for check in _CHECKS.get(name, ()) if tensors else ():
        check(call)


def _check_arguments(
    name: str,
    args: Args,
    kwargs: dict[str, object],
    tensors: list[torch.Tensor],
    device: torch.device,
) -> None:
    """Check plain arguments, found by name, whose invalid values each kernel treats differently."""
    given = {key: args[n] if n < len(args) else kwargs.get(key) for key, n in _places(name)}
    reduction = given.get("reduction")
    if isinstance(reduction, int) and reduction not in (0, 1, 2):
        _reject("an unknown reduction, which each kernel treats differently")
    strides = given.get("stride")
    if isinstance(strides, (list, tuple)) and any(type(s) is int and s < 0 for s in strides):
        _reject("a negative stride")
    if given.get("half_to_float") and row_of(device).kernels == "cpu":
        _reject("the CPU's softmax does not convert")
    dtype = given.get("input_dtype")
    if isinstance(dtype, torch.dtype) and tensors and dtype is not tensors[0].dtype:
        _reject("the gradient of a converted result")
    shape = given.get("normalized_shape")
    if isinstance(shape, (list, tuple)) and any(
        isinstance(part, torch.Tensor) and tuple(part.shape) != tuple(shape)
        for part in (given.get("weight"), given.get("bias"))
    ):
        _reject("scales of another shape than the normalised dimensions")
    divisor = given.get("beta") if "loss" in name else None
    inexact = all(t.is_floating_point() for t in tensors)
    if isinstance(divisor, int | float) and abs(divisor) < 1 and not inexact:
        _reject("an integer kernel truncates beta to 0 and divides by it")
    graded = tensors and not (tensors[0].is_floating_point() or tensors[0].is_complex())
    if graded and row_of(device).kernels == "cuda" and name.endswith("_backward"):
        _reject("GPU kernels of gradients are hardly ever implemented for integers")


_NAMED = frozenset(
    "reduction stride half_to_float input_dtype normalized_shape weight bias beta".split()
)


@cache
def _places(name: str) -> tuple[tuple[str, int], ...]:
    """Return the positions of checked arguments in the operator's schema; a Python function of the
    same name has other positions or types.
    """
    return tuple(
        (argument.name, n)
        for overload in overloads_named(name.removesuffix("_"))[:1]
        for n, argument in enumerate(overload._schema.arguments)
        if argument.name in _NAMED
    )


def check_out(name: str, targets: object, results: object, written: Sequence[torch.Tensor]) -> None:
    """Raise EagerRaises unless `out=targets` takes exactly the result of the call without it.

    Which dtypes are cast differs between kernels.
    """
    if name == "kron":
        _reject("it writes to out= through a view that its schema does not declare")
    for target, result in zip(tensors_in(targets), tensors_in(results), strict=False):
        if not any(target is tensor for tensor in written):
            _reject("the meta run does not show the write to out=")
        # The meta kernel that resizes `out` replaces its symbolic sizes by the ints of this call.
        if [*map(type, target.shape)] != [*map(type, result.shape)]:
            _reject("it resizes the tensor in out=")
        if target.dtype is not result.dtype:
            _reject("kernels differ in whether the result is cast to the dtype of out=")


@_checks("batch_norm instance_norm")
def _check_channels(call: _Call) -> None:
    first, is_batch_norm = call.first, call.name == "batch_norm"
    if is_batch_norm and not first.numel():
        return
    if first.dim() < 2:
        _reject("there is no channel dimension", IndexError)
    if is_batch_norm and row_of(call.device).kernels == "cpu" and first.dtype in _WHOLE_FLOATS:
        return  # the result is always row-major (graph/operators/network.py)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(first.dim())
    if not first.is_contiguous() and not (last and first.is_contiguous(memory_format=last)):
        _reject("the device's kernel chooses the layout of its result")


@_checks("softmax log_softmax softmin sort argsort msort")
def _check_dim(call: _Call) -> None:
    _check_in_range(call.first, call.argument(1, "dim"))


def _check_in_range(first: torch.Tensor, dim: object) -> None:
    rank = max(first.dim(), 1)
    if type(dim) is int and not -rank <= dim < rank:
        _reject(f"dimension {dim} is out of range", IndexError)


@_checks("any all nansum nanmean logsumexp roll")
def _check_empty_dims(call: _Call) -> None:
    dim = call.argument(1, "dim")
    if call.first.dim() and isinstance(dim, tuple | list) and not dim:
        _reject("kernels differ in whether an empty dim means all dimensions")


@_checks("addmv addmv_ addmm addmm_")
def _check_addend(call: _Call) -> None:
    if call.first.dim() > (1 if call.name.startswith("addmv") else 2):
        _reject("the addend has more dimensions than the product")


@_checks("max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices")
def _check_pooled(call: _Call) -> None:
    if row_of(call.device).kernels == "cuda" and not call.first.is_floating_point():
        _reject(f"its GPU kernel is not implemented for {call.first.dtype}")


@_checks("pixel_unshuffle")
def _check_unshuffled(call: _Call) -> None:
    factor = _argument(call.args, call.kwargs, 1, "downscale_factor")
    if factor != 1 and not has_elements(call.first):
        _reject("its kernel keeps the shape of an empty tensor")


@_checks("max min argmax argmin amax amin aminmax median")
def _check_elements(call: _Call) -> None:
    dim = call.argument(1, "dim")
    if isinstance(dim, torch.Tensor):  # the larger of two tensors
        return
    try:
        refuse_empty(call.first.shape, dim)
    except IndexError as error:
        raise EagerRaises(error) from None


@_checks("binary_cross_entropy_with_logits soft_margin_loss")
def _check_weights(call: _Call) -> None:
    # These kernels multiply weights in place into a tensor of the input's shape.
    first, at = list(call.first.shape), 1 if call.name == "soft_margin_loss" else 2
    if any(broadcast([first, weight.shape]) != first for weight in call.tensors[at:]):
        _reject("weights or targets that have more elements or dimensions than the input")


@_checks("slice_scatter")
def _check_scattered(call: _Call) -> None:
    _check_slice(*call.args, **call.kwargs)


def _check_slice(
    input: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: Any = None,
    end: object = None,
    step: int = 1,
    out: torch.Tensor | None = None,
) -> None:
    whole = torch.empty(input.shape, device="meta")
    _check_in_range(whole, dim)
    op, bounds = torch.ops.aten.slice.Tensor, (whole, dim, start, end, step)
    part = symbolic_view(op, bounds, {})
    if (part if part is not None else op(*bounds)).shape != src.shape:
        _reject("the source does not have the shape of the slice")


@_checks("slice_scatter select_scatter as_strided_scatter index_fill")
def _check_strides_kept(call: _Call) -> None:
    if not call.is_kept:
        _reject("the layout of its result follows the gaps and overlaps of its input")


@_checks("as_strided as_strided_ _reshape_alias")
def _check_restrided(call: _Call) -> None:
    _check_storage(*call.args, **call.kwargs)


def _check_storage(
    input: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> None:
    start = input.storage_offset() if storage_offset is None else storage_offset
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and (last + 1) * input.element_size() > input.untyped_storage().nbytes():
        _reject("it reaches beyond the known storage")


@_checks("linalg_eigh linalg_eig linalg_svd svd")
def _check_vectors(call: _Call) -> None:
    if (call.first.is_complex() or call.name == "linalg_eig") and call.first.numel():
        _reject("its gradient depends on the values: a loss that depends on the phase is refused")


@_checks("dropout native_dropout rrelu rrelu_with_noise")
def _check_drawn_in_order(call: _Call) -> None:
    if row_of(call.device).kernels == "cuda" and not call.is_kept and call.first._version:
        _reject("a GPU draws in memory order, whose gaps a write may have removed")


@_checks(
    "normal_ uniform_ bernoulli_ exponential_ random_ log_normal_ cauchy_ geometric_ dropout_ "
    "trunc_normal_ rrelu_ feature_dropout_ alpha_dropout_ rand_like randn_like randint_like "
    "bernoulli"
)
def _check_filled(call: _Call) -> None:
    filled: torch.Tensor | None = call.first
    if call.name.endswith("_like"):  # the result is dense even if the argument is a strided part
        filled = like(call.first, memory_format=call.kwargs.get("memory_format"))
    if filled is None or not filled.is_contiguous():
        _reject("the order in which strided memory is filled decides the positions of the numbers")


@_checks("bernoulli_")
def _check_probability(call: _Call) -> None:
    chance = call.argument(1, "p", 0.5)
    if isinstance(chance, int | float) and not 0 <= chance <= 1:
        _reject("the probability is outside [0, 1]")


@_checks("uniform_")
def _check_range(call: _Call) -> None:
    if call.argument(1, "from", 0) > call.argument(2, "to", 1):
        _reject("the range is empty")


@_checks("multinomial")
def _check_samples(call: _Call) -> None:
    count, again = call.argument(1, "num_samples", 1), call.argument(2, "replacement", False)
    if not again and count > call.first.shape[-1]:
        _reject("more samples than categories")


@_checks("bucketize")
def _check_boundaries(call: _Call) -> None:
    if len(call.tensors) > 1 and call.tensors[1].dim() != 1:
        _reject("the boundaries are not one-dimensional")


def _argument(
    args: Args,
    kwargs: dict[str, object],
    position: int,
    name: str,
    default: object = None,
) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _reject(why: str, kind: type[Exception] = RuntimeError) -> None:
    raise EagerRaises(kind(why))
