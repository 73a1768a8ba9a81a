"""Reports that take two calls, `passport(f)(x)`: their repr and their misuse after the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from tests.processes import run_forked


def step(x: torch.Tensor) -> torch.Tensor:
    return x * 2


ASKED = ["explain", "why", "passport", "test", "lower"]


@pytest.mark.parametrize("word", [*ASKED, "minify"])
def test_repr_without_the_second_call_shows_the_usage(word: str) -> None:
    ask: Callable[..., Any] = getattr(jitmagic, word)
    expected = f"<jitmagic.{word} of step: call it with the arguments, {word}(f)(x)>"
    assert repr(ask(jitmagic.jit(step))) == expected
    module = jitmagic.jit(torch.nn.Linear(2, 2))
    if word != "explain":
        assert f"jitmagic.{word} of Linear" in repr(ask(module))


@pytest.mark.parametrize("word", ASKED)
def test_arguments_in_the_first_call_raise_a_usage_error(word: str) -> None:
    ask: Callable[..., Any] = getattr(jitmagic, word)
    with pytest.raises(TypeError, match=rf"{word}\(f, x\) is written {word}\(f\)\(x\)"):
        ask(jitmagic.jit(step), torch.ones(3))


@pytest.mark.parametrize("mark", [jitmagic.mark_dynamic, jitmagic.mark_static])
def test_only_tensors_are_marked(mark: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match="only dimensions of tensors can be marked, not of int"):
        mark(3, 0)


def test_python_suggests_the_nearest_name() -> None:
    done = run_forked("import jitmagic\njitmagic.explian")
    assert "Did you mean: 'explain'?" in done.stderr
