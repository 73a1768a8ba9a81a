"""What torch.func does to torch's operators inside of a tagged function, and around one.

Comes in: the options of `python -m tests.operators --func`. Each sample is called under vmap (all
its floating tensors batched), grad (by all of them) and jvp. Inside, the function that applies the
transform is tagged; around, the function that it is applied to. Goes out: wrong results, the
reasons why graphs break, and for each transform the share of operators of which every sample is one
graph. What eager refuses does not count, and what hangs on data is counted apart, as in whole.py.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import jitmagic

from .compare import differs
from .trials import OPERATORS, Trial, name_of, trials
from .whole import backend_of, hangs_on_data, shortened

__all__ = ["POSITIONS", "TRANSFORMS", "Count", "count_trial", "transformed_samples"]

POSITIONS = ("inside", "around")
Function = Callable[..., Any]


# -- programs --------------------------------------------------------------------------------------


def _vmapped(call: Function, places: Sequence[int], leaves: Sequence[Any]) -> Any:
    dims = tuple(0 if n in places else None for n in range(len(leaves)))
    return vmap(call, in_dims=dims, randomness="same")(*leaves)


def _differentiated(call: Function, places: Sequence[int], leaves: Sequence[Any]) -> Any:
    return grad(call, argnums=tuple(places))(*leaves)


def _pushed(call: Function, places: Sequence[int], leaves: Sequence[Any]) -> Any:
    def of_moved(*moved: Tensor) -> Any:
        values = list(leaves)
        for place, value in zip(places, moved, strict=True):
            values[place] = value
        return call(*values)

    primals = tuple(leaves[n] for n in places)
    return jvp(of_moved, primals, tuple(p * 0.5 for p in primals))


def _total(made: Any) -> Tensor:
    """The sum of the floating results, as grad needs a scalar."""
    tensors = [made] if isinstance(made, Tensor) else list(made)
    parts = [t.abs() if t.is_complex() else t for t in tensors if _is_float(t)]
    return sum(part.sum() for part in parts)  # type: ignore[return-value]


def _is_float(value: Any) -> bool:
    dense = isinstance(value, Tensor) and value.layout is torch.strided
    return dense and (value.is_floating_point() or value.is_complex())


TRANSFORMS: dict[str, Function] = {"vmap": _vmapped, "grad": _differentiated, "jvp": _pushed}


def _call_of(trial: Trial) -> tuple[Function, list[Any]]:
    """A function of the sample's leaves, in a line of Python like that of a user."""
    leaves, spec = tree_flatten(trial.arguments)
    names = [f"v{n}" for n in range(len(leaves))]
    text = _text(tree_unflatten(list(map(_Name, names)), spec))
    space: dict[str, Any] = {"call": trial.call}
    exec(f"def sample({', '.join(names)}):\n    return call(*{text})\n", space)
    return space["sample"], leaves


class _Name(str):
    def __repr__(self) -> str:
        return str(self)


def _text(value: Any) -> str:
    return repr(tree_map(lambda one: one, value))


def _program(trial: Trial, transform: str) -> tuple[Function, Trial] | None:
    """The function that is transformed, and the trial of the plain program with its arguments."""
    call, leaves = _call_of(trial)
    places = [n for n, leaf in enumerate(leaves) if _is_float(leaf)]
    sparse = any(isinstance(v, Tensor) and v.layout is not torch.strided for v in leaves)
    if not places or sparse:
        return None
    leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    if transform == "vmap":
        leaves = [torch.stack([v, v]) if n in places else v for n, v in enumerate(leaves)]
    if transform == "grad":
        sample = call
        call = lambda *values: _total(sample(*values))  # noqa: E731
    apply = TRANSFORMS[transform]
    run = lambda *values: apply(call, places, values)  # noqa: E731
    around = lambda tagged: lambda *values: apply(tagged, places, values)  # noqa: E731
    made = replace(trial, call=run, arguments=tuple(leaves), grads=False)
    return _Around(call, around), made


@dataclass
class _Around:
    """The function under the transform, and the program for a tagged form of it."""

    function: Function
    program: Callable[[Function], Function]


# -- one trial -------------------------------------------------------------------------------------


@dataclass
class Count:
    """Operators by what their samples show, for one transform in one position."""

    tried: set[str] = field(default_factory=set)
    broken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    wrong: list[str] = field(default_factory=list)
    apart: set[str] = field(default_factory=set)

    @property
    def share(self) -> float:
        left = set().union(*self.broken.values()) if self.broken else set()
        return 1 - len(left) / max(len(self.tried), 1)


