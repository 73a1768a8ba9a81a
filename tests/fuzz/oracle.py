"""The oracle: everything that a user could see of a program, eager and compiled, compared.

`difference` names the first thing that is not alike, or None. Values may differ where another legal
rounding differs as well: by eager's own error against float64, or by what eager does when each
result is off by one ulp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from . import inputs
from .means import MeansBySums
from .observe import OVERFLOWN, Seen, observe
from .program import Program
from .rounded_once import RoundedOnce

__all__ = ["Difference", "GpuLost", "examine"]

_FLOAT_OPS_KEPT = (
    "clone",
    "copy",
    "cat",
    "stack",
    "gather",
    "index",
    "where",
    "sort",
    "max",
    "min",
)

_ADD_UP = tuple(
    (
        "sum mean var std norm linalg logsumexp mm addmm bmm baddbmm mv dot native_layer_norm "
        "_softmax _log_softmax native_batch_norm _native_batch_norm native_group_norm cumsum "
        "nansum prod cumprod _fused_rms_norm logcumsumexp nll_loss _scaled_dot avg_pool index_add "
        "scatter_add _cdist trace"
    ).split()
)

# Written in place, rounded by formulas of which vectors and scalars may have different ones.
_IN_PLACE = frozenset(
    f"{name}_"
    for name in (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
        "acosh atanh erf erfc erfinv lgamma digamma sigmoid logit pow rsqrt hypot sinc xlogy elu"
    ).split()
)

_CHECKS_OF_DEAD_CODE = ("NotImplementedError",)
_BEYOND = "are out of bounds for storage of size"  # eager's result lies in what it shrank
_ONE_NODE = "are one autograd node"  # said where gradients between results cannot be had


@dataclass(frozen=True)
class Difference:
    """`kind` is coarse (shrinking keeps it), `text` says what was found where."""

    kind: str
    text: str


class GpuLost(Exception):
    """Eager's own kernel failed an assertion, which leaves the process without its GPU."""


def examine(program: Program, wrap: Callable[[Any], Any]) -> Difference | None:
    """What the compiled program does that eager does not; None when nothing."""
    text = program.source()
    try:
        eager = observe(text, lambda f: f)
    except torch.AcceleratorError as error:
        raise GpuLost from error
    ours = observe(text, wrap)
    judges = _Judges(program)
    found = difference(eager, ours, judges)
    if any(_is_nonsense(value) for where, value in eager.parts if where.endswith("exception")):
        return None
    if found is None and ours.warned:
        return Difference("fallback", ours.warned[0])
    if found is not None and _BEYOND in found.text:
        return Difference("fallback", f"it reads memory beyond a tensor's elements ({found.text})")
    if found is not None and program.backward == "between results" and ": gradient" in found.text:
        said = [text for text in ours.warned if _ONE_NODE in text] or _backward_raises(program)
        return Difference("fallback", said[0]) if said else found
    if found is not None and inputs.DEVICE != "cpu" and found.kind.endswith("value"):
        order = _unordered(text)
        return Difference("fallback", f"{order} ({found.text})") if order else found
    return found


def _unordered(text: str) -> str | None:
    """What torch says of the first kernel of the program whose order differs from run to run: of
    products in 16 bits one order overflows, another does not.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        said = observe(text, lambda f: f).unordered
    finally:
        torch.use_deterministic_algorithms(False)
    return said[0].partition(".")[0] if said else None


def _backward_raises(program: Program) -> list[str]:
    """What eager's own backward to the arguments raises: between results, it may pass that by."""
    seen = observe(replace(program, backward="sum").source(), lambda f: f)
    return [str(value) for where, value in seen.parts if where.endswith("backward")]


def _is_nonsense(error: str) -> bool:
    """Shrinking took the definition of a name away."""
    return error.startswith(("NameError", "UnboundLocalError"))


