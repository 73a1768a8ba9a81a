"""Each sample of torch's database again with another size, through one handle (dynamic=True).

Comes in: the options of `python -m tests.operators --sizes`. Goes out: what compiled code does that
eager does not, and how many of the samples needed a second compile, with what asked for it. A
sample is resized by one of its sizes, wherever that is a dimension of a tensor, or an int that the
call takes: the first change that eager accepts is taken. What no other size fits does not count.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_leaves, tree_map

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED

from .compare import differs
from .trials import OPERATORS, Trial, copied, name_of, trials
from .whole import backend_of, hangs_on_data

__all__ = ["resized", "resized_samples", "tried"]

_CHANGES: tuple[Callable[[int], int], ...] = (
    lambda n: n + 1,
    lambda n: n - 1,
    lambda n: 2 * n,
    lambda n: n + 3,
)
_LARGEST = 2000  # elements of a tensor


def resized_samples(options: argparse.Namespace) -> int:
    """Run it; the exit code is 0 where nothing differs and nine in ten need no second compile."""
    warnings.filterwarnings("ignore")
    # The samples of random operators set the seed around the call, which is no part of it.
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    shard, of = map(int, options.shard.split("/"))
    count, wrong, again = 0, 0, Counter[str]()
    operators: dict[str, bool] = {}
    for op in OPERATORS[shard::of]:
        if not name_of(op).startswith(options.only):
            continue
        for dtype in options.dtypes.split(","):
            for trial in trials(op, "call", getattr(torch, dtype), options.samples, options.device):
                other = resized(trial)
                if other is None:
                    continue
                count += 1
                found, why = tried(trial, other, backend_of(options.tier))
                jitmagic.reset()
                if found is not None:
                    wrong += 1
                    print(" ".join(found.split())[:400], flush=True)
                operators[name_of(op)] = operators.get(name_of(op), True) and why is None
                if why is not None:
                    again[f"{name_of(op)}: {why}"] += 1
    for why, samples in again.most_common():
        print(f"{samples:4} compiled again: {why}"[:300])
    once = sum(operators.values())
    share = 1 - sum(again.values()) / max(count, 1)
    print(
        f"{count} samples, {wrong} differences, {share:.1%} without a second compile; "
        f"{once} of {len(operators)} operators in every sample"
    )
    return 1 if wrong or share < 0.9 else 0


def tried(trial: Trial, other: Trial, backend: str) -> tuple[str | None, str | None]:
    """What differs from eager, and why the second sample was compiled again."""
    compiled = jitmagic.jit(
        lambda *arguments: trial.call(*arguments), backend=backend, dynamic=True
    )
    found = differs(trial, compiled)
    before = _compiles(compiled)
    found = found or differs(other, compiled)
    more = _compiles(compiled)[len(before) :]
    found = found or differs(trial, compiled)
    return found, _reason(compiled, more) if more else None


def _compiles(compiled: Any) -> list[Any]:
    """Of frames, not of kernels for other sizes."""
    handle = handle_of(compiled)
    assert handle is not None
    return [record for record in handle.journal if record.result("trace") is not None]


def _reason(compiled: Any, more: list[Any]) -> str:
    if any(record.outcome != COMPILED for record in more):
        return f"not compiled: {more[-1].outcome}".partition("\n")[0][:160]
    made = [one for record in _compiles(compiled) for one in record.result("trace").specialized]
    if made:
        where = made[0].where
        text = where.text if where is not None else ""
        return f"{made[0].name} is a constant: {made[0].why} {text}"
    missed = more[0].occasion.missed
    return missed[0][1].what if missed else "no variant"


# --------------------------------------------------------------------------- another size


def resized(trial: Trial) -> Trial | None:
    """The sample with one of its sizes changed; None where there is none, or eager refuses all."""
    if any(t.layout is not torch.strided for t in _tensors(trial.arguments)):
        return None
    if not _accepted(trial):
        return None
    if hangs_on_data(trial):
        return None
    sizes = sorted({n for t in _tensors(trial.arguments) for n in t.shape if n > 1}, reverse=True)
    for size in sizes:
        for change in _CHANGES:
            if change(size) < 2:
                continue
            for ints in (False, True):
                made = _with_size(trial, size, change(size), ints)
                if made is not None and _accepted(made):
                    return made
    return None


def _with_size(trial: Trial, old: int, new: int, ints: bool) -> Trial | None:
    """`ints`: numbers that the call takes change too. None where there would be more pivots, or
    fewer: which those may be the sizes decide, and LAPACK follows them without a look.
    """
    if any(t.dtype is torch.int32 and old in t.shape for t in _tensors(trial.arguments)):
        return None

    def change(value: Any) -> Any:
        if isinstance(value, Tensor):
            return _stretched(value, old, new)
        if ints and type(value) is int and value == old:
            return new
        return value

    made = tree_map(change, trial.arguments)
    if any(t.numel() > _LARGEST for t in _tensors(made)):
        return None
    return replace(trial, arguments=made, label=f"{trial.label}, {old} as {new}")


def _stretched(t: Tensor, old: int, new: int) -> Tensor:
    """Its numbers, over again where there are not enough; each a bit another one, so that what is
    regular stays so.
    """
    made = t.detach()
    for dim in range(t.dim()):
        if t.shape[dim] == old:
            made = made.index_select(dim, torch.arange(new, device=t.device) % old)
    if made.shape != t.shape and (made.is_floating_point() or made.is_complex()):
        made = made + 0.01 * torch.rand(made.shape, device=made.device).to(made.dtype)
    if made.shape != t.shape and not t.is_contiguous():
        made = made.mT.contiguous().mT if made.dim() > 1 else made.repeat_interleave(2)[::2]
    return made.requires_grad_(t.requires_grad)


def _accepted(trial: Trial) -> bool:
    try:
        trial.call(*copied(trial.arguments))
    except Exception:
        return False
    return True


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
