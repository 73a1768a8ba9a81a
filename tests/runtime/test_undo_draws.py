"""A graph that raises after it drew random numbers leaves the generator where eager leaves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from jitmagic.runtime.native import undo_on_error


def drawn_after(run: Callable[[], object], error: type[BaseException]) -> torch.Tensor:
    torch.manual_seed(3)
    with pytest.raises(error):
        run()
    return torch.rand(4)


def draw_and_fail(error: BaseException) -> Callable[[], tuple[torch.Tensor, ...]]:
    def run() -> tuple[torch.Tensor, ...]:
        torch.rand(5)
        raise error

    return run


def test_generator_is_restored_when_the_graph_raises() -> None:
    torch.manual_seed(3)
    untouched = torch.rand(4)
    assert drawn_after(undo_on_error(draw_and_fail(ValueError("no")), (), True), ValueError).equal(
        untouched
    )


def test_interrupts_and_results_do_not_restore_the_generator() -> None:
    torch.manual_seed(3)
    torch.rand(5)
    moved = torch.rand(4)
    run = undo_on_error(draw_and_fail(KeyboardInterrupt()), (), True)
    assert drawn_after(run, KeyboardInterrupt).equal(moved)
    torch.manual_seed(3)
    assert undo_on_error(lambda: (torch.rand(5),), (), True)()[0].shape == (5,)
    assert torch.rand(4).equal(moved)


def embed(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return F.dropout(table, 0.5)[index] + torch.rand(3)


def embed_then_break(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    found = F.dropout(table, 0.5)[index]
    jitmagic.graph_break()
    return found + torch.rand(3)


@pytest.mark.parametrize("function", [embed, embed_then_break])
@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_a_compiled_function_that_raises_draws_what_eager_draws(
    function: Callable[..., torch.Tensor], backend: str
) -> None:
    table, good, bad = torch.randn(4, 3), torch.tensor([0, 1]), torch.tensor([0, 9])
    compiled = jitmagic.jit(function, backend=backend)
    torch.manual_seed(0)
    wanted = function(table, good)
    torch.manual_seed(0)
    assert compiled(table, good).equal(wanted)
    after_eager = drawn_after(lambda: function(table, bad), IndexError)
    assert drawn_after(lambda: compiled(table, bad), IndexError).equal(after_eager)