def difference(eager: Seen, ours: Seen, judges: _Judges) -> Difference | None:
    for n, (where, wanted) in enumerate(eager.parts):
        if n >= len(ours.parts):
            return Difference("parts", f"{where} is missing")
        have_where, have = ours.parts[n]
        kind = where.rpartition(": ")[2]
        group = where.split(": ")[1].split("[")[0] if ": " in where else where
        if where.endswith("backward") and str(wanted).startswith("raised"):
            return None  # ours may have saved a copy of what was written to
        if where != have_where and wanted == OVERFLOWN:
            return None  # eager's sum in 16 bits is infinite; ours was judged against float64
        if where != have_where:
            exc = "exception" in where or "exception" in have_where
            if "exception" in where and str(wanted).startswith(_CHECKS_OF_DEAD_CODE):
                return Difference("fallback", f"dead code that raises in eager: {wanted}")
            raised = have if "exception" in have_where else wanted
            told = (have, raised) if exc else ("", "")
            return Difference(
                "exception" if exc else "parts",
                f"{have_where} ({told[0]}) instead of {where} ({told[1]})",
            )
        if isinstance(wanted, Tensor) and isinstance(have, Tensor):
            if wanted.dtype == have.dtype and wanted.shape == have.shape:
                if not judges.accept(n, wanted, have):
                    return Difference(f"{group} {kind}", f"{where}\n{_first_unlike(wanted, have)}")
                continue
        if isinstance(wanted, Tensor) or isinstance(have, Tensor) or wanted != have:
            if kind == "value" and judges.is_uncertain(n, wanted, have):
                continue
            return Difference(f"{group} {kind}", f"{where}: {have} instead of {wanted}")
    if len(ours.parts) > len(eager.parts):
        return Difference("parts", f"{ours.parts[len(eager.parts)][0]} is too much")
    return None


def _first_unlike(wanted: Tensor, have: Tensor) -> str:
    unlike = ~_close(wanted, have)
    at = unlike.nonzero()[:4].tolist()
    rows = [
        f"  at {i}: {have[tuple(i)].item()!r} instead of {wanted[tuple(i)].item()!r}" for i in at
    ]
    return f"{int(unlike.sum())} of {wanted.numel()} elements differ\n" + "\n".join(rows)


def _close(a: Tensor, b: Tensor) -> Tensor:
    """Elements that are alike without asking a judge: equal, both nan, or a few ulp apart."""
    if not (a.is_floating_point() or a.is_complex()):
        return a == b
    tolerance = 4 * torch.finfo(a.dtype).eps
    return torch.isclose(a, b, rtol=tolerance, atol=0.0, equal_nan=True)


def _as_number(text: Any, dtype: torch.dtype = torch.float32) -> Tensor | None:
    """The float that a Python value's text is; `.item()` gives such from single precision."""
    try:
        return torch.tensor(float(text), dtype=dtype) if "." in text else None
    except (TypeError, ValueError):
        return None


