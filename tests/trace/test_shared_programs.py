"""program_of: library code is decoded once for all traces, in a bounded cache keyed by identity;
user code once per trace.
"""

from __future__ import annotations

import gc
import os
import weakref
from types import CodeType

import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.trace import state
from jitmagic.trace.state import program_of


def codes_of(count: int) -> list[CodeType]:
    code = (lambda: None).__code__.replace(co_filename=os.__file__)
    return [code.replace(co_firstlineno=line + 1) for line in range(count)]


def test_each_code_object_has_its_own_program() -> None:
    (code,) = codes_of(1)
    same = code.replace()
    assert same == code and program_of(same, {}).code is same and program_of(code, {}).code is code
    assert program_of(code, {}) is program_of(code, {})


def test_traces_share_and_change_nothing() -> None:
    shared = [nn.Sequential.forward.__code__, nn.Linear.forward.__code__, nn.Module._call_impl]
    codes = [getattr(one, "__code__", one) for one in shared]

    def told() -> list[str]:
        programs = [program_of(code, {}) for code in codes]
        return [repr(one) for p in programs for one in (p.body, *p.index, *p.handlers)]

    before, x = told(), torch.ones(2, 3)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for _ in range(2):
        assert torch.equal(jitmagic.jit(lambda x: model(x) + 1)(x), model(x) + 1)
    assert told() == before


def test_the_cache_of_library_programs_is_bounded() -> None:
    most = state._of_library.cache_info().maxsize
    for code in codes_of(most + 5):
        program_of(code, {})
    assert state._of_library.cache_info().currsize == most


def test_user_functions_are_freed() -> None:
    space: dict[str, object] = {}
    exec("def helper(x): return x + 1", space)

    def program(x: Tensor) -> Tensor:
        return space["helper"](x) * 2  # type: ignore[operator]

    tagged = jitmagic.jit(program)
    assert torch.equal(tagged(torch.ones(2)), torch.full((2,), 4.0))
    kept = weakref.ref(space.pop("helper").__code__)  # type: ignore[attr-defined]
    space["helper"] = lambda x: x
    assert torch.equal(tagged(torch.ones(2)), torch.full((2,), 2.0))
    jitmagic.reset()
    gc.collect()
    assert kept() is None
