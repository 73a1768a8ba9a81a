"""Fills, ranges, triangles: constant tensors are aten.full, ranges aten.arange.start_step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch

from ...graph.operators.shapes import is_integer, number_dtype
from ..recording.recorder import Recorder, Sym
from .registry import rule

__all__: list[str] = []

aten = torch.ops.aten
CPU = torch.device("cpu")


class Factory(TypedDict, total=False):
    """Options of the operations that make a tensor; None means the default."""

    dtype: torch.dtype | None
    layout: torch.layout | None
    device: torch.device | str | None
    pin_memory: bool | None
    memory_format: torch.memory_format | None


def _made(
    r: Recorder,
    shape: Sequence[int],
    value: complex,
    dtype: torch.dtype,
    options: Factory,
    device: torch.device = CPU,
) -> Sym:
    """Fill a tensor; `dtype` and `device` apply if the options do not name others."""
    return r.full(tuple(shape), value, options.get("dtype") or dtype, _device(options, device))


def _device(options: Factory, otherwise: torch.device = CPU) -> torch.device:
    given = options.get("device")
    return otherwise if given is None else torch.device(given)


@rule(aten.zeros.default, aten._efficientzerotensor.default, complex_too=True)
def _zeros(r: Recorder, size: list[int], **options: Unpack[Factory]) -> Sym:
    return _made(r, size, 0, torch.get_default_dtype(), options)


@rule(aten.ones.default, complex_too=True)
def _ones(r: Recorder, size: list[int], **options: Unpack[Factory]) -> Sym:
    return _made(r, size, 1, torch.get_default_dtype(), options)


@rule(aten.full.default, complex_too=True)
def _full(r: Recorder, size: list[int], value: complex, **options: Unpack[Factory]) -> Sym | None:
    # The loop IR has no complex constants: complex fills stay ATen calls.
    if isinstance(value, complex):
        return None
    return _made(r, size, value, number_dtype(value), options)


@rule(aten.scalar_tensor.default, complex_too=True)
def _scalar_tensor(r: Recorder, value: complex, **options: Unpack[Factory]) -> Sym:
    return _made(r, (), value, torch.get_default_dtype(), options)


# The layout is read from `empty_like` on meta tensors, whose rule for dense and overlapping memory
# (preserve_format) is torch's own; nothing else of that call remains.
@rule(aten.full_like.default, complex_too=True)
def _full_like(r: Recorder, x: Sym, value: complex, **options: Unpack[Factory]) -> Sym:
    made = _made(r, x.shape, value, x.dtype, options, x.device)
    like = x.one(aten.empty_like.default, memory_format=options.get("memory_format"))
    return r.restride(made, like.strides)


@rule(aten.zeros_like.default, complex_too=True)
def _zeros_like(r: Recorder, x: Sym, **options: Unpack[Factory]) -> Sym:
    return _full_like(r, x, 0, **options)


@rule(aten.ones_like.default, complex_too=True)
def _ones_like(r: Recorder, x: Sym, **options: Unpack[Factory]) -> Sym:
    return _full_like(r, x, 1, **options)


@rule(aten.new_full.default, complex_too=True)
def _new_full(
    r: Recorder, x: Sym, size: list[int], value: complex, **options: Unpack[Factory]
) -> Sym:
    return _made(r, size, value, x.dtype, options, x.device)


@rule(aten.new_zeros.default, complex_too=True)
def _new_zeros(r: Recorder, x: Sym, size: list[int], **options: Unpack[Factory]) -> Sym:
    return _new_full(r, x, size, 0, **options)


@rule(aten.new_ones.default, complex_too=True)
def _new_ones(r: Recorder, x: Sym, size: list[int], **options: Unpack[Factory]) -> Sym:
    return _new_full(r, x, size, 1, **options)


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step, complex_too=True)
def _arange(r: Recorder, *bounds: float, **options: Unpack[Factory]) -> Sym:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    dtype = options.get("dtype")
    if dtype is None:
        # As in eager: one float among the bounds makes the range floating-point, also if it is 2.0.
        whole = all(map(is_integer, (start, end, step)))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    return r.arange(end, dtype, _device(options), start=start, step=step)


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
