"""What a trial shows, eager and compiled, and whether it is the same.

Values are judged by eager and by float64: equal to a few ulp, or no further from the float64 result
than twice eager's own distance and a few ulp of the largest element. Where the call is
ill-conditioned (the gradient of a saturated softmax), eager's distance is a matter of luck: it
counts as at least what an ulp of the arguments changes in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import jitmagic

from .trials import Trial, copied

__all__ = ["differs", "examine", "examine_together"]

_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
_ULP = 16


@dataclass
class Seen:
    """`parts`: (what, value) in a fixed order; `raised`: the type and text of an exception."""

    parts: list[tuple[str, Any]] = field(default_factory=list)
    raised: str | None = None


def examine(trial: Trial, backend: str = "native") -> str | None:
    """What compiled code does that eager does not, in words; None when nothing.

    The compiled function is called twice: the second call finds the code made.
    """
    eager = _observe(trial.call, trial)
    compiled = jitmagic.jit(lambda *arguments: trial.call(*arguments), backend=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(1 if eager.raised else 2):
            found = _difference(eager, _observe(compiled, trial), trial)
            if found is not None:
                return f"{trial.label}: {found}"
    told = [str(w.message) for w in caught if issubclass(w.category, jitmagic.FallbackWarning)]
    told = [text for text in told if "INTERNAL ASSERT FAILED" not in text]  # a bug of torch's own
    return f"{trial.label}: falls back: {told[0]}" if told else None


def examine_together(trials: Sequence[Trial], backend: str = "native") -> list[str]:
    """As `examine` of each, in one compiled function where eager takes them all: compiling is what
    costs. What raises, or shows what is not told of many, is called alone.
    """
    asked: list[Trial] = []
    joined: list[Trial] = []
    for trial in trials:
        (joined if _can_join(trial) else asked).append(trial)
    asked += [_joint(joined)] if len(joined) > 1 else joined
    found = [examine(trial, backend) for trial in asked]
    return [text for text in found if text is not None]


def _can_join(trial: Trial) -> bool:
    """Its float64 judge too, or the others would have none."""
    seen, wide = _observe(trial.call, trial), _observe(trial.call, trial, wide=True)
    if seen.raised or wide.raised or len(seen.parts) != len(wide.parts):
        return False
    layouts = {value[2] for what, value in seen.parts if what.endswith("its dtype")}
    return layouts <= {torch.strided} and not any(w == "backward raises" for w, _ in seen.parts)


def _joint(trials: Sequence[Trial]) -> Trial:
    """One after the other, each in a line of its own, so that a graph break is between two."""
    names = [f"given_{n}" for n in range(len(trials))]
    lines = "".join(f"    made_{n} = call_{n}(*{name})\n" for n, name in enumerate(names))
    results = ", ".join(f"made_{n}" for n in range(len(trials)))
    space: dict[str, Any] = {f"call_{n}": trial.call for n, trial in enumerate(trials)}
    exec(f"def joint({', '.join(names)}):\n{lines}    return [{results}]\n", space)
    return Trial(
        space["joint"],
        tuple(trial.arguments for trial in trials),
        any(trial.grads for trial in trials),
        "; ".join(trial.label for trial in trials),
        joint=True,
    )


def differs(trial: Trial, compiled: Callable[..., Any]) -> str | None:
    """What one call of a compiled function does that eager does not."""
    found = _difference(_observe(trial.call, trial), _observe(compiled, trial), trial)
    return None if found is None else f"{trial.label}: {found}"


def _observe(call: Callable[..., Any], trial: Trial, wide: bool = False, ulps: int = 0) -> Seen:
    """`ulps`: by how many of its own dtype each number is moved, up or down, if `wide`."""
    seen = Seen()
    arguments = copied(_widened(trial.arguments, ulps) if wide else trial.arguments)
    given = [v for v in tree_flatten(arguments)[0] if isinstance(v, Tensor)]
    torch.manual_seed(7)
    try:
        made = call(*arguments)
        results, structure = tree_flatten(made)
    except Exception as error:
        seen.raised = f"{type(error).__name__}: {error}".partition("\nException raised from")[0]
        return seen
    seen.parts.append(("structure", str(structure)))
    memory = {t.untyped_storage()._cdata: n for n, t in enumerate(given) if _has_memory(t)}
    for n, value in enumerate(results):
        seen.parts += _portrait(f"result {n}", value)
        if _has_memory(value):
            shared = memory.get(value.untyped_storage()._cdata)
            seen.parts.append((f"result {n} shares memory of argument", shared))
    if trial.grads:
        seen.parts += _gradients(made if trial.joint else [made], given)
    for n, t in enumerate(given):
        seen.parts += _portrait(f"argument {n} afterwards", t)
    seen.parts.append(("random numbers afterwards", torch.rand(2)))
    return seen


def _widened(arguments: Any, ulps: int) -> Any:
    signs = torch.Generator().manual_seed(5)

    def moved(t: Tensor, dtype: torch.dtype) -> Tensor:
        sign = torch.randint(2, t.shape, generator=signs).to(t.device) * 2 - 1
        return t * (1 + sign * ulps * torch.finfo(dtype).eps)

    def widen(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _WIDE.get(value, value)
        if isinstance(value, Tensor) and value.layout is torch.strided and value.dtype in _WIDE:
            wide = value.detach().to(_WIDE[value.dtype])
            wide = moved(wide, value.dtype) if ulps else wide
            return wide.requires_grad_(value.requires_grad)
        return value

    return tree_map(widen, arguments)


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.numel() > 0


def _gradients(made: list[Any], given: list[Tensor]) -> Iterator[tuple[str, Any]]:
    """`made`: the results of each call; the seeds of a call do not depend on the others."""
    ends: list[Tensor] = []
    seeds: list[Tensor] = []
    for results in made:
        generator = torch.Generator().manual_seed(3)
        own = [v for v in tree_flatten(results)[0] if isinstance(v, Tensor) and v.requires_grad]
        drawn = [torch.randn(v.shape, dtype=torch.float64, generator=generator) for v in own]
        seeds += [seed.to(v.device, v.dtype) for seed, v in zip(drawn, own, strict=True)]
        ends += own
    leaves = [t for t in given if t.requires_grad]
    if not ends or not leaves or any(v.layout is not torch.strided for v in ends):
        return
    try:
        made = torch.autograd.grad(ends, leaves, seeds, allow_unused=True)
    except RuntimeError as error:
        yield "backward raises", str(error)
        return
    for n, gradient in enumerate(made):
        # no layout is promised of a gradient
        if isinstance(gradient, Tensor) and gradient.layout is torch.strided:
            gradient = gradient.resolve_conj().contiguous()
        yield from _portrait(f"gradient {n}", gradient)


def _portrait(what: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Tensor):
        yield what, value if isinstance(value, float | complex) else repr(value)
        return
    yield f"{what}, its dtype", (value.dtype, value.device, value.layout)
    yield f"{what}, its shape", tuple(value.shape)
    yield f"{what}, its autograd", (value.requires_grad, value.is_conj(), value.is_neg())
    if value.layout is torch.strided and value.numel():
        strides = zip(value.stride(), value.shape, strict=True)
        yield f"{what}, its strides", [s for s, n in strides if n > 1]
    data = value.detach() if value.layout is torch.strided else value.detach().to_dense()
    yield what, data.resolve_conj().resolve_neg().clone()


def _difference(eager: Seen, ours: Seen, trial: Trial) -> str | None:
    if eager.raised or ours.raised:
        same = eager.raised == ours.raised
        return None if same else f"raises {ours.raised!r}, eager {eager.raised!r}"
    if [what for what, _ in eager.parts] != [what for what, _ in ours.parts]:
        ends = eager.parts[-1][1], ours.parts[-1][1]
        return f"shows {len(ours.parts)} things, eager {len(eager.parts)}; the last: {ends}"
    for n, ((what, wanted), (_, have)) in enumerate(zip(eager.parts, ours.parts, strict=True)):
        if not _alike(wanted, have) and not _as_exact(n, wanted, have, trial):
            return f"{what} is {have}, in eager {wanted}"
    return None


def _alike(wanted: Any, have: Any) -> bool:
    if isinstance(wanted, float | complex):
        wanted, have = torch.tensor(wanted), torch.tensor(have)
    if not isinstance(wanted, Tensor):
        return bool(wanted == have)
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return torch.equal(wanted, have)
    tolerance = 4 * torch.finfo(wanted.dtype).eps
    return torch.allclose(wanted, have, rtol=tolerance, atol=0.0, equal_nan=True)


def _as_exact(n: int, wanted: Any, have: Any, trial: Trial) -> bool:
    """No further from the float64 result, at the worst element, than twice eager's distance."""
    if not isinstance(wanted, Tensor) or not (wanted.is_floating_point() or wanted.is_complex()):
        return False
    exact = _observe(trial.call, trial, wide=True)
    if exact.raised or len(exact.parts) <= n or not isinstance(exact.parts[n][1], Tensor):
        return False
    truth = exact.parts[n][1]
    if truth.shape != wanted.shape or not torch.equal(wanted.isnan(), have.isnan()):
        return False
    kept = wanted.isfinite() & have.isfinite()
    if not torch.equal(wanted[~kept].nan_to_num(), have[~kept].nan_to_num()):
        return False
    off = [(t[kept].to(truth.dtype) - truth[kept]).abs().max().item() for t in (wanted, have)]
    size = truth[kept].abs().max().item()
    slack = _ULP * torch.finfo(wanted.dtype).eps * size
    if off[1] <= 2 * off[0] + slack:
        return True
    nearby = _observe(trial.call, trial, wide=True, ulps=1)
    if nearby.raised or nearby.parts[n][1].shape != truth.shape:
        return False
    moved = (nearby.parts[n][1][kept] - truth[kept]).abs().max().item()
    return off[1] <= 2 * max(off[0], moved) + slack
