"""What torch warns of in a compiled function: shown once, for the line that eager names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

mse_loss = nn.MSELoss()


def helper(x: Tensor) -> Tensor:
    return F.huber_loss(x, torch.ones(2, 1))


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.l1_loss(x @ x, torch.ones(2, 1))


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sizes that differ": lambda x: F.mse_loss(x, torch.ones(2, 1)),
    "in a helper": lambda x: helper(x * 2) + 1,
    "softmax along a guessed dimension": lambda x: F.softmax(x) * 2,
    "mean of kl_div": lambda x: F.kl_div(x.log_softmax(1), x.softmax(1)),
    "a tensor made of a tensor": lambda x: torch.tensor(x.detach()) + 1,
    "grid_sample": lambda x: F.grid_sample(x.expand(1, 1, 2, 2), torch.zeros(1, 2, 2, 2)),
    "under autocast": in_autocast,
}


def shown(run: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[type, str, str, int]]:
    """Category, text and place of the warnings that three calls show by default."""
    vars(sys.modules[__name__]).get("__warningregistry__", {}).clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            run(x)
    return [(w.category, str(w.message), w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_warnings_name_the_line_that_eager_names(name: str, grad: bool) -> None:
    x = torch.randn(2, 2, requires_grad=grad)
    run = jitmagic.jit(PROGRAMS[name])
    run(x.clone())  # what the compiler imports may change the filters, which shows warnings again
    jitmagic.reset()
    eager = shown(PROGRAMS[name], x)
    assert len(eager) == 1
    assert shown(run, x) == eager


def test_in_a_module_of_torch_the_users_line_is_named() -> None:
    def program(x: Tensor) -> Tensor:
        return mse_loss(x, torch.ones(2, 1))

    run = jitmagic.jit(program, options={"keep": "compiled"})  # eager names torch's own line
    ((_, _, filename, lineno),) = shown(run, torch.randn(2, 2))
    assert (filename, lineno) == (__file__, program.__code__.co_firstlineno + 1)
