"""bind returns the values that a call passes to the dispatcher, for every kind of signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.frame.binding import bind

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("x", (1,), {}),
    ("x", (), {"x": 1}),
    ("x, y=2", (1,), {}),
    ("x, y=2", (1,), {"y": None}),
    ("x, /, y=2, *, z=3", (1,), {"z": 0}),
    ("x, *rest", (1, 2, 3), {}),
    ("*rest", (), {}),
    ("x, *rest, y=-0.0, **more", (1, 2), {"a": 1, "y": False}),
    ("**more", (), {"x": 1}),
    ("", (), {}),
]


def made(signature: str, closure: bool) -> Callable[..., Any]:
    body = "kept" if closure else "None"
    space: dict[str, Any] = {}
    exec(f"def make(kept):\n    def f({signature}):\n        return {body}\n    return f", space)
    return space["make"](7)  # type: ignore[no-any-return]


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(("signature", "args", "kwargs"), CALLS)
def test_functions(
    signature: str, args: tuple[Any, ...], kwargs: dict[str, Any], closure: bool
) -> None:
    tagged = jitmagic.jit(made(signature, closure), backend="eager")
    handle, values = bind(tagged, args, kwargs)
    tagged(*args, **kwargs)
    assert len(handle.dispatcher.entries) == 1
    assert handle.dispatcher.entries[0].check(values)
    assert handle.original(*values) == tagged(*args, **kwargs)


def test_methods_partials_and_modules() -> None:
    class Scale:
        @jitmagic.jit
        def by(self, x: torch.Tensor, n: int = 2) -> torch.Tensor:
            return x * n

    scale, x = Scale(), torch.ones(3)
    layer = jitmagic.jit(torch.nn.Linear(3, 2), backend="eager")
    assert bind(scale.by, (x,), {})[1] == (scale, x, 2)
    assert bind(functools.partial(scale.by, n=5), (x,), {})[1] == (scale, x, 5)
    assert bind(layer, (x,), {})[1] == (layer, x)


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
def test_arguments_that_do_not_fit_are_refused(args: tuple[Any, ...]) -> None:
    tagged = jitmagic.jit(made("x, y=2", closure=False))
    with pytest.raises(TypeError, match="argument"):
        bind(tagged, args, {})


def test_what_is_not_tagged_is_refused() -> None:
    with pytest.raises(TypeError, match="not compiled by jitmagic"):
        bind(made("x", closure=False), (1,), {})
