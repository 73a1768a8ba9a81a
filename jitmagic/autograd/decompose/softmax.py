"""softmax and log_softmax with their backwards, in the numerically stable form ATen uses."""

from __future__ import annotations

import torch

from ..recording.recorder import Recorder, Sym
from .registry import rule, up

__all__: list[str] = []

aten = torch.ops.aten


def _result_dtype(x: Sym, half_to_float: bool) -> torch.dtype:
    return torch.float32 if half_to_float else x.dtype


@rule(aten._softmax.default)
def _softmax(r: Recorder, x: Sym, dim: int, half_to_float: bool) -> Sym | None:
    if not x.numel:
        return None
    wide = up(x)
    # Subtracting the maximum keeps exp from overflowing; a row of -inf gives NaN here as in eager.
    shifted = (wide - wide.amax([dim], True)).exp()
    return (shifted / shifted.sum([dim], True)).to(_result_dtype(x, half_to_float))


@rule(aten._log_softmax.default)
def _log_softmax(r: Recorder, x: Sym, dim: int, half_to_float: bool) -> Sym | None:
    if not x.numel:
        return None
    wide = up(x)
    shifted = wide - wide.amax([dim], True)
    # Not log(softmax(x)): a probability that underflows to 0 would give -inf.
    return (shifted - shifted.exp().sum([dim], True).log()).to(_result_dtype(x, half_to_float))


@rule(aten._softmax_backward_data.default)
def _softmax_backward(
    r: Recorder, grad: Sym, output: Sym, dim: int, input_dtype: torch.dtype
) -> Sym:
    y = up(output)
    weighted = up(grad) * y
    return (weighted - y * weighted.sum([dim], True)).to(input_dtype)


@rule(aten._log_softmax_backward_data.default)
def _log_softmax_backward(
    r: Recorder, grad: Sym, output: Sym, dim: int, input_dtype: torch.dtype
) -> Sym:
    g = up(grad)
    return (g - up(output).exp() * g.sum([dim], True)).to(input_dtype)
