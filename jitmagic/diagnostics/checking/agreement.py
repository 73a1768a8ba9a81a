"""agreement: decides whether compiled code and eager agree, for passport, minify and test.

Input: the results of both on the same tensors (`cases.Results`), and eager's results in float64.
Output: a `Line` per tensor. Both are compared with float64, not with each other, as compiled code
may round differently from eager: its error may be TIMES_EAGER times eager's, plus ROUNDINGS
roundings of the largest value. If there is no float64 run, or eager itself computes in float64, the
roundings alone are allowed. Integers and bools must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction, Kwargs
from .cases import Results, collect_results

__all__ = ["Line", "agree", "compare", "in_double"]

TIMES_EAGER = 4.0  # allowed error, relative to eager's error against float64
ROUNDINGS = 16.0  # allowed in addition: multiples of eps times the largest value
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Line:
    """Compares one tensor of a graph: a result, an input after the call, or a gradient.

    abs, rel: largest difference to eager, absolute and relative to eager's value
    ulp: the same in units of the last place; None if the dtype is not floating point
    error, eager_error: largest difference to float64, relative to the largest value; None without a
    float64 run
    """

    graph: int
    name: str
    dtype: str
    bitwise: bool
    abs: float
    rel: float
    ulp: int | None
    error: float | None
    eager_error: float | None
    agrees: bool

    def __str__(self) -> str:
        verdict = "bitwise equal" if self.bitwise else "agrees" if self.agrees else "DIFFERS"
        parts = [f"graph {self.graph}, {self.name} ({self.dtype}): {verdict}"]
        if not self.bitwise:
            parts.append(f"abs {self.abs:.2e}, rel {self.rel:.2e}")
            parts += [f"{self.ulp:,} ulp"] if self.ulp is not None else []
        if self.error is not None and not self.bitwise:
            parts.append(f"off float64 by {self.error:.1e}, eager by {self.eager_error:.1e}")
        return "; ".join(parts)


def compare(compiled: Results, eager: Results, truth: Results, graph: int = 1) -> list[Line]:
    """Return a line per tensor; `truth`, the float64 results, may lack some or all of them."""
    largest = max(
        (_scale(t) for t in eager.values() if t is not None and _is_double(t)), default=0.0
    )
    lines = (
        _line(graph, name, compiled.get(name), eager[name], truth.get(name), largest)
        for name in eager
    )
    more = [_unlike(graph, name, "eager has none") for name in compiled if name not in eager]
    return [line for line in lines if line is not None] + more


def agree(compiled: Results, eager: Results, truth: Callable[[], Results]) -> bool:
    """Return whether all tensors agree; `truth` is called only if something differs."""
    if all(line.agrees for line in compare(compiled, eager, {})):
        return True
    return all(line.agrees for line in compare(compiled, eager, truth()))


# -- float64 --------------------------------------------------------------------------------------


class _Doubles(TorchFunctionMode):
    """Replaces each floating-point dtype that code names by float64."""

    def __torch_function__(
        self,
        func: AnyFunction,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        named = {key: _doubled(value) for key, value in (kwargs or {}).items()}
        if getattr(func, "__name__", "") in ("float", "half", "bfloat16"):
            return args[0].double()
        return func(*map(_doubled, args), **named)


def _doubled(value: object) -> object:
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


@contextmanager
def _double_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Doubles():
            yield
    finally:
        torch.set_default_dtype(before)


def in_double(
    function: AnyFunction,
    inputs: Sequence[Tensor],
    names: Sequence[str] = (),
    freed: Container[int] = (),
) -> tuple[Results, str]:
    """Return the results of eager in float64, or none and the reason."""
    raised = [x.detach().double() if x.is_floating_point() else x for x in inputs]
    wanted = [x.requires_grad for x in inputs]
    raised = [x.requires_grad_(w) if w else x for x, w in zip(raised, wanted, strict=True)]
    try:
        return collect_results(_double_default()(function), raised, names, freed), ""
    except Exception as error:  # an operation without float64, a dtype that the code insists on
        return {}, f"it does not run in float64: {type(error).__name__}: {error}".partition("\n")[0]


# -- one tensor -----------------------------------------------------------------------------------


def _is_double(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.complex128)


def _line(
    graph: int,
    name: str,
    compiled: Tensor | None,
    eager: Tensor | None,
    truth: Tensor | None,
    largest: float,
) -> Line | None:
    if compiled is None or eager is None:
        return None if compiled is eager else _unlike(graph, name, "one of them has none")
    if (compiled.shape, compiled.dtype, compiled.device) != (
        eager.shape,
        eager.dtype,
        eager.device,
    ):
        return _unlike(graph, name, f"{compiled.dtype} {tuple(compiled.shape)}")
    dtype = str(eager.dtype).removeprefix("torch.")
    if torch.equal(_bits(compiled), _bits(eager)):
        return Line(graph, name, dtype, True, 0.0, 0.0, 0, None, None, True)
    if not eager.is_floating_point() and not eager.is_complex():
        gap = float((compiled.double() - eager.double()).abs().max())
        return Line(graph, name, dtype, False, gap, math.inf, None, None, None, False)
    return _floating(graph, name, dtype, compiled, eager, truth, largest)


def _unlike(graph: int, name: str, what: str) -> Line:
    return Line(graph, name, what, False, math.inf, math.inf, None, None, None, False)


def _floating(
    graph: int,
    name: str,
    dtype: str,
    compiled: Tensor,
    eager: Tensor,
    truth: Tensor | None,
    largest: float,
) -> Line:
    """Compare two floating-point tensors that differ.

    largest: the largest float64 value of any result. float64 results may cancel large values, and
    no wider dtype can measure that error, so their roundings are relative to it.
    """
    gap = _gap(compiled, eager)
    rel = float((gap / _wide(eager).abs().clamp_min(1e-300)).max())
    error = eager_error = None
    room = ROUNDINGS * torch.finfo(eager.dtype).eps
    scale = max(_scale(eager), largest) if _is_double(eager) else _scale(eager)
    agrees = float(gap.max()) <= room * scale
    if truth is not None and truth.shape == eager.shape:
        scale = _scale(truth) or 1.0
        error = float(_gap(compiled, truth).max()) / scale
        eager_error = float(_gap(eager, truth).max()) / scale
        if not _is_double(eager):  # a float64 run of float64 code is no more exact than eager
            agrees = error <= TIMES_EAGER * eager_error + room
    ulp = _ulp(compiled, eager)
    return Line(graph, name, dtype, False, float(gap.max()), rel, ulp, error, eager_error, agrees)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _gap(a: Tensor, b: Tensor) -> Tensor:
    """Return |a - b|: 0 if both are nan or the same infinity, infinite if only one of them is."""
    wide_a, wide_b = _wide(a), _wide(b)
    same = (wide_a == wide_b) | (wide_a.isnan() & wide_b.isnan())
    return torch.where(same, 0.0, (wide_a - wide_b).abs().nan_to_num(math.inf, math.inf))


def _scale(tensor: Tensor) -> float:
    finite = _wide(tensor).abs()
    finite = finite[finite.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _bits(tensor: Tensor) -> Tensor:
    """Return the bit patterns as integers, so that 0.0 and -0.0 differ and a nan equals itself."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or tensor.element_size() not in _INTEGERS:
        return tensor
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _ulp(a: Tensor, b: Tensor) -> int | None:
    """Return the largest distance in units of the last place; None for complex numbers."""
    if a.is_complex():
        return None
    steps = [bits.long() for bits in (_bits(a), _bits(b))]
    lowest = -(1 << (8 * a.element_size() - 1))
    # Floats are sign and magnitude: negative patterns are mirrored, so that integers are ordered.
    ordered = [torch.where(x < 0, lowest - x, x) for x in steps]
    finite = a.isfinite() & b.isfinite()
    if not finite.any():
        return None
    return int((ordered[0] - ordered[1])[finite].double().abs().max())
