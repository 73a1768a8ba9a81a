"""Assertions about data: one graph while they hold, where not the error that eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of, eager_of


def asserts(x):
    assert (x > 0).all(), f"not positive: {x.shape}"
    return x.sqrt() + 1


def raises_unless(x):
    if not (x > 0).all():
        raise ValueError("not positive")
    return x.sqrt() + 1


def raises_if(x):
    y = x * 2
    if torch.any(x <= 0):
        message = "a" if x.dim() == 1 else "b"
        raise KeyError(message)
    return y.log()


def raises_either_way_of_a_message(x):
    if (x <= 0).any():
        if x.numel() > 3:
            raise ValueError("many")
        raise ValueError("few")
    return x + 1


def one_element_is_enough(x):
    assert x[0] > 0
    return x + 1


def torch_assert(x):
    torch._assert((x > 0).all(), "not positive")
    torch._assert(x.dim() == 1, "not flat")
    return x + 1


def torch_assert_async(x):
    torch._assert_async((x > 0).all())
    torch._assert_async(x[0] > 0, "not positive")
    return x + 1


def torch_checks(x):
    torch._check(x.dim() == 1, lambda: "never asked for")
    torch._check_value(x.shape[0] > 1)
    torch._check_tensor_all(x > 0, lambda: "not positive")
    return x + 1


def inlined(x):
    return asserts(x) * 2


def writes_before(x):
    x.mul_(2)
    assert (x > 0).all()
    return x.mul_(3)


class Switch:
    on = False


def cleaned_up_after(x):
    Switch.on = True
    try:
        with torch.no_grad():
            y = asserts(x)
    finally:
        for name in ("on",):
            if getattr(Switch, name):
                setattr(Switch, name, False)
    return y * 2, Switch.on


PROGRAMS = [
    asserts, raises_unless, raises_if, raises_either_way_of_a_message, one_element_is_enough,
    torch_assert, torch_assert_async, torch_checks, inlined, writes_before,
    cleaned_up_after,
]  # fmt: skip


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> tuple[Any, ...]:
    x = x.clone()
    try:
        return "result", str(fn(x)), str(x)
    except Exception as error:  # pytest adds lines with addresses to what an assert says
        return type(error), str(error).split("\n")[0], str(x)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph_that_raises_as_eager_does(program, backend):
    tagged = jitmagic.jit(program, backend=backend)
    good, bad = torch.arange(1.0, 5.0), torch.tensor([-1.0, 2.0, 0.0, 4.0])
    nan = torch.full((4,), torch.nan)
    for x in (good, bad, good + 1, nan, bad, good):
        assert outcome(tagged, x) == outcome(program, x)
    assert counts_of(tagged).breaks == 0
    assert not eager_of(tagged)


def both_ways_lead_on(x):
    if (x > 0).all():
        return x + 1
    return x - 1


def handled(x):
    try:
        assert (x > 0).all()
    except AssertionError:
        return x - 1
    return x + 1


def handled_around(x):
    try:
        return cleaned_up_after(x)
    except AssertionError:
        return x - 1


def ends_the_error(x):
    try:
        assert (x > 0).all()
    finally:
        return x + 1  # noqa: B012


def ends_it_for_some(x):
    for _ in range(2):
        try:
            assert (x > 0).all()
        finally:
            if x.dim() == 1:
                continue  # noqa: B012
    return x + 1


def asks_for_any(x):
    try:
        assert (x > 0).all()
    except:  # noqa: E722
        x = x * 2
    return x


def loops(x):
    while (x < 0).all():
        x = x + 1
    return x


def several_elements(x):
    assert x
    return x + 1


def prints_on_the_way(x):
    if (x <= 0).any():
        print("bad")
        return None
    return x + 1


@pytest.mark.parametrize(
    "program",
    [
        *(both_ways_lead_on, handled, handled_around, ends_the_error, ends_it_for_some),
        *(asks_for_any, loops, several_elements, prints_on_the_way),
    ],
    ids=lambda p: p.__name__,
)
def test_what_is_no_assertion_breaks(program):
    tagged = jitmagic.jit(program, backend="eager")

    def seen(fn, x):
        try:
            return fn(x)
        except RuntimeError as error:
            return str(error)

    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        got, want = seen(tagged, x), seen(program, x)
        assert str(got) == str(want)
    assert counts_of(tagged).breaks + len(eager_of(tagged)) > 0
