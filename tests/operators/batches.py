"""Many cases in one compiled function, each compared with eager, and with float64 where they round.

Comes in: cases of edges.py and a tier. Goes out: `Finding`s and a `Tally`. What eager takes is
compiled together, since compiling is what costs, and split apart where something differs; what
eager refuses is called alone and has to be refused in the same words.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

import jitmagic
from tests.fuzz.means import MeansBySums

from .edges import Case
from .judge import unlike
from .recipes import Operand, built

__all__ = ["DeviceLost", "Finding", "Tally", "examine_cases", "run_eagerly"]

LARGEST = 1 << 16  # elements of a result: larger ones are arguments that ask for memory
_ROWS = 3  # of the usual operand, by 4
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_WIDE |= dict.fromkeys((torch.float16, torch.bfloat16), torch.float64)
Wrap = Callable[[Any], Any]


class DeviceLost(BaseException):
    """A GPU's context is gone: nothing that this process does on it means anything."""


@dataclass(frozen=True)
class Finding:
    case: Case
    text: str

    def __str__(self) -> str:
        return " ".join(f"{self.case}: {self.text}".split())[:700]


@dataclass
class Tally:
    """How the cases ended. `fell_back`: visibly, to eager; `skipped`: reason -> how many."""

    cases: int = 0
    refused: int = 0
    fell_back: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.refused += other.refused
        self.fell_back += other.fell_back
        for reason, count in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count


@dataclass
class Seen:
    """A case run: its leaves and results, or what was raised forwards or backwards."""

    results: list[Any] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    raised: str | None = None
    backward_raised: str | None = None


def examine_cases(
    cases: Sequence[Case], wrap: Wrap, tally: Tally, device: str = "cpu"
) -> Iterator[Finding]:
    """What the compiled cases do otherwise than eager."""
    together: list[tuple[Case, Seen]] = []
    alone: list[tuple[Case, Seen]] = []
    for case in cases:
        reason = _why_skipped(case, device)
        if reason is not None:
            tally.skip(reason)
            continue
        eager = _eagerly(case, device)
        if any(map(_reaches_beyond, eager.results)):
            tally.skip(_BEYOND)
            continue
        tally.cases += 1
        tally.refused += eager.raised is not None
        by_itself = eager.raised or eager.backward_raised or _draws(case)
        (alone if by_itself else together).append((case, eager))
    yield from _examine_together(together, wrap, tally, device)
    for case, eager in alone:
        found = _difference_alone(case, eager, wrap, tally, device)
        if found is not None:
            yield Finding(case, found)


def _why_skipped(case: Case, device: str) -> str | None:
    """Calls whose results would not fit, told by torch's meta functions; known differences."""
    for prefix, dtypes, why in _KNOWN:
        if case.op.startswith(prefix) and case.dtype in dtypes:
            return why
    if case.operands and not any(mark in case.call for mark in (*_HUGE, "_reshape_alias")):
        return None
    try:
        results = _function([case], "meta")(*(built(part, "meta") for part in case.operands))
    except NotImplementedError:
        return "no meta function that tells the result's size"
    except Exception:  # eager refuses it too, or the comparison tells
        return None
    made = [t for t in tree_flatten(results)[0] if isinstance(t, Tensor)]
    if "_reshape_alias" in case.op and any(map(_reaches_beyond, made)):
        return _BEYOND
    sizes = [t.numel() for t in made]
    return "a result too large" if max(sizes, default=0) > LARGEST else None


_BEYOND = "a view of memory beyond its own"


def _reaches_beyond(view: Any) -> bool:
    """Eager computes how much memory a view needs in 64 bits, and a sum that overflows fits; it
    does not check the strides of an operator that is not for programs. Reading such a view is a
    crash, or an error about symbolic sizes.
    """
    if not isinstance(view, Tensor) or view.layout is not torch.strided:
        return False
    shape = view.shape
    if min(shape, default=1) <= 0:
        return False
    last = view.storage_offset() + sum(
        (extent - 1) * step for extent, step in zip(shape, view.stride(), strict=True)
    )
    return (last + 1) * view.element_size() > view.untyped_storage().nbytes()


