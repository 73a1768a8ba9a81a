"""torch.autograd.functional in traced code: torch's Python for it is inlined, so that its calls of
torch.autograd.grad are nodes of the one graph.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.functional as A
from torch import Tensor

from ..harness import Program, check

WHOLE = [
    ("jacobian", lambda x, w: A.jacobian(lambda r: torch.tanh(r @ w), x[0])),
    ("jacobian of two", lambda x, w: A.jacobian(lambda r, w: (r @ w).sin(), (x[0], w))),
    ("jacobian, create_graph", lambda x, w: A.jacobian(lambda w: (x @ w).sin(), w, True)),
    ("hessian", lambda x, w: A.hessian(lambda r: (r @ w).pow(3).sum(), x[0])),
    ("hessian, create_graph", lambda x, w: A.hessian(lambda w: (x @ w).sin().sum(), w, True)),
    ("vjp", lambda x, w: A.vjp(lambda x: (x @ w).tanh(), x, torch.ones_like(x @ w))),
    ("vjp, create_graph", lambda x, w: A.vjp(lambda w: (x @ w).tanh().sum(), w, None, True)[1]),
    ("jvp", lambda x, w: A.jvp(lambda x: (x @ w).tanh(), x, x.detach().cos())),
    ("hvp", lambda x, w: A.hvp(lambda x: (x @ w).tanh().sum(), x, x.detach().cos())),
    ("vhp", lambda x, w: A.vhp(lambda x: (x @ w).tanh().sum(), x, x.detach().cos())),
]
BROKEN = [
    ("vectorized", lambda x, w: A.jacobian(lambda r: torch.tanh(r @ w), x[0], vectorize=True)),
    ("forward mode", lambda x, w: A.jacobian(
        lambda r: torch.tanh(r @ w), x[0], vectorize=True, strategy="forward-mode"
    )),
    ("an output that no input leads to", lambda x, w: A.jacobian(lambda r: w * 2, x, strict=True)),
    ("no scalar", lambda x, w: A.hessian(lambda r: r @ w, x[0])),
]  # fmt: skip


def _calls() -> Any:
    torch.manual_seed(7)
    return [(torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True))]


def _check(name: str, function: Any, **options: Any) -> None:
    def run(x: Tensor, w: Tensor) -> Any:
        return function(x, w)

    check(Program(name, lambda: run, _calls, options=options))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("name", "function"), WHOLE, ids=[name for name, _ in WHOLE])
def test_whole(name: str, function: Any, backend: str) -> None:
    _check(name, function, backend=backend, fullgraph=True)


@pytest.mark.parametrize(("name", "function"), BROKEN, ids=[name for name, _ in BROKEN])
def test_with_a_break(name: str, function: Any) -> None:
    _check(name, function, backend="eager")
