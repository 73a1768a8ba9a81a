"""torch.compiler.set_stance: the action for calls that no variant fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import Unsupported


@pytest.fixture(autouse=True)
def default_stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _compiles(fn: object) -> int:
    handle = handle_of(fn)
    assert handle is not None
    return len(list(handle.journal))


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_eager_stances_compile_nothing(stance: str) -> None:
    fn = jitmagic.jit(doubled, backend="eager")
    with torch.compiler.set_stance(stance):
        assert torch.equal(fn(torch.ones(3)), torch.full((3,), 2.0))
        assert _compiles(fn) == 0
    fn(torch.ones(3))
    assert _compiles(fn) == 1


def test_existing_variants_stay_in_use() -> None:
    fn = jitmagic.jit(doubled, backend="eager", dynamic=False)
    fn(torch.ones(3))
    with torch.compiler.set_stance("eager_on_recompile"):
        fn(torch.ones(3))
        fn(torch.ones(4))
    with torch.compiler.set_stance("fail_on_recompile"):
        fn(torch.ones(3))
        with pytest.raises(Unsupported, match=r"fail_on_recompile: .*4"):
            fn(torch.ones(4))
    assert _compiles(fn) == 1


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append(self)
        return x * 2


RAN: list[object] = []


def noted(x: torch.Tensor) -> torch.Tensor:
    RAN.append(torch.compiler.is_compiling())
    return x * 2


@pytest.mark.parametrize("tagged", [noted, Scale()], ids=["function", "module"])
def test_force_eager_runs_the_original_of_compiled_functions(tagged: Any) -> None:
    fn, x = jitmagic.jit(tagged), torch.ones(3)
    fn(x)
    entries = handle_of(fn).dispatcher.entries
    hits = [entry.hits for entry in entries]
    for _ in range(2):
        with torch.compiler.set_stance("force_eager"):
            RAN.clear()
            assert torch.equal(fn(x), x * 2)
            assert len(RAN) == 1
            assert [entry.hits for entry in entries] == hits
        fn(x)
        hits = [entry.hits for entry in entries]
    assert hits == [3], "the variant is used between the blocks"


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_first_call_is_eager_and_the_next_compiles(stance: str) -> None:
    fn = jitmagic.jit(doubled, backend="eager")
    with torch.compiler.set_stance(stance):
        fn(torch.ones(3))
        assert _compiles(fn) == 0
        fn(torch.ones(3))
    assert _compiles(fn) == 1
