"""Fills, ranges, triangles: constant tensors are aten.full, ranges aten.arange.start_step."""

from __future__ import annotations

from typing import Any

import torch

from ...graph.operators.shapes import is_integer, number_dtype
from ..recording.recorder import Recorder, Sym
from .registry import rule

__all__: list[str] = []

aten = torch.ops.aten
CPU = torch.device("cpu")


def _device(given: Any, otherwise: torch.device = CPU) -> torch.device:
    return otherwise if given is None else torch.device(given)


@rule(aten.zeros.default, aten._efficientzerotensor.default, complex_too=True)
def _zeros(r: Recorder, size: list[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Sym:
    return r.full(tuple(size), 0, dtype or torch.get_default_dtype(), _device(device))


@rule(aten.ones.default, complex_too=True)
def _ones(r: Recorder, size: list[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Sym:
    return r.full(tuple(size), 1, dtype or torch.get_default_dtype(), _device(device))


@rule(aten.full.default, complex_too=True)
def _full(
    r: Recorder, size: list[int], value: Any, *, dtype: Any = None, device: Any = None, **_: Any
) -> Sym | None:
    # The loop IR has no complex constants: complex fills stay ATen calls.
    if isinstance(value, complex):
        return None
    return r.full(tuple(size), value, dtype or number_dtype(value), _device(device))


@rule(aten.scalar_tensor.default, complex_too=True)
def _scalar_tensor(
    r: Recorder, value: Any, *, dtype: Any = None, device: Any = None, **_: Any
) -> Sym:
    return r.full((), value, dtype or torch.get_default_dtype(), _device(device))


# The layout is read from `empty_like` on meta tensors, whose rule for dense and overlapping memory
# (preserve_format) is torch's own; nothing else of that call remains.
def _filled(r: Recorder, x: Sym, value: Any, dtype: Any, device: Any, memory_format: Any) -> Sym:
    """Fill a tensor for a *_like factory, in the layout of x."""
    made = r.full(x.shape, value, dtype or x.dtype, _device(device, x.device))
    like = x.one(aten.empty_like.default, memory_format=memory_format)
    return r.restride(made, like.strides)


@rule(aten.zeros_like.default, complex_too=True)
def _zeros_like(
    r: Recorder,
    x: Sym,
    *,
    dtype: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> Sym:
    return _filled(r, x, 0, dtype, device, memory_format)


@rule(aten.ones_like.default, complex_too=True)
def _ones_like(
    r: Recorder,
    x: Sym,
    *,
    dtype: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> Sym:
    return _filled(r, x, 1, dtype, device, memory_format)


@rule(aten.full_like.default, complex_too=True)
def _full_like(
    r: Recorder,
    x: Sym,
    value: object,
    *,
    dtype: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> Sym:
    return _filled(r, x, value, dtype, device, memory_format)


@rule(aten.new_zeros.default, complex_too=True)
def _new_zeros(
    r: Recorder, x: Sym, size: list[int], *, dtype: Any = None, device: Any = None, **_: Any
) -> Sym:
    return r.full(tuple(size), 0, dtype or x.dtype, _device(device, x.device))


@rule(aten.new_ones.default, complex_too=True)
def _new_ones(
    r: Recorder, x: Sym, size: list[int], *, dtype: Any = None, device: Any = None, **_: Any
) -> Sym:
    return r.full(tuple(size), 1, dtype or x.dtype, _device(device, x.device))


@rule(aten.new_full.default, complex_too=True)
def _new_full(
    r: Recorder,
    x: Sym,
    size: list[int],
    value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    **_: Any,
) -> Sym:
    return r.full(tuple(size), value, dtype or x.dtype, _device(device, x.device))


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step, complex_too=True)
def _arange(r: Recorder, *bounds: object, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    if dtype is None:
        # As in eager: one float among the bounds makes the range floating-point, also if it is 2.0.
        whole = all(map(is_integer, (start, end, step)))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    return r.call(
        aten.arange.start_step,
        start,
        end,
        step,
        dtype=dtype,
        device=_device(device),
        pin_memory=False,
    )


# Comparing two aranges fuses with the reader; ATen's triangle kernel would write a matrix first.
def _gap(r: Recorder, x: Sym) -> Sym:
    """Return column number minus row number for the last two dimensions."""
    rows, columns = x.shape[-2:]
    down = r.arange(rows, torch.int64, x.device).unsqueeze(1)
    return r.arange(columns, torch.int64, x.device).unsqueeze(0) - down


@rule(aten.triu.default, complex_too=True)
def _triu(r: Recorder, x: Sym, diagonal: int = 0) -> Sym:
    return r.where(_gap(r, x) >= diagonal, x, 0)


@rule(aten.tril.default, complex_too=True)
def _tril(r: Recorder, x: Sym, diagonal: int = 0) -> Sym:
    return r.where(_gap(r, x) <= diagonal, x, 0)
