"""A tagged function or module that compiled code has inlined names the function that did."""

from __future__ import annotations

import torch

import jitmagic


@jitmagic.jit
def inner(x: torch.Tensor) -> torch.Tensor:
    return x + 1


LAYER = jitmagic.jit(torch.nn.Linear(4, 4))


def test_status_names_the_function_that_inlines_it() -> None:
    @jitmagic.jit(backend="eager")
    def outer(x: torch.Tensor) -> torch.Tensor:
        return LAYER(inner(x)) * 2

    outer(torch.ones(2, 4))
    told = [str(card) for card in jitmagic.status(inner, LAYER).cards]
    assert told == ["inner: compiled as part of outer", "Linear.forward: compiled as part of outer"]
    (variant,) = jitmagic.status(outer).cards[0].variants
    assert variant.inlined == ("inner", "Linear.forward")
    jitmagic.reset()
    assert str(jitmagic.status(inner).cards[0]) == "inner: not called yet"
