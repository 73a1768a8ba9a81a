"""torch.istft: a composite C++ operator that reads tensor data only to check them.

Its operations are recorded in the order of ATen/native/SpectralOps.cpp, so that they round alike.
An assertion in the graph replaces the check; if it fails, eager runs the call and raises. Calls
with shapes that torch refuses or warns about stay one node, which calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...values.base import Args, Kwargs, Machine, Value
from ...values.numpy.library_code import Recorder
from ...values.tensors.tensor import TensorValue, record
from ...values.tensors.torch_warnings import replay_warning
from ..registry import handles

__all__: list[str] = []

_istft = torch.istft  # this object, even if it is replaced later
_NAMES = (
    "input", "n_fft", "hop_length", "win_length", "window", "center", "normalized", "onesided",
    "length", "return_complex",
)  # fmt: skip
_LEAST = 1e-11  # least sum of squared windows, as ATen checks it


@handles(_istft, Tensor.istft)
def _follow_istft(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given: dict[str, Value] = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    x, window = given.pop("input", None), given.pop("window", machine.constant(None))
    plain = {name: value.realize(machine) for name, value in given.items()}
    if not isinstance(x, TensorValue) or not all(v.is_constant(machine) for v in plain.values()):
        return record(machine, _istft, args, kwargs)
    numbers = {name: value.as_constant(machine) for name, value in plain.items()}
    recorder = Recorder(machine, "istft")
    spectrum = recorder.stand_in(x)
    weights = recorder.stand_in(window) if isinstance(window, TensorValue) else None
    sizes = _sizes(spectrum, weights, numbers)
    if sizes is None:
        return record(machine, _istft, args, kwargs)
    if weights is None:
        bins = torch.ones(3, 4, dtype=torch.complex64, device="cpu")
        replay_warning(machine, "istft", _istft, bins, 4)
    with recorder:
        return recorder.value_of(_inverse(spectrum, weights, sizes, numbers))


def _sizes(
    x: Tensor, window: Tensor | None, given: Mapping[str, Any]
) -> tuple[int, int, int, int, int] | None:
    """Return n_fft, hop, window length, begin and end; None: eager refuses or warns."""
    n_fft: Any = given.get("n_fft")
    known = all(type(size) is int for size in (n_fft, *x.shape))
    if not known or not x.is_complex() or x.dim() not in (2, 3) or not x.numel():
        return None
    hop = given.get("hop_length") or n_fft // 4
    width = given.get("win_length") or n_fft
    onesided = given.get("onesided")
    onesided = x.shape[-2] != n_fft if onesided is None else onesided
    wanted = n_fft // 2 + 1 if onesided else n_fft
    total = n_fft + hop * (x.shape[-1] - 1)
    begin = n_fft // 2 if given.get("center", True) else 0
    length = given.get("length")
    default = total - begin if given.get("center", True) else total
    end = default if length is None else begin + length
    fits = x.shape[-2] == wanted and 0 < hop <= width <= n_fft and begin < end <= total
    if window is not None:
        fits = fits and tuple(window.shape) == (width,) and not window.is_complex()
    if not fits or given.get("return_complex") or x.dtype is not torch.complex64:
        return None
    return n_fft, hop, width, begin, end


def _inverse(
    x: Tensor,
    window: Tensor | None,
    sizes: tuple[int, int, int, int, int],
    given: Mapping[str, Any],
) -> Tensor:
    n_fft, hop, width, begin, end = sizes
    if window is None:
        window = x.real.new_ones((width,))
    if width != n_fft:
        left = (n_fft - width) // 2
        window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    frames = x.shape[-1]
    total = n_fft + hop * (frames - 1)
    rows = (x.unsqueeze(0) if x.dim() == 2 else x).transpose(1, 2)[..., : n_fft // 2 + 1]
    norm = "ortho" if given.get("normalized") else "backward"
    waves = torch.fft.irfft(rows, n_fft, -1, norm) * window.view(1, 1, n_fft)
    squared = window.pow(2).expand(1, frames, n_fft)
    summed = torch.ops.aten.unfold_backward(waves, [waves.shape[0], total], 1, n_fft, hop)
    envelope = torch.ops.aten.unfold_backward(squared, [1, total], 1, n_fft, hop)
    summed, envelope = summed[:, begin:end], envelope[:, begin:end]
    torch._assert_async(envelope.abs().min() >= _LEAST)
    result: Tensor = summed / envelope
    return result.squeeze(0) if x.dim() == 2 else result