_POINTWISE = ("softshrink_backward",)  # torch has no tag on it
_HALVES = (torch.float16, torch.bfloat16)
_STATISTICS = "statistics of 16-bit numbers are kept in float32"
_KNOWN = tuple(
    (f"aten.{name}", _HALVES, _STATISTICS)
    for name in (
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_native_batch_norm",
    )
)
_HUGE = tuple(str(n) for n in (2**31 - 1, 2**31, 2**62)) + ("300", "1e+30")


def _draws(case: Case) -> bool:
    return "dropout" in case.op and "backward" not in case.op


# -- running --------------------------------------------------------------------------------------


def _function(cases: Sequence[Case], device: str) -> Any:
    """One function of all operands that returns what each case gives; DEVICE is for factories."""
    names: list[str] = []
    lines: list[str] = []
    for n, case in enumerate(cases):
        own = [f"t{n}_{k}" for k in range(len(case.operands))]
        lines.append(f"    r{n} = {case.text(own)}\n")
        names += own
    results = ", ".join(f"r{n}" for n in range(len(cases)))
    text = f"def f({', '.join(names)}):\n{''.join(lines)}    return [{results}]\n"
    space: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan, "DEVICE": device}
    exec(text, space)
    return space["f"]


def _leaves(case: Case, device: str, wide: bool = False) -> list[Tensor]:
    parts = [_widened(part) for part in case.operands] if wide else case.operands
    leaves = [built(part, device) for part in parts]
    if not wide:
        return [_with_grad(leaf) for leaf in leaves]
    narrow = [built(part, device) for part in case.operands]
    exact = [leaf.to(part.dtype) for leaf, part in zip(narrow, leaves, strict=True)]
    return [_with_grad(leaf) for leaf in exact]


def _with_grad(leaf: Tensor) -> Tensor:
    return leaf.requires_grad_(leaf.is_floating_point() or leaf.is_complex())


def _widened(part: Operand) -> Operand:
    return replace(part, dtype=_WIDE.get(part.dtype, part.dtype))


def run_eagerly(case: Case, device: str) -> None:
    """The call as it is, for what it may do to the process."""
    _eagerly(case, device)


def _eagerly(case: Case, device: str, wide: bool = False) -> Seen:
    if wide:
        case = replace(case, call=_wide_text(case.call))
    return _observe(_function([case], device), [case], [_leaves(case, device, wide)])[0]


def _wide_text(call: str) -> str:
    for narrow, wide in _WIDE.items():
        call = call.replace(str(narrow), str(wide))
    return call


def _observe(f: Any, cases: Sequence[Case], leaves: Sequence[list[Tensor]]) -> list[Seen]:
    """Run f once; of one case errors are kept, of several they are raised."""
    single = len(cases) == 1
    torch.manual_seed(5)
    try:
        given = _completed(f(*(leaf for own in leaves for leaf in own)))
        seen = [
            Seen(tree_flatten(part)[0], [None] * len(own))
            for part, own in zip(given, leaves, strict=True)
        ]
    except Exception as error:
        if not single:
            _words(error)
            raise
        return [Seen(raised=_words(error))]
    try:
        _completed(_backward(seen, leaves))
    except RuntimeError as error:
        if not single:
            raise
        seen[0].backward_raised = _words(error)
    return seen


