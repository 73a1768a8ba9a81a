"""Blocks of inference mode inside of compiled functions: one graph, and results of eager's kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of

torch.manual_seed(0)
NET = nn.Linear(4, 4)
SEEN = [torch.zeros(())]


def a_block(x: Tensor) -> Any:
    y = x * 2
    with torch.inference_mode():
        z = NET(y)
        z.mul_(2)
        inside = z.is_inference(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y, z, inside, z.is_inference(), y.is_inference(), torch.is_grad_enabled()


@torch.inference_mode()
def decorated(x: Tensor) -> Any:
    return NET(x).relu(), x


def with_a_decorated_callee(x: Tensor) -> Any:
    y, _ = decorated(x)
    return y + 1, y[0]


def views_of_both_kinds(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
        of_x, of_y = x[1:], y.t()
        y.add_(1)
    return of_x, of_y, y[0], y.clone()


def written_inside(x: Tensor) -> Any:
    with torch.inference_mode():
        x.mul_(3)
        with torch.no_grad():
            y = x.sum()
    return x, y


def kept_elsewhere(x: Tensor) -> Any:
    with torch.inference_mode(True):
        SEEN[0] = x.cos()
    return {"last": SEEN[0]}


def nested(x: Tensor) -> Any:
    with torch.no_grad(), torch.inference_mode():
        y = x.exp()
        with torch.inference_mode():
            z = y + x
    return y, z, (x * NET.weight).sum()


def gradients_behind_it(x: Tensor) -> Any:
    with torch.inference_mode():
        y = NET(x)
    return NET(x).sum(), y


def written_behind_it(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
    y.add_(1)
    return y


def saved_behind_it(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
    return (NET.weight * y).sum()


def detached_behind_it(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
    return y.detach(), y.data


def a_leaf_of_it(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
    return y.requires_grad_()


def gradients_inside(x: Tensor) -> Any:
    with torch.inference_mode(), torch.enable_grad():
        y = NET(x)
    return y, y.requires_grad


def left_for_a_while(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
        with torch.inference_mode(False):
            z = x * 2
    return y, z


def a_break_inside(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x + 1
        jitmagic.graph_break()
        z = y * 2
    return y, z, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def an_error_inside(x: Tensor) -> Any:
    try:
        with torch.inference_mode():
            raise ValueError("no")
    except ValueError:
        y = NET(x).sum()
    return y, torch.is_grad_enabled()


WHOLE = [
    a_block,
    decorated,
    with_a_decorated_callee,
    views_of_both_kinds,
    written_inside,
    kept_elsewhere,
    nested,
    gradients_behind_it,
    an_error_inside,
]
CUT = [
    written_behind_it,
    saved_behind_it,
    detached_behind_it,
    a_leaf_of_it,
    gradients_inside,
    left_for_a_while,
    a_break_inside,
]


def described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.is_inference(), value.requires_grad, value.detach().tolist(), value.stride()
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    return [described(item) for item in value] if isinstance(value, tuple | list) else value


def answers(run: Any) -> list[Any]:
    found: list[Any] = []
    for number in range(3):
        x = torch.arange(16.0).reshape(4, 4) + number
        try:
            found.append(described((run(x), x)))
        except RuntimeError as error:
            found.append(str(error))
        with torch.inference_mode():
            try:
                found.append(described(run(torch.ones(4, 4))))
            except RuntimeError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [*WHOLE, *CUT], ids=lambda program: program.__name__)
def test_as_eager(program: Any, backend: str) -> None:
    eager = answers(program)
    run = jitmagic.jit(program, backend=backend)
    ours = answers(run)
    assert close(ours, eager), (ours, eager)
    run = jitmagic.jit(program, backend=backend)
    try:
        run(torch.ones(4, 4))
    except RuntimeError:
        return
    assert (counts_of(run).breaks == 0) is (program in WHOLE)


def close(ours: Any, eager: Any) -> bool:
    """Numbers within rounding, all else equal."""
    if isinstance(eager, list | tuple):
        return len(ours) == len(eager) and all(map(close, ours, eager))
    if isinstance(eager, dict):
        return all(close(ours[key], eager[key]) for key in eager)
    if isinstance(eager, float):
        return bool(ours == pytest.approx(eager, rel=1e-5, abs=1e-6))
    return bool(ours == eager)


def test_results_share_memory_as_in_eager() -> None:
    @jitmagic.jit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            y = x * 2
            return y, y[0]

    whole, row = both(torch.ones(2, 3))
    with torch.inference_mode():
        whole.add_(1)
    assert row.tolist() == [3.0, 3.0, 3.0]


def test_inference_tensors_are_refused_outside_in_each_call() -> None:
    """Also where it requires grad by now, so that nothing would change."""
    with torch.inference_mode():
        x = torch.ones(2)
        x.requires_grad_()
    compiled = jitmagic.jit(lambda x, wanted: x.requires_grad_(wanted) * 2)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor"):
            compiled(x, True)
        with torch.inference_mode():
            assert compiled(x, True).tolist() == [2, 2]
    assert compiled(x.clone(), True).tolist() == [2, 2]