def count_trial(trial: Trial, transform: str, position: str, tier: str) -> str | None:
    """Why it is no graph, "wrong: ..." or "refused by eager"; None where all is well."""
    program = _program(trial, transform)
    if program is None:
        return "refused by eager"
    around, plain = program
    try:
        torch.manual_seed(7)
        plain.call(*plain.arguments)
    except Exception:
        return "refused by eager"
    reason, found = _tried(around, plain, position, tier, fullgraph=True)
    if reason is not None:
        _, found = _tried(around, plain, position, tier, fullgraph=False)
    if found is not None:
        return f"wrong: {found}"
    return reason


def _tried(
    around: Any, plain: Trial, position: str, tier: str, fullgraph: bool
) -> tuple[str | None, str | None]:
    """Why there is no graph, and what differs from eager."""
    jitmagic.reset()

    def tag(function: Function) -> Function:
        return jitmagic.jit(function, backend=backend_of(tier), fullgraph=fullgraph)  # type: ignore

    if position == "inside":
        compiled = tag(lambda *values: plain.call(*values))
    else:
        tagged = tag(lambda *values: around.function(*values))
        compiled = around.program(tagged)
    settled = replace(plain, call=_settled(plain.call))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = differs(settled, _settled(compiled))
        if found is not None and _is_rounding(plain, compiled):
            found = None
    if position == "around" and (why := _run_by_operation(tagged)):
        return f"run by operation: {why}", found
    told = [str(w.message) for w in caught if issubclass(w.category, jitmagic.FallbackWarning)]
    if found is not None and "raises 'Unsupported: " in found:
        return shortened(found.partition("raises 'Unsupported: ")[2]), None
    return (shortened(told[0]) if told else None), found


def _settled(run: Function) -> Function:
    """The results without their layouts: no layout is promised of a gradient or a tangent."""
    contiguous = lambda v: v.contiguous() if isinstance(v, Tensor) else v  # noqa: E731
    return lambda *values: tree_map(contiguous, run(*values))


def _is_rounding(plain: Trial, compiled: Function) -> bool:
    """Whether both give the same in float64: in a derivative, large terms may cancel."""
    wide = [v.double() if _is_float(v) and not v.is_complex() else v for v in plain.arguments]
    torch.manual_seed(7)
    wanted = plain.call(*wide)
    torch.manual_seed(7)
    try:
        torch.testing.assert_close(compiled(*wide), wanted, rtol=1e-9, atol=1e-11, equal_nan=True)
    except Exception:
        return False
    return True


def _run_by_operation(tagged: Function) -> str:
    """Why torch runs the graph of a function under a transform, call by call."""
    records = jitmagic.api.handle_of(tagged).journal.records
    reasons = [record.result("transforms") for record in records]
    # Then there is nothing to compile.
    return next((why for why in reasons if why and "are views of its inputs" not in why), "")


# -- all of them -----------------------------------------------------------------------------------


def transformed_samples(options: argparse.Namespace) -> int:
    """Run it; the exit code is 0 where nothing is wrong and at least 90 % are whole."""
    warnings.filterwarnings("ignore")
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    counts = {(t, p): Count() for t in TRANSFORMS for p in POSITIONS}
    for name, trial in _all_trials(options):
        for (transform, position), count in counts.items():
            reason = count_trial(trial, transform, position, options.tier)
            if reason == "refused by eager":
                continue
            if reason is not None and not reason.startswith("wrong") and _hangs(trial):
                count.apart.add(name)
                continue
            count.tried.add(name)
            if reason is not None and reason.startswith("wrong"):
                count.wrong.append(f"{transform} {position} {' '.join(reason.split())[:400]}")
                print(count.wrong[-1], flush=True)
            elif reason is not None:
                count.broken[reason].add(name)
    return _summary(counts)


def _hangs(trial: Trial) -> bool:
    try:
        return hangs_on_data(trial)
    except RuntimeError:  # eager refuses the sample without the transform
        return False


def _all_trials(options: argparse.Namespace) -> Iterator[tuple[str, Trial]]:
    shard, of = map(int, options.shard.split("/"))
    until = time.monotonic() + (options.seconds or math.inf)
    for op in OPERATORS[shard::of]:
        if not name_of(op).startswith(options.only) or time.monotonic() > until:
            continue
        for trial in trials(op, "call", torch.float32, options.samples, options.device):
            yield name_of(op), trial


def _summary(counts: dict[tuple[str, str], Count]) -> int:
    reasons: Counter[str] = Counter()
    for (transform, position), count in counts.items():
        for reason, names in sorted(count.broken.items(), key=lambda row: -len(row[1])):
            print(
                f"{len(names):4} {transform} {position}: {reason}\n     {', '.join(sorted(names))}"
            )
            reasons[reason] += len(names)
    for (transform, position), count in counts.items():
        print(
            f"{transform} {position}: {len(count.tried)} operators, {len(count.wrong)} wrong,"
            f" {count.share:.1%} one graph, {len(count.apart)} hang on data"
        )
    fine = all(not count.wrong and count.share >= 0.9 for count in counts.values())
    return 0 if fine else 1
