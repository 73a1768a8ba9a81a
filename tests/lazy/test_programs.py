"""Programs give eager's values inside `jitmagic.lazy()`, in a first run and in a second."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitmagic

from . import interrupted_programs, stateful_programs  # noqa: F401 - register their programs
from .programs import PROGRAMS, Program

SLACK = 4.0  # times eager's own error against float64


def flattened(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [part for item in value for part in flattened(item)]
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value]


def recorded(program: Program, dtype: torch.dtype) -> list[Any]:
    with jitmagic.lazy():
        result = program(dtype)
    return flattened(result)


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    difference = (value.to(exact.dtype) - exact).abs()
    return float(difference.max()) if difference.numel() else 0.0


def check(lazy: Any, eager: Any, exact: Any) -> None:
    assert type(lazy) is type(eager)
    if not isinstance(eager, torch.Tensor):
        assert lazy == pytest.approx(eager, rel=1e-3) if isinstance(eager, float) else lazy == eager
        return
    assert (lazy.dtype, lazy.shape, lazy.stride()) == (eager.dtype, eager.shape, eager.stride())
    assert lazy.requires_grad == eager.requires_grad
    if not eager.is_floating_point():
        assert torch.equal(lazy, eager)
        return
    scale = 1 + float(exact.abs().max()) if exact.numel() else 1.0
    epsilon = torch.finfo(eager.dtype).eps * scale
    assert error(lazy, exact) <= SLACK * max(error(eager, exact), epsilon)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_gives_eagers_values(name: str) -> None:
    program = PROGRAMS[name]
    eager, exact = flattened(program(torch.float32)), flattened(program(torch.float64))
    for _ in range(2):  # compiled, then from the cache
        lazy = recorded(program, torch.float32)
        assert len(lazy) == len(eager)
        for values in zip(lazy, eager, exact, strict=True):
            check(*values)
