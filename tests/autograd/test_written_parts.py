"""Writes through as_strided of a view: one graph where they stay inside it, with eager's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda y: y.view(-1),
    "rows": lambda y: y[1:],
    "a row": lambda y: y[2],
    "turned": lambda y: y.t(),
    "other shape": lambda y: y.view(2, -1),
    "itself": lambda y: y,
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "first two": lambda v: v.as_strided((2,), (1,)).add_(1),
    "every other": lambda v: v.as_strided((2,), (2,)).mul_(3),
    "placed": lambda v: v.as_strided((2,), (1,), 9).fill_(7),
}


@covered(view=VIEWS, write=WRITES, grad=[False, True], backend=["aot_eager", "native"])
def test_inside_the_view(view: str, write: str, grad: bool, backend: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        v = VIEWS[view](y)
        WRITES[write](v)
        return y * 3, v + 1

    x = torch.arange(12.0).reshape(3, 4).requires_grad_(grad)
    options = {"on_error": "raise"}
    tagged = jitmagic.jit(program, backend=backend, fullgraph=True, options=options)
    got, want = tagged(x), program(x)
    torch.testing.assert_close(got, want)
    if grad:
        losses = [sum(r.square().sum() for r in results) for results in (got, want)]
        torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in losses))


@pytest.mark.filterwarnings("ignore:.*:jitmagic.errors.FallbackWarning")
def test_writes_outside_of_the_view_run_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[1:].as_strided((2,), (1,), 0).fill_(9)
        return y

    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(jitmagic.jit(program)(x), program(x))
