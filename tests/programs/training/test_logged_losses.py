"""A loss that a whole step hands out more than once: returned, and kept in a list for a plot."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from ..harness import assert_alike

Logged = Callable[[Tensor, Tensor, dict[str, list[Tensor]]], Any]

LOGGED: dict[str, Logged] = {
    "twice": lambda loss, y, log: (loss.detach(), loss.detach()),
    "kept and returned": lambda loss, y, log: (log["loss"].append(loss.detach()), loss.detach())[1],
    "itself beside": lambda loss, y, log: (loss, loss.detach()),
    "itself twice": lambda loss, y, log: (loss, loss),
    "data": lambda loss, y, log: (loss.data, loss.detach(), loss.detach().view(1)),
    "of a view": lambda loss, y, log: (loss.detach(), loss.view(1).detach()),
    "of what was predicted": lambda loss, y, log: (y.detach(), y.detach()[0], loss.detach()),
    "written": lambda loss, y, log: (y.detach().mul_(2), y.detach()[1:], loss.detach()),
}


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", LOGGED)
def test_it_is_eagers_in_one_graph(name: str, backend: str) -> None:
    seen = []
    for tag in (lambda f: f, lambda f: jitmagic.jit(f, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        model, log = nn.Linear(4, 3), collections.defaultdict(list)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @tag
        def step(x: Tensor) -> Any:
            y = model(x)  # noqa: B023
            loss = F.mse_loss(y, x[:, :3])
            optimizer.zero_grad()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return LOGGED[name](loss, y, log)  # noqa: B023

        facts: list[Any] = []
        for _ in range(4):
            made = step(torch.randn(5, 4))
            parts = [*(made if isinstance(made, tuple) else (made,)), *log["loss"][-1:]]
            places = [one.untyped_storage().data_ptr() for one in parts]
            facts += [[(a == b) for a in places for b in places]]
            facts += [(p.requires_grad, p._is_view(), p._version, p.stride()) for p in parts]
            facts += [p.detach().clone() for p in parts]
        seen.append(facts)
    assert_alike(seen[1], seen[0])
    assert counts_of(step).breaks == 0
