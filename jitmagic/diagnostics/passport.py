"""passport: whether the numbers of compiled code agree with eager's and with float64.

    jitmagic.passport(fn)(*args)   ->  Passport, readable as text; .save(path) writes JSON

Comes in: a function and a call of it, which is made once, with all its effects. Its graphs are
taken out with the tensors they are called with; each runs as eager, as compiled code and as eager
in float64, on copies. Goes out: a line per result, mutated input and gradient, and a verdict. What
is judged is the distance to float64: compiled code may round otherwise than eager, and may not be
farther from the truth than eager is, but for what is left of rounding at the size of the values.
Where that is so, the first operation is named up to which the results differ.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..api import handle_of, jit
from ..graph.node_meta import lines_of
from .cases import Answers, Case, Values, answers, cases_of, changed_options, with_outputs
from .words import here

__all__ = ["Line", "Passport", "passport"]

TIMES_EAGER = 4.0  # as far from float64 as eager is, at most
ROUNDINGS = 16.0  # of the largest value, which come on top of that
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Line:
    """One result, input as it was left, or gradient of one graph, compiled beside eager.

    abs, rel: the largest difference to eager, as it is and in parts of eager's value
    ulp: the same in units of the last place of the dtype; None for what is no floating point
    error, eager_error: largest difference to float64, in parts of the largest value there; None
    where there is no float64 to compare with
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
            parts += [f"{self.ulp} ulp"] if self.ulp is not None else []
        if self.error is not None and not self.bitwise:
            parts.append(f"from float64 {self.error:.1e}, eager {self.eager_error:.1e}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, repr=False)
class Passport:
    """The verdict of one call, and what it rests on.

    first: per graph that differs, the operation up to which the results first do, and its line
    notes: what could not be compared, and why
    """

    name: str
    lines: tuple[Line, ...]
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every number is as good as eager's."""
        return all(line.agrees for line in self.lines)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        wrong = [line for line in self.lines if not line.agrees]
        if wrong:
            return f"{len(wrong)} of {len(self.lines)} tensors differ from eager beyond rounding"
        if not self.lines:
            return "nothing was compiled, so there is nothing to compare"
        if all(line.bitwise for line in self.lines):
            return f"all {len(self.lines)} tensors are bitwise equal to eager's"
        return f"all {len(self.lines)} tensors agree with eager up to rounding"

    def save(self, path: str | Path) -> Path:
        """Write it as JSON; nan and inf are their names in quotes."""
        plain = {"verdict": self.verdict, "agrees": self.agrees, **asdict(self)}
        where = Path(path)
        where.write_text(json.dumps(_finite(plain), indent=1, allow_nan=False) + "\n")
        return where

    def __str__(self) -> str:
        rows = [f"{self.name}: {self.verdict}", *(f"  {line}" for line in self.lines)]
        rows += [f"  first differs at {place}" for place in self.first]
        return "\n".join([*rows, *(f"  note: {note}" for note in self.notes)])

    __repr__ = __str__


def passport(fn: Callable[..., Any], /, **options: Any) -> Callable[..., Passport]:
    """`passport(fn)(*args)`: call `fn` once and judge the numbers of its compiled code.

    `fn` may be plain or tagged; its options are kept unless others are given.
    """
    known = handle_of(fn)
    chosen = options or (changed_options(known.options) if known is not None else {})

    def run(*args: Any, **kwargs: Any) -> Passport:
        cases = cases_of(fn, args, kwargs)
        name = known.label if known is not None else getattr(fn, "__name__", type(fn).__name__)
        return _judged(name, cases, chosen)

    return run


def _judged(name: str, cases: Sequence[Case], options: Mapping[str, Any]) -> Passport:
    lines: list[Line] = []
    first: list[str] = []
    notes: list[str] = []
    for number, case in enumerate(cases, 1):
        found, why = _lines(number, case, options)
        lines += found
        notes += [f"graph {number}: {why}"] if why else []
        if not all(line.agrees for line in found):
            first.append(f"graph {number}: {_first_difference(case, options)}")
    return Passport(name, tuple(lines), tuple(first), tuple(notes))


def _lines(number: int, case: Case, options: Mapping[str, Any]) -> tuple[list[Line], str]:
    """Each tensor of a graph, and why there is no float64 to judge by, if there is none."""
    eager = answers(case.function(), case.inputs, case.names)
    compiled = _compiled(case, options)
    truth, why = _in_double(case)
    found = (_line(number, key, compiled[key], eager[key], truth.get(key)) for key in eager)
    return [line for line in found if line is not None], why


def _compiled(case: Case, options: Mapping[str, Any]) -> Answers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return answers(jit(case.function(), **options), case.inputs, case.names)


# -- float64 --------------------------------------------------------------------------------------


class _Doubles(TorchFunctionMode):
    """What names a floating-point dtype gets float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named = {key: _doubled(value) for key, value in (kwargs or {}).items()}
        if getattr(func, "__name__", "") in ("float", "half", "bfloat16"):
            return args[0].double()
        return func(*map(_doubled, args), **named)


def _doubled(value: Any) -> Any:
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


def _in_double(case: Case) -> tuple[Answers, str]:
    """What eager answers in float64, or nothing and why not."""
    if any(node.meta.get("random") for node in case.graph.nodes):
        return {}, "it draws random numbers, which are others in float64: compared with eager only"
    inputs = [x.detach().double() if x.is_floating_point() else x for x in case.inputs]
    wanted = [x.requires_grad for x in case.inputs]
    raised = [x.requires_grad_(w) if w else x for x, w in zip(inputs, wanted, strict=True)]
    try:
        return answers(_double_default()(case.function()), raised, case.names), ""
    except Exception as error:  # an operation without float64, a dtype that the code insists on
        return {}, f"it does not run in float64: {type(error).__name__}: {error}".partition("\n")[0]


# -- one tensor -----------------------------------------------------------------------------------


def _line(
    graph: int, name: str, ours: Tensor | None, eager: Tensor | None, truth: Tensor | None
) -> Line | None:
    if ours is None or eager is None:
        return None if ours is eager else _unlike(graph, name, "one of them has none")
    if (ours.shape, ours.dtype, ours.device) != (eager.shape, eager.dtype, eager.device):
        return _unlike(graph, name, f"{ours.dtype} {tuple(ours.shape)}")
    dtype = str(eager.dtype).removeprefix("torch.")
    if torch.equal(_bits(ours), _bits(eager)):
        return Line(graph, name, dtype, True, 0.0, 0.0, 0, None, None, True)
    if not eager.is_floating_point() and not eager.is_complex():
        gap = float((ours.double() - eager.double()).abs().max())
        return Line(graph, name, dtype, False, gap, math.inf, None, None, None, False)
    return _floating(graph, name, dtype, ours, eager, truth)


def _unlike(graph: int, name: str, what: str) -> Line:
    return Line(graph, name, what, False, math.inf, math.inf, None, None, None, False)


def _floating(
    graph: int, name: str, dtype: str, ours: Tensor, eager: Tensor, truth: Tensor | None
) -> Line:
    gap = _gap(ours, eager)
    rel = float((gap / _wide(eager).abs().clamp_min(1e-300)).max())
    error = eager_error = None
    scale = _scale(eager)
    room = ROUNDINGS * torch.finfo(eager.dtype).eps
    agrees = float(gap.max()) <= room * scale
    if truth is not None and truth.shape == eager.shape:
        scale = _scale(truth) or 1.0
        error = float(_gap(ours, truth).max()) / scale
        eager_error = float(_gap(eager, truth).max()) / scale
        agrees = error <= TIMES_EAGER * eager_error + room
    ulp = _ulp(ours, eager)
    return Line(graph, name, dtype, False, float(gap.max()), rel, ulp, error, eager_error, agrees)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _gap(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|, zero where both are nan or one infinity, infinite where only one is."""
    wide_a, wide_b = _wide(a), _wide(b)
    same = (wide_a == wide_b) | (wide_a.isnan() & wide_b.isnan())
    return torch.where(same, 0.0, (wide_a - wide_b).abs().nan_to_num(math.inf, math.inf))


def _scale(tensor: Tensor) -> float:
    finite = _wide(tensor).abs()
    finite = finite[finite.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _bits(tensor: Tensor) -> Tensor:
    """As integers: 0.0 and -0.0 are two, a nan is itself."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or tensor.element_size() not in _INTEGERS:
        return tensor
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _ulp(a: Tensor, b: Tensor) -> int | None:
    """The largest distance in steps from one number of the dtype to the next."""
    if a.is_complex():
        return None
    steps = [bits.long() for bits in (_bits(a), _bits(b))]
    lowest = -(1 << (8 * a.element_size() - 1))
    ordered = [torch.where(x < 0, lowest - x, x) for x in steps]  # by value: -0.0 beside 0.0
    finite = a.isfinite() & b.isfinite()
    if not finite.any():
        return None
    return int((ordered[0] - ordered[1])[finite].double().abs().max())


# -- where it begins ------------------------------------------------------------------------------


def _first_difference(case: Case, options: Mapping[str, Any]) -> str:
    """The first operation whose value differs when the graph ends there: found by halving."""
    values = Values(case).values
    nodes = [
        node
        for node in case.graph.nodes
        if node.op not in ("placeholder", "output") and isinstance(values[node.name], Tensor)
    ]
    low, high = 0, len(nodes) - 1  # the first is in [low, high]; a gradient's may be none of them
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _differs_at(case, nodes[middle], options) else (middle + 1, high)
        )
    node = nodes[low]
    if not _differs_at(case, node, options):
        return "a gradient: all operations of the forward agree"
    lines = lines_of(node)
    return f"{node.name}" + (f", {here(lines[-1])}" if lines else "")


def _differs_at(case: Case, node: torch.fx.Node, options: Mapping[str, Any]) -> bool:
    part = with_outputs(case, [node.name])
    plain = Case(part.graph, tuple(x.detach() for x in part.inputs))
    found, _ = _lines(1, plain, options)
    return not all(line.agrees for line in found if line.name.startswith("result"))


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(one) for key, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value
