"""Eager against jitmagic on whole programs: outputs, gradients, mutations, RNG, text, exceptions.

A `Program` builds a fresh callable and the list of calls to make. `observe` runs it once and
records all that a user could see; `check` runs it plainly and compiled, and compares, with float64
as the judge of whose rounding is at fault. It also states what the compile must have made of it:
graphs, breaks, kernels.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

import jitmagic

from .counts import Counts, counts_of

_MANY = 16  # numbers of a tensor
Calls = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    """`graphs`, `breaks`, `kernels`: what the first call must have made (None: not stated)."""

    name: str
    build: Callable[[], Callable[..., Any]]
    calls: Callable[[], Calls]
    graphs: int | None = None
    breaks: int = 0
    kernels: int | None = None
    train: bool = False
    exact: bool = False  # compare bit by bit (integers, copies, pure routing)
    state: Callable[[], dict[str, Any]] | None = None  # module globals to save, reset and compare
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass
class Seen:
    """What one run showed."""

    results: list[Any]
    gradients: list[Any]
    inputs: list[Any]
    parameters: dict[str, Tensor]
    text: str
    state: dict[str, Any]
    random: Tensor
    made: Counts | None  # by the first call; None: it was not compiled


def _to(value: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        made = value.detach().clone(memory_format=torch.preserve_format)
        if dtype is not None and made.is_floating_point():
            made = made.to(dtype)
        return made.requires_grad_(value.requires_grad)
    return copy.deepcopy(value)


def _loss(result: Any) -> Tensor | None:
    tensors = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor) and t.requires_grad]
    # Weights make every element count differently, so that permuted gradients show.
    return (
        sum(
            (t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape)).sum()
            for t in tensors
        )
        if tensors
        else None
    )


def observe(
    program: Program, compile_: bool, dtype: torch.dtype | None = None, repeat: int = 2
) -> Seen:
    """Run the program's calls `repeat` times over, plainly or compiled."""
    torch.manual_seed(1234)
    target = program.build()
    if dtype is not None and isinstance(target, nn.Module):
        target = target.to(dtype)
    if isinstance(target, nn.Module):
        target.train(program.train)
    run = jitmagic.jit(target, **program.options) if compile_ else target
    calls = [tuple(_to(a, dtype) for a in call) for call in program.calls()] * repeat
    if program.state is not None:
        program.state()
    text = io.StringIO()
    results: list[Any] = []
    gradients: list[Any] = []
    made: Counts | None = None
    torch.manual_seed(99)
    with contextlib.redirect_stdout(text):
        for call in calls:
            results.append(_call(run, call))
            made = made or (counts_of(run) if compile_ else None)
            loss = _loss(results[-1])
            if loss is not None:
                loss.backward()
            gradients.append([a.grad.clone() for a in call if _has_grad(a)])
    parameters = {}
    if isinstance(target, nn.Module):
        parameters = {**dict(target.named_buffers()), **dict(target.named_parameters())}
        gradients += [p.grad for p in target.parameters() if p.grad is not None]
    state = program.state() if program.state is not None else {}
    return Seen(
        tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, results),
        gradients,
        [list(call) for call in calls],
        {name: t.detach().clone() for name, t in parameters.items()},
        text.getvalue(),
        state,
        torch.rand(4),
        made,
    )


def _has_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_leaf and value.grad is not None


def _call(run: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    try:
        return run(*call)
    except Exception as error:
        return type(error), str(error)


def compare(eager: Any, ours: Any, exact: Any, bitwise: bool, where: str) -> None:
    """Same structure, types, dtypes, strides; values within twice eager's own error, or equal. Of a
    few numbers which one is rounded worst is luck: there it is four times.
    """
    flat_eager, spec_eager = tree_flatten(eager)
    flat_ours, spec_ours = tree_flatten(ours)
    assert spec_eager == spec_ours, f"{where}: {spec_ours} instead of {spec_eager}"
    flat_exact = tree_flatten(exact)[0]
    assert len(flat_exact) == len(flat_eager), where
    for a, b, judge in zip(flat_eager, flat_ours, flat_exact, strict=True):
        if not isinstance(a, Tensor):
            same = a == b or (a != a and b != b)
            assert type(a) is type(b), f"{where}: {type(b)} instead of {type(a)}"
            assert same, f"{where}: {b!r} instead of {a!r}"
            continue
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        assert a.stride() == b.stride() or a.numel() < 2, f"{where}: {b.stride()} for {a.stride()}"
        if bitwise or not a.is_floating_point():
            assert torch.equal(a, b), f"{where}: {b} instead of {a}"
            continue
        error = (a.double() - judge.double()).abs()
        ours_error = (b.double() - judge.double()).abs()
        floor = torch.finfo(a.dtype).eps * 4 * judge.double().abs().amax().clamp(min=1e-3)
        times = 2 if a.numel() >= _MANY else 4
        bound = times * error.amax() + floor if a.numel() else 0
        assert (ours_error <= bound).all(), f"{where}: {ours_error.max()} > {bound}"


def assert_alike(ours: Sequence[Any], eager: Sequence[Any]) -> None:
    """Two lists of what was seen: tensors within rounding, all else equal."""
    assert len(ours) == len(eager)
    for mine, other in zip(ours, eager, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(mine, other)
        else:
            assert mine == other


def check(program: Program) -> None:
    """The program behaves as eager does, and compiles to what it says."""
    jitmagic.reset()
    eager = observe(program, compile_=False)
    judge = observe(program, compile_=False, dtype=torch.float64)
    ours = observe(program, compile_=True)
    assert ours.text == eager.text, program.name
    assert ours.state == eager.state, program.name
    assert torch.equal(ours.random, eager.random), f"{program.name}: RNG is elsewhere"
    for part in ("results", "gradients", "inputs", "parameters"):
        compare(
            getattr(eager, part),
            getattr(ours, part),
            getattr(judge, part) if not program.exact else getattr(eager, part),
            program.exact,
            f"{program.name}: {part}",
        )
    if program.graphs is not None:
        _check_counts(program, ours.made)


def _check_counts(program: Program, found: Counts | None) -> None:
    assert found is not None, f"{program.name}: no calls"
    assert program.graphs is not None
    kernels = found.kernels if program.kernels is None else program.kernels
    wanted = Counts(program.graphs, program.breaks, kernels)
    assert found == wanted, f"{program.name}: {found} instead of {wanted}"
