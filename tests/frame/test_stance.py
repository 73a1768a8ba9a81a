"""torch.compiler.set_stance: what calls come to that no variant fits."""

from __future__ import annotations

from collections.abc import Iterator

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
def test_nothing_is_compiled(stance: str) -> None:
    fn = jitmagic.jit(doubled, backend="eager")
    with torch.compiler.set_stance(stance):
        assert torch.equal(fn(torch.ones(3)), torch.full((3,), 2.0))
        assert _compiles(fn) == 0
    fn(torch.ones(3))
    assert _compiles(fn) == 1


def test_variants_are_used() -> None:
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


def test_what_is_not_done_is_told_once() -> None:
    fn = jitmagic.jit(doubled, backend="eager", dynamic=False)
    fn(torch.ones(3))
    with torch.compiler.set_stance("force_eager"):
        with pytest.warns(jitmagic.JitmagicWarning, match="run compiled all the same"):
            fn(torch.ones(4))
        fn(torch.ones(5))


def test_stances_of_first_calls_are_told() -> None:
    fn = jitmagic.jit(doubled, backend="eager")
    with torch.compiler.set_stance("eager_then_compile"):
        with pytest.warns(jitmagic.JitmagicWarning, match="eager_then_compile.*not for jitmagic"):
            fn(torch.ones(3))
    assert _compiles(fn) == 1