class _Judges:
    """Runs of the program with other roundings, made when first asked for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._wide: Seen | None = None
        self._noisy: list[Seen] | None = None
        self._better: list[Seen] | None = None

    def accept(self, n: int, wanted: Tensor, have: Tensor) -> bool:
        if bool(_close(wanted, have).all()):
            return True
        if self._by_float64(n, wanted, have):
            return True
        return self._by_noise(n, wanted, have) or self._by_better_kernels(n, wanted, have)

    def is_uncertain(self, n: int, wanted: Any, have: Any) -> bool:
        """Whether a printed or Python value depends on roundings."""
        numbers = _as_number(wanted), _as_number(have)
        if None not in numbers and self._by_float64(n, *numbers):
            return True
        return any(n < len(s.parts) and s.parts[n][1] != wanted for s in self._noise())

    def _by_float64(self, n: int, wanted: Tensor, have: Tensor) -> bool:
        if self._wide is None:
            self._wide = observe(self.program.wide(), lambda f: f)
        judge = self._wide.parts[n][1] if n < len(self._wide.parts) else None
        judge = _as_number(judge, torch.float64) if isinstance(judge, str) else judge
        if not isinstance(judge, Tensor) or judge.shape != wanted.shape:
            return False
        if wanted.is_complex() and judge.is_complex():
            wanted, have, judge = map(torch.view_as_real, (wanted, have, judge))
        if judge.dtype != torch.float64:  # the place of a maximum, whether a number is zero
            whole = not wanted.is_floating_point() and judge.dtype == wanted.dtype
            return whole and bool(((have == wanted) | (have == judge)).all())
        # oneDNN's gelu of infinity is nan, beside numbers that are 1e-4 off: an element that is not
        # finite must be what float64 or eager makes of it, and says nothing of the others
        exact = _close(wanted, have) | _close(judge.to(have.dtype), have)
        finite = judge.isfinite() & wanted.isfinite() & have.isfinite()
        error = torch.where(finite, (wanted.double() - judge).abs(), 0.0).amax()
        floor = 4 * torch.finfo(wanted.dtype).eps * judge.abs()
        ours = (have.double() - judge).abs()
        return bool((exact | finite & (ours <= 2 * error + floor)).all())

    def _by_noise(self, n: int, wanted: Tensor, have: Tensor) -> bool:
        spread = torch.zeros(wanted.shape, dtype=torch.float64)
        for seen in self._noise():
            other = seen.parts[n][1] if n < len(seen.parts) else None
            if not isinstance(other, Tensor) or other.shape != wanted.shape:
                return True  # even the shape hangs on roundings
            spread = torch.maximum(spread, _apart(wanted, other))
        apart = _apart(wanted, have)
        alike = apart <= 8 * spread.amax()
        if not wanted.is_floating_point():  # e.g. the bits of a number: how far says nothing
            alike |= spread > 0
        return bool(alike.all()) and bool(spread.amax() > 0)

    def _by_better_kernels(self, n: int, wanted: Tensor, have: Tensor) -> bool:
        """Whether it differs only where eager's own kernels lose what theirs keeps."""
        if self._better is None:
            text = self.program.source()
            modes = MeansBySums(), RoundedOnce(_ADD_UP)
            runs = [(mode, observe(text, lambda f: f, mode)) for mode in modes]
            self._better = [seen for mode, seen in runs if mode.acted]
        others = [seen.parts[n][1] for seen in self._better if n < len(seen.parts)]
        others = [o for o in others if isinstance(o, Tensor) and o.shape == wanted.shape]
        return any(bool((_close(wanted, have) | _close(o, have)).all()) for o in others)

    def _noise(self) -> list[Seen]:
        if self._noisy is None:
            text = self.program.source()
            self._noisy = [observe(text, lambda f: f, _Noise(seed)) for seed in range(4)]
        return self._noisy


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Distance by element; nan and infinities that are alike are at 0, others at infinity."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    found = (a - b).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    return torch.where(same, 0.0, found)


class _Noise(TorchDispatchMode):
    """Results of floating-point operations move by up to one ulp: roundings eager might make.

    Of operations that add up many elements, the elements do: another order rounds in other places.
    In float64 the steps of torch's formula for such an operation do too: log_softmax of a likely
    class is 0 less a logarithm that is off by half an ulp of 1, however small, and no wider float
    measures eager's own error.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        made = None
        if name.startswith(_ADD_UP):
            args = tree_map(self._moved, args)
            made = self._by_formula(func, args, kwargs or {})
        if made is None:
            made = func(*args, **(kwargs or {}))
        if name in _IN_PLACE and made.is_floating_point():
            return made.mul_(self._factor(made))
        aliases = any(r.alias_info is not None for r in func._schema.returns)
        rounds = isinstance(made, Tensor) and (made.is_floating_point() or made.is_complex())
        if aliases or not rounds or name.startswith(_FLOAT_OPS_KEPT) or not made.numel():
            return made
        if made._is_zerotensor():  # it has no memory: torch crashes when it is read
            return made
        return made * self._factor(made)

    def _by_formula(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """The result of a float64 operation step by step, each with its noise; None: no formula."""
        formula = decomposition_table.get(func)
        is_wide = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if formula is None or not is_wide or func._schema.is_mutable:
            return None
        with self:
            made = formula(*args, **kwargs)
        return made if isinstance(made, Tensor) else None

    def _moved(self, value: Any) -> Any:
        is_real = isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1
        if not is_real or value._is_zerotensor():
            return value
        # What an expanded tensor repeats is rounded alike at each addition, which adds up.
        once = tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())
        return value * self._factor(value[once])

    def _factor(self, made: Tensor) -> Tensor:
        steps = torch.randint(-1, 2, made.shape, generator=self.generator)
        factor = 1 + steps.to(torch.float64) * torch.finfo(made.dtype).eps
        return factor.to(made.device, made.real.dtype)
