"""What a user could see of a program: a portrait of each of its calls, eager or compiled."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.graph.autocast_mode import read_autocast
from jitmagic.guards.state import read_autocast_details
from jitmagic.trace.residual_torch_calls import bring_thread_to

from . import inputs
from .program import BACKWARDS, load

__all__ = ["OVERFLOWN", "Seen", "observe"]

OVERFLOWN = "left out, as the loss is not finite"


@dataclass
class Seen:
    """`parts`: (where, plain value or tensor) in a fixed order; `warned`: jitmagic's warnings;
    `unordered`: torch's of kernels whose order differs from run to run, where they are asked for.
    """

    parts: list[tuple[str, Any]] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)


def observe(text: str, wrap: Callable[[Any], Any], mode: Any = None) -> Seen:
    """Load the program afresh and run its calls with the callable that `wrap` makes of it."""
    space = load(text)
    seen = Seen()
    target = space["build"]()
    if isinstance(target, nn.Module):
        target = target.to(inputs.DEVICE)
    run = wrap(target)
    for number, make in enumerate(space["CALLS"]):
        arguments = make()
        torch.manual_seed(50 + number)
        around = mode or contextlib.nullcontext()
        with warnings.catch_warnings(record=True) as caught, _autocast_kept(), around:
            warnings.simplefilter("always")
            _observe_call(run, arguments, f"call {number}", seen, space.get("BACKWARD", "sum"))
        seen.warned += [str(w.message) for w in caught if _is_ours(w)]
        texts = [str(w.message) for w in caught]
        seen.unordered += [text for text in texts if "deterministic implementation" in text]
    _portray(_state_of(space, target), "state", seen.parts, {})
    return seen


@contextlib.contextmanager
def _autocast_kept() -> Iterator[None]:
    """Programs may enter autocast and never leave it: that ends with the call."""
    before = read_autocast(), read_autocast_details()
    try:
        yield
    finally:
        bring_thread_to(*before)


def _is_ours(warning: Any) -> bool:
    return issubclass(warning.category, jitmagic.FallbackWarning)


def _state_of(space: dict[str, Any], target: Any) -> dict[str, Any]:
    state = {name: space[name] for name in ("STATE", "COUNT")} | {"BOX": vars(space["BOX"])}
    if isinstance(target, nn.Module):
        keep = {n: v for n, v in vars(target).items() if n in ("count", "flag", "last")}
        gradients = {n: p.grad for n, p in target.named_parameters()}
        keep |= {"buffers": dict(target.named_buffers()), "gradients": gradients}
        return state | keep | {"params": dict(target.named_parameters())}
    owner = getattr(target, "__self__", None)
    if owner is not None:
        return state | {"self": vars(owner)}
    cells = getattr(target, "__closure__", None) or ()
    return state | {"cells": [cell.cell_contents for cell in cells]}


def _observe_call(
    run: Any, arguments: tuple[Any, ...], where: str, seen: Seen, backward: str
) -> None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = run(*arguments)
    except Exception as error:
        told = str(error).partition("\nException raised from")[0]  # what follows are C++ frames
        seen.parts.append((f"{where}: exception", f"{type(error).__name__}: {told}"))
        result = None
    seen.parts.append((f"{where}: printed", printed.getvalue()))
    seen.parts.append((f"{where}: random", torch.rand(2)))
    seen.parts.append(
        (f"{where}: grad mode", (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    )
    autocast = torch.is_autocast_enabled("cpu"), *read_autocast_details()
    seen.parts.append((f"{where}: autocast mode", autocast))
    identities: dict[Any, int] = {}
    _portray(list(arguments), f"{where}: arguments", seen.parts, identities)
    _portray(result, f"{where}: result", seen.parts, identities)
    _backward(result, arguments, where, seen, backward)


def _backward(result: Any, arguments: tuple[Any, ...], where: str, seen: Seen, way: str) -> None:
    outputs = [t for t in _tensors(result) if _has_history(t) and not t.is_inference()]
    if not outputs:
        return
    leaves = [t for t in _tensors(arguments) if _is_wanted(t)]
    try:
        losses = [_weighed(t) for t in outputs]
        ends = outputs if way == "between results" else leaves
        if not torch.isfinite(sum(losses).detach()):
            seen.parts.append((f"{where}: backward", OVERFLOWN))
            return
        for n, step in enumerate(_STEPS[way](losses, ends)):
            for m, made in enumerate(step()):
                _portray(made, f"{where}: gradient {n}.{m}", seen.parts, {})
    except RuntimeError as error:  # a saved tensor was written to: eager notices, a copy need not
        seen.parts.append((f"{where}: backward", f"raised {str(error)[:30]}"))
        return
    for n, t in enumerate(leaves):
        _portray(t.grad, f"{where}: gradient {n}", seen.parts, {})


def _has_history(t: Tensor) -> bool:
    try:
        return t.requires_grad and not t.is_leaf
    except RuntimeError:  # a view whose base was written in a way that autograd forbids
        return False


def _is_wanted(t: Tensor) -> bool:
    return t.requires_grad and not _has_history(t)


_Steps = list[Callable[[], Any]]


def _in_sum(losses: list[Tensor], leaves: list[Tensor]) -> _Steps:
    return [lambda: sum(losses).backward() or ()]


def _of_each(losses: list[Tensor], leaves: list[Tensor]) -> _Steps:
    return [lambda loss=loss: loss.backward(retain_graph=True) or () for loss in losses]


def _spending(losses: list[Tensor], leaves: list[Tensor]) -> _Steps:
    return [lambda loss=loss: loss.backward() or () for loss in reversed(losses)]


def _twice(losses: list[Tensor], leaves: list[Tensor]) -> _Steps:
    first: _Steps = [lambda: losses[-1].backward(retain_graph=True) or ()]
    return first + _in_sum(losses, leaves)


def _per_end(losses: list[Tensor], ends: list[Tensor]) -> _Steps:
    def of(loss: Tensor, end: Tensor) -> Any:
        (made,) = torch.autograd.grad(loss, end, retain_graph=True, allow_unused=True)
        return [made.contiguous()] if made is not None else []  # no layout is promised of it

    return [lambda a=a, b=b: of(a, b) for a in losses for b in ends]


_WAYS = (_in_sum, _of_each, _spending, _twice, _per_end, _per_end)
_STEPS = dict(zip(BACKWARDS, _WAYS, strict=True))


def _weighed(t: Tensor) -> Tensor:
    real = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    weights = torch.linspace(0.5, 1.5, real.numel(), dtype=torch.float64).reshape(real.shape)
    return (real.double() * weights.to(t.device)).sum()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for part in value for t in _tensors(part)]
    return []


def _portray(
    value: Any, where: str, parts: list[tuple[str, Any]], identities: dict[Any, int]
) -> None:
    """Append what can be seen of a value; tensors and containers are numbered by identity."""
    if isinstance(value, Tensor):
        _portray_tensor(value, where, parts, identities)
    elif isinstance(value, dict):
        parts.append((f"{where}: type", f"{type(value).__name__} {list(value)}"))
        for key, part in value.items():
            _portray(part, f"{where}[{key!r}]", parts, identities)
    elif isinstance(value, (list, tuple)):
        number = identities.setdefault(("object", id(value)), len(identities))
        mark = number if isinstance(value, list) else ""
        parts.append((f"{where}: type", f"{type(value).__name__} {len(value)} {mark}"))
        for n, part in enumerate(value):
            _portray(part, f"{where}[{n}]", parts, identities)
    else:
        text = repr(value) if not hasattr(value, "__next__") else repr(list(value))
        parts.append((f"{where}: value", text.partition(" at 0x")[0]))


def _portray_tensor(
    t: Tensor, where: str, parts: list[tuple[str, Any]], identities: dict[Any, int]
) -> None:
    parts.append((f"{where}: dtype", (t.dtype, t.device)))
    parts.append((f"{where}: shape", tuple(t.shape)))
    if t.numel():
        significant = tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1)
        parts.append((f"{where}: stride", significant))
    try:
        parts.append((f"{where}: requires_grad", (t.requires_grad, t.is_leaf)))
    except RuntimeError as error:  # a view whose base was written in a way that autograd forbids
        parts.append((f"{where}: requires_grad", f"raised {str(error)[:30]}"))
    parts.append((f"{where}: class", (type(t), t.is_inference(), t.is_conj(), t.is_neg())))
    same = identities.setdefault(("tensor", id(t)), len(identities))
    storage = t.untyped_storage()._cdata
    memory = identities.setdefault(("memory", storage), len(identities))
    # of memory that nothing else shows, nobody can tell where a tensor starts in it
    start = identities.setdefault(("start", storage), t.storage_offset() if t.numel() else 0)
    parts.append(
        (f"{where}: alias", (same, memory, t.storage_offset() - start if t.numel() else 0))
    )
    identities[("kept", len(identities))] = id(t)  # ids stay in step with the count
    seen = t.detach().resolve_conj().resolve_neg()
    parts.append((f"{where}: value", seen.to("cpu", copy=True) if seen.numel() else None))
