"""BySizes: the executable of the sizes that the inputs have, picked natively."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitmagic.runtime.native import by_sizes
from jitmagic.symbols.size import stride_place

Run = Callable[..., tuple[Any, ...]]


def told(values: tuple[int, ...], inputs: tuple[torch.Tensor, ...]) -> Run:
    return lambda *given: (values, len(inputs), len(given))


def test_new_sizes_are_asked_each_time_until_they_are_added() -> None:
    asked: list[tuple[int, ...]] = []

    def miss(values: tuple[int, ...], inputs: tuple[torch.Tensor, ...]) -> Run:
        asked.append(values)
        return told(values, inputs)

    run = by_sizes(((0, 0), (1, 1)), miss)
    x, y = torch.ones(3), torch.ones(2, 5)
    assert run(x, y) == ((3, 5), 2, 2)
    assert run(x, y) == ((3, 5), 2, 2)
    assert asked == [(3, 5), (3, 5)]
    run.add((3, 5), lambda *given: ("first",))
    run.add((0, 5), lambda *given: ("empty",))
    for _ in range(2):
        assert run(x, y) == ("first",)
        assert run(torch.ones(0), y) == ("empty",)
    run.add((3, 5), lambda *given: ("second",))
    assert run(x, y) == ("second",)
    assert len(asked) == 2


def test_evicts_least_recently_used_sizes() -> None:
    asked: list[tuple[int, ...]] = []

    def miss(values: tuple[int, ...], inputs: tuple[torch.Tensor, ...]) -> Run:
        asked.append(values)
        return told(values, inputs)

    class Held:
        def __call__(self, *given: torch.Tensor) -> tuple[Any, ...]:
            return (len(given[0]),)

    run = by_sizes(((0, 0),), miss, 2)
    held = [Held() for _ in range(3)]
    gone = [weakref.ref(one) for one in held]
    for n, one in enumerate(held[:2]):
        run.add((n,), one)
    assert run(torch.ones(0)) == (0,)
    run.add((2,), held[2])
    del held, one
    assert [ref() is None for ref in gone] == [False, True, False]
    assert run(torch.ones(1)) == ((1,), 1, 1)
    assert (run(torch.ones(0)), run(torch.ones(2)), asked) == ((0,), (2,), [(1,)])
    with pytest.raises(ValueError, match="at least one size has to be kept"):
        by_sizes(((0, 0),), miss, 0)


def test_refuses_non_tensors_and_missing_dimensions() -> None:
    run = by_sizes(((1, 1),), told)
    with pytest.raises(TypeError, match="input 1 is not a tensor"):
        run(torch.ones(2), 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="input 1 is not a tensor"):
        run(torch.ones(2))
    with pytest.raises(ValueError, match="input 1 has too few dimensions"):
        run(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="2 sizes"):
        run.add((1, 2), told)
    with pytest.raises(ValueError, match="input 0 has too few dimensions"):
        by_sizes(((0, -3),), told)(torch.ones(2))
    with pytest.raises(ValueError, match="an input and a dimension"):
        by_sizes(((-1, 0),), told)


def test_strides_are_read_below_the_number() -> None:
    run = by_sizes(((0, stride_place(0)), (0, 1), (0, stride_place(1))), told)
    assert run(torch.ones(3, 8)[:, ::2]) == ((8, 4, 2), 1, 1)


def test_a_number_is_read_itself() -> None:
    run = by_sizes(((1, -1), (0, 0)), told)
    assert run(torch.ones(3), torch.tensor(-7)) == ((-7, 3), 2, 2)
    for wrong in (
        torch.ones(()),
        torch.tensor([1, 2]),
        torch.empty((), dtype=torch.int64).to("meta"),
    ):
        with pytest.raises(ValueError, match="input 1 is not an int64 on the CPU"):
            run(torch.ones(3), wrong)


def test_errors_pass_and_cycles_are_collected() -> None:
    class Holder:
        def miss(self, values: tuple[int, ...], inputs: tuple[torch.Tensor, ...]) -> Run:
            raise KeyError(values)

    holder = Holder()
    holder.run = by_sizes(((0, 0),), holder.miss)  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        holder.run(torch.ones(4))  # type: ignore[attr-defined]
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
