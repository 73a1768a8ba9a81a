"""torch.istft, cov and corrcoef: composite C++ operators that read tensor data only to check them.

The operations of a composite are recorded in the order of its C++ code (SpectralOps.cpp and
Correlation.cpp in ATen/native), so that they round alike. An assertion in the graph replaces each
check; if one fails, eager runs the call and raises or warns. A call with shapes that torch refuses
or warns about stays one node, which calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from ....compat.functions import assert_async
from ....graph.symbolic.sym_node import as_dimension, as_dimensions
from ...values.base import Args, Kwargs, Machine, Value
from ...values.numpy.library_code import Recorder
from ...values.tensors.tensor import TensorValue, record
from ...values.torch_warnings import replay_warning
from ..registry import AS_GIVEN, handles

__all__: list[str] = []

Parts = tuple[object, ...]


def _register(
    function: Callable[..., object],
    method: Callable[..., object],
    read: Callable[..., Parts | None],
    formula: Callable[..., Tensor],
) -> None:
    """Register a composite as `formula(*read(machine, ...))`, run on stand-ins of the tensors.

    `read` has the parameters of the composite, whose types are not checked. It returns None for a
    call that stays one node.
    """
    signature = inspect.signature(read)

    @handles(function, method, like=AS_GIVEN)
    def follow(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        recorder = Recorder(machine, function.__name__)
        try:
            given = signature.bind(machine, *args, **kwargs).arguments
        except TypeError:
            return record(machine, function, args, kwargs)
        for name, value in list(given.items())[1:]:
            if isinstance(value, TensorValue):
                given[name] = recorder.stand_in(value)
            elif value.is_constant(machine):
                given[name] = value.as_constant(machine)
            else:
                return record(machine, function, args, kwargs)
        parts = read(**given)
        if parts is None:
            return record(machine, function, args, kwargs)
        with recorder:
            return recorder.value_of(formula(*parts))


# -- istft -----------------------------------------------------------------------------------------

_LEAST = 1e-11  # least sum of squared windows, as ATen checks it


def _read_istft(
    machine: Machine,
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Parts | None:
    known = isinstance(input, Tensor) and all(type(size) is int for size in (n_fft, *input.shape))
    if not known or not input.is_complex() or input.dim() not in (2, 3) or not input.numel():
        return None
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    onesided = input.shape[-2] != n_fft if onesided is None else onesided
    wanted = n_fft // 2 + 1 if onesided else n_fft
    total = n_fft + hop * (input.shape[-1] - 1)
    begin = n_fft // 2 if center else 0
    default = total - begin if center else total
    end = default if length is None else begin + length
    fits = input.shape[-2] == wanted and 0 < hop <= width <= n_fft and begin < end <= total
    if isinstance(window, Tensor):
        fits = fits and tuple(window.shape) == (width,) and not window.is_complex()
    if not fits or return_complex or input.dtype is not torch.complex64:
        return None
    if window is None:
        bins = torch.ones(3, 4, dtype=torch.complex64, device="cpu")
        replay_warning(machine, "istft", _istft, bins, 4)
    return input, window, (n_fft, hop, width, begin, end), "ortho" if normalized else "backward"


def _inverse(
    x: Tensor, window: Tensor | None, sizes: tuple[int, int, int, int, int], norm: str
) -> Tensor:
    n_fft, hop, width, begin, end = sizes
    if window is None:
        window = x.real.new_ones((width,))
    if width != n_fft:
        left = (n_fft - width) // 2
        window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    frames = x.shape[-1]
    total = n_fft + hop * (frames - 1)
    # ATen too takes the first half of a two-sided spectrum, since the result is real.
    rows = (x.unsqueeze(0) if x.dim() == 2 else x).transpose(1, 2)[..., : n_fft // 2 + 1]
    waves = torch.fft.irfft(rows, n_fft, -1, norm) * window.view(1, 1, n_fft)
    squared = window.pow(2).expand(1, frames, n_fft)
    summed = torch.ops.aten.unfold_backward(waves, [waves.shape[0], total], 1, n_fft, hop)
    envelope = torch.ops.aten.unfold_backward(squared, [1, total], 1, n_fft, hop)
    summed, envelope = summed[:, begin:end], envelope[:, begin:end]
    assert_async(envelope.abs().min() >= _LEAST)
    result: Tensor = summed / envelope
    return result.squeeze(0) if x.dim() == 2 else result


# -- cov and corrcoef ------------------------------------------------------------------------------


def _read_cov(
    machine: Machine,
    input: Tensor,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Parts | None:
    parts = input, correction, fweights, aweights
    return parts if _takes(*parts) else None


def _read_corrcoef(machine: Machine, input: Tensor) -> Parts | None:
    return (input,) if _takes(input, 1, None, None) else None


def _takes(x: Tensor, correction: int, counts: Tensor | None, weights: Tensor | None) -> bool:
    """Return whether eager accepts shapes and dtypes without a warning."""
    tensors = [x, *(each for each in (counts, weights) if each is not None)]
    if not all(isinstance(each, Tensor) for each in tensors) or type(correction) is not int:
        return False
    if x.dim() > 2 or x.dtype is torch.bool:
        return False
    observations = as_dimension(x.shape[-1]) if x.dim() else 1
    if not observations:
        return False
    fit = all(w is None or as_dimensions(w.shape) == (observations,) for w in (counts, weights))
    whole = counts is None or not (counts.is_floating_point() or counts.is_complex())
    whole &= counts is None or counts.dtype is not torch.bool
    real = weights is None or weights.is_floating_point()
    # Eager warns where no degrees of freedom are left.
    unweighted = counts is None and weights is None
    return fit and whole and real and (not unweighted or observations > correction)


def _covariance(
    x: Tensor, correction: int, counts: Tensor | None, weights: Tensor | None
) -> Tensor:
    rows = x.view((1, -1)) if x.dim() < 2 else x
    for each in (counts, weights):
        if each is not None:
            assert_async(each.min().ge(0))
    both = [each for each in (counts, weights) if each is not None]
    w = both[0] * both[1] if len(both) == 2 else next(iter(both), None)
    if w is None:
        total = torch.full((), rows.shape[1], dtype=torch.long, device=x.device)
        norm = total - correction
    else:
        total = w.sum()
        assert_async(total.ne(0))
        norm = _normalisation(w, total, correction, counts, weights)
        assert_async(norm.gt(0))  # else eager warns
    mean = (rows if w is None else rows * w).sum(1) / total
    rows = rows - mean.unsqueeze(1)
    product = torch.mm(rows, (rows if w is None else rows * w).t().conj())
    return torch.true_divide(product, norm).squeeze()


def _normalisation(
    w: Tensor, total: Tensor, correction: int, counts: Tensor | None, weights: Tensor | None
) -> Tensor:
    if weights is None or correction == 0:
        return total - correction
    squares = w * (w if counts is None else weights)
    return total - correction * squares.sum() / total


def _correlation(x: Tensor) -> Tensor:
    c = _covariance(x, 1, None, None)
    if not c.dim():
        # One variable correlates with itself: 1, or nan if it is constant.
        return c / c
    variances = c.diag()
    deviations = torch.sqrt(variances.real if variances.is_complex() else variances)
    c = c.div(deviations.view((-1, 1))).div(deviations.view((1, -1)))
    if not c.is_complex():
        return c.clip(-1, 1)
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1))


_istft = torch.istft  # this object, even if it is replaced later
_register(_istft, Tensor.istft, _read_istft, _inverse)
_register(torch.cov, Tensor.cov, _read_cov, _covariance)
_register(torch.corrcoef, Tensor.corrcoef, _read_corrcoef, _correlation)