def _completed(given: Any) -> Any:
    """A kernel's assertion is told by a later call of anyone: that is to blame eager or ours."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return given


def _words(error: Exception) -> str:
    if "CUDA error" in str(error):
        raise DeviceLost(str(error)) from error
    return f"{type(error).__name__}: {error}".partition("\nException raised from")[0]


def _backward(seen: Sequence[Seen], leaves: Sequence[list[Tensor]]) -> None:
    ends = [t for s in seen for t in s.results if isinstance(t, Tensor) and t.requires_grad]
    starts = [leaf for own in leaves for leaf in own if leaf.requires_grad]
    seeds = [_seed(t) for t in ends]
    made = torch.autograd.grad(ends, starts, seeds, allow_unused=True) if ends and starts else ()
    gradients = iter(made or [None] * len(starts))
    for s, own in zip(seen, leaves, strict=True):
        s.gradients = [next(gradients) if leaf.requires_grad else None for leaf in own]


def _seed(end: Tensor) -> Tensor:
    values = torch.arange(1, end.numel() + 1, dtype=torch.float64, device=end.device) % 5 - 1.5
    return values.reshape(end.shape).to(end.dtype)


# -- comparing ------------------------------------------------------------------------------------


def _examine_together(
    rows: Sequence[tuple[Case, Seen]], wrap: Wrap, tally: Tally, device: str
) -> Iterator[Finding]:
    """Compile the cases as one function; halve it where that fails or falls back as a whole."""
    if not rows:
        return
    cases = [case for case, _ in rows]
    try:
        ours = _compiled(cases, wrap, device)
    except Exception:
        if len(rows) == 1:
            found = _difference_alone(*rows[0], wrap, tally, device)
            if found is not None:
                yield Finding(cases[0], found)
            return
        middle = len(rows) // 2
        yield from _examine_together(rows[:middle], wrap, tally, device)
        yield from _examine_together(rows[middle:], wrap, tally, device)
        return
    for (case, eager), seen in zip(rows, ours, strict=True):
        found = _difference(case, eager, seen, device)
        if found is None:
            continue
        alone = _difference_alone(case, eager, wrap, tally, device) if len(rows) > 1 else found
        yield Finding(case, alone or f"only beside others: {found}")


def _compiled(cases: Sequence[Case], wrap: Wrap, device: str) -> list[Seen]:
    """As `_observe`; one that falls back to eager says so, which raises where warnings do."""
    leaves = [_leaves(case, device) for case in cases]
    try:
        with warnings.catch_warnings():
            if len(cases) > 1:
                warnings.simplefilter("error", jitmagic.FallbackWarning)
            return _observe(wrap(_function(cases, device)), cases, leaves)
    finally:
        jitmagic.reset()


def _difference_alone(case: Case, eager: Seen, wrap: Wrap, tally: Tally, device: str) -> str | None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", jitmagic.FallbackWarning)
        (ours,) = _compiled([case], wrap, device)
    tally.fell_back += any(issubclass(w.category, jitmagic.FallbackWarning) for w in told)
    return _difference(case, eager, ours, device)


def _difference(case: Case, eager: Seen, ours: Seen, device: str) -> str | None:
    if eager.raised != ours.raised:
        return f"raises {ours.raised!r}, eager {eager.raised!r}"
    if eager.backward_raised != ours.backward_raised:
        return f"backward raises {ours.backward_raised!r}, eager {eager.backward_raised!r}"
    if len(eager.results) != len(ours.results):
        return f"{len(ours.results)} results, eager {len(eager.results)}"
    if "empty" in case.op:
        eager, ours = (_without_values(seen) for seen in (eager, ours))
    rows = [("result", n, *pair) for n, pair in enumerate(zip(eager.results, ours.results))]
    rows += [("gradient", n, *p) for n, p in enumerate(zip(eager.gradients, ours.gradients))]
    if len(eager.gradients) != len(ours.gradients):
        return f"{len(ours.gradients)} gradients, eager {len(eager.gradients)}"
    if "empty" in case.op and (told := _layouts_differ(eager.results, ours.results)):
        return told
    others: list[Seen] = []
    for what, n, wanted, have in rows:
        if unlike(wanted, have, None) is None:
            continue
        others = others or [
            *(_eagerly(case, device, wide=True), _eagerly(_narrowed(case), device)),
            *(_in_vectors(case, device), _in_scalars(case, device)),
            _with_means_of_sums(case, device),
        ]
        parts = (seen.results if what == "result" else seen.gradients for seen in others)
        exact, single, *again = (of[n] if n < len(of) else None for of in parts)
        told = unlike(wanted, have, exact, again, single=single)
        if told is not None:
            return f"{what} {n}: {told}"
    return None


def _layouts_differ(wanted: Sequence[Any], have: Sequence[Any]) -> str | None:
    """Of new memory all but the values is told."""
    for w, h in zip(wanted, have, strict=True):
        if isinstance(w, Tensor) and isinstance(h, Tensor) and w.stride() != h.stride():
            return f"strides {h.stride()}, eager {w.stride()}"
    return None


def _narrowed(case: Case) -> Case:
    """A case of float64 in float32."""
    parts = tuple(
        replace(part, dtype=torch.float32) if part.dtype is torch.float64 else part
        for part in case.operands
    )
    return replace(case, operands=parts, call=case.call.replace("torch.float64", "torch.float32"))


def _in_scalars(case: Case, device: str) -> Seen:
    """An elementwise call of eager on one element at a time, which is no vector."""
    shape = (_ROWS, 4)
    if not _is_elementwise(case.op) or any(part.shape != shape for part in case.operands):
        return Seen()
    f = _function([case], device)
    wholes = [built(part, device) for part in case.operands]
    seeds = _seed(torch.empty(shape, dtype=torch.float64, device=device))
    rows = []
    for row, column in itertools.product(range(_ROWS), range(4)):
        at = slice(row, row + 1), slice(column, column + 1)
        leaves = [_with_grad(whole[at].clone()) for whole in wholes]
        results = tree_flatten(f(*leaves))[0]
        ends = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
        starts = [leaf for leaf in leaves if leaf.requires_grad]
        grown = [seeds[at].to(t.dtype) for t in ends]
        made = torch.autograd.grad(ends, starts, grown, allow_unused=True) if ends else ()
        gradients = iter(made or [None] * len(starts))
        rows.append((results, [next(gradients) if t.requires_grad else None for t in leaves]))
    columns = [zip(*part, strict=True) for part in zip(*rows, strict=True)]
    return Seen(*([_joined(column, shape) for column in part] for part in columns))


@cache
def _is_elementwise(name: str) -> bool:
    family, packet, overload = (*name.split("."), "", "")[:3]
    if family != "aten":
        return False
    tags = getattr(getattr(torch.ops.aten, packet), overload).tags
    return torch.Tag.pointwise in tags or packet in _POINTWISE


def _joined(column: Sequence[Any], shape: tuple[int, ...]) -> Any:
    fits = all(isinstance(part, Tensor) and part.numel() == 1 for part in column)
    return torch.cat([part.reshape(1) for part in column]).reshape(shape) if fits else None


def _in_vectors(case: Case, device: str) -> Seen:
    """Eager's first rows of an elementwise call, where many more follow."""
    many = replace(case, operands=tuple(map(_taller, case.operands)))
    seen = _eagerly(many, device)
    seen.results = [_first_rows(t) for t in seen.results]
    seen.gradients = [_first_rows(t) for t in seen.gradients]
    return seen


def _taller(part: Operand) -> Operand:
    return replace(part, shape=(_ROWS * 16, 4)) if part.shape == (_ROWS, 4) else part


def _first_rows(value: Any) -> Any:
    tall = isinstance(value, Tensor) and value.shape == (_ROWS * 16, 4)
    return value[:_ROWS] if tall else None


def _with_means_of_sums(case: Case, device: str) -> Seen:
    """Eager where only the order in which a kernel took the numbers makes a NaN of a mean: which
    one that is hangs on the dtype, the device and the launch.
    """
    with MeansBySums() as means:
        seen = _eagerly(case, device)
    return seen if means.acted else Seen()


def _without_values(seen: Seen) -> Seen:
    blank = [torch.zeros_like(t) if isinstance(t, Tensor) else t for t in seen.results]
    return Seen(results=blank)
