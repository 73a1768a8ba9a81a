"""program_of: decoded once for all traces, told apart by identity, and not without end."""

from __future__ import annotations

from types import CodeType

import torch

import jitmagic
from jitmagic.trace import state
from jitmagic.trace.state import program_of


def codes_of(count: int) -> list[CodeType]:
    code = (lambda: None).__code__
    return [code.replace(co_firstlineno=line + 1) for line in range(count)]


def test_each_code_object_has_its_own() -> None:
    (code,) = codes_of(1)
    same = code.replace()
    assert same == code and program_of(same).code is same and program_of(code).code is code
    assert program_of(code) is program_of(code)


def test_traces_share_and_change_nothing() -> None:
    def program(x):
        return helper(x) + 1

    def helper(x):
        for _ in range(2):
            x = x * 2
        return x

    def told() -> list[str]:
        programs = (program_of(program.__code__), program_of(helper.__code__))
        return [repr(one) for p in programs for one in (p.body, *p.index, *p.handlers)]

    before, x = told(), torch.ones(3)
    for _ in range(2):
        assert torch.equal(jitmagic.jit(program)(x), x * 4 + 1)
    assert told() == before


def test_they_are_forgotten_one_day() -> None:
    most = state._decoded.cache_info().maxsize
    for code in codes_of(most + 5):
        program_of(code)
    assert state._decoded.cache_info().currsize == most
