"""The registry of handlers: one for each callable; a call that a row does not take is a break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.trace import inventory
from jitmagic.trace.builtins.registry import handles


def test_a_callable_has_one_handler() -> None:
    assert inventory.MODULES  # importing it registers all handlers
    with pytest.raises(AssertionError, match="two handlers"):
        handles(len)(lambda machine, args, kwargs: args[0])


def _calls_rows_wrongly(x: Tensor) -> tuple[Tensor, list[str]]:
    said = []
    for call in (lambda: len(), lambda: [].append(1, 2), lambda: torch.get_num_threads(3)):  # type: ignore[call-arg]
        try:
            call()
        except TypeError as error:
            said.append(str(error))
    return x + len(said), said


def test_arguments_that_a_row_does_not_take_are_left_to_python() -> None:
    compiled = jitmagic.jit(_calls_rows_wrongly)
    for _ in range(2):
        x, said = compiled(torch.zeros(2))
        assert said == _calls_rows_wrongly(torch.zeros(2))[1]
        assert x.tolist() == [3.0, 3.0]
