"""What is made inside and tells when it dies: its class has a `__del__`, as a progress bar's."""

# ruff: noqa: T201, ARG002, F841
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED


class Loud:
    def __init__(self, scale):
        self.scale = scale

    def __del__(self):
        print("gone", self.scale)


class Quiet:
    scale = 2.0


class Bar:
    """Like tqdm's."""

    def __init__(self, count):
        self.count = count
        self.open = True

    def __iter__(self):
        try:
            yield from range(self.count) if isinstance(self.count, int) else self.count
        finally:
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *told):
        self.close()

    def tell(self, text):
        print(text)

    def close(self):
        if self.open:
            self.open = False
            print("closed")

    def __del__(self):
        self.close()
        print("bar gone")


def kept_to_the_end(x):
    loud = Loud(3.0)
    y = x * loud.scale
    print("before", y.shape)
    return y + 1


def never_read(x):
    loud = Loud(3.0)
    print("one")
    y = x.sin()
    print("two")
    return y


def rebound(x):
    loud = Loud(3.0)
    y = x * loud.scale
    loud = y + 1
    print("rebound")
    return y * loud


def moved(x):
    loud = Loud(2.0)
    other = loud
    loud = None
    y = x * other.scale
    print("moved")
    del other
    print("deleted")
    return y.cos(), loud


def in_a_list(x):
    held = [Loud(2.0)]
    y = x * held[0].scale
    print("held")
    held = y
    print("dropped")
    return held + 1


def cleared(x):
    held = [Loud(2.0), Loud(3.0)]
    y = x * held[0].scale
    held.pop()
    print("popped")
    y = y + len(held)
    held.clear()
    print("cleared")
    return y


def in_an_object(x):
    outer = Quiet()
    outer.loud = Loud(2.0)
    y = x * outer.loud.scale
    print("in an object")
    outer = None
    print("dropped")
    return y - 1, outer


def in_a_cell(x):
    loud = Loud(2.0)

    def read():
        return loud.scale

    y = x * read()
    print("read")
    del read
    loud = None
    print("dropped")
    return y + 1


def as_a_temporary(x):
    y = x * Loud(2.0).scale
    print("after")
    return y + 1


def in_each_round(x):
    for scale in (1.0, 2.0, 3.0):
        loud = Loud(scale)
        x = x * loud.scale + 1
        print("round", scale)
    print("behind")
    return x


def in_a_block(x):
    with Bar(3) as bar:
        y = x * bar.count
        print("inside")
    print("outside")
    bar = None
    print("end")
    return y


def over_one(x):
    total = x.sum()
    for step in Bar(3):
        total = total + (x * step).sum()
    print("behind")
    return total


def over_one_that_has_a_name(x):
    bar = Bar(3)
    total = x.sum()
    for step in bar:
        total = total + (x * step).sum()
        bar.tell(f"at {step}")
    print("behind")
    return total


def left_early(x):
    total = x.sum()
    for step in Bar(5):
        if step == 2:
            break
        total = total + (x * step).sum()
    print("behind")
    return total


def returned_from(x):
    for step in Bar(5):
        y = x * step
        if step == 2:
            return y.sin()
    return x


def raised_in(x):
    try:
        for step in Bar(5):
            x = x * 2
            if step == 2:
                raise ValueError("two")
    except ValueError as error:
        print("caught", error)
    print("behind")
    return x


def let_go(loud):
    scale = loud.scale
    del loud
    print("let go")
    return scale


def handed_to_a_callee(x):
    y = x * let_go(Loud(2.0))
    print("after")
    return y


def handed_to_a_callee_in_a_list(x):
    def clear(held, x):
        y = x * held[0].scale
        held = None
        print("let go", held)
        return y

    y = clear([Loud(2.0)], x)
    print("after")
    return y


def given_back(x):
    loud = Loud(2.0)
    y = x + 1
    print("before")
    return y, loud.scale, [loud]


MODEL = torch.nn.Linear(3, 3)


def over_batches(x):
    """As people train."""
    losses, total = [], 0.0
    for batch in Bar([[x, x + 1], [x, x + 2], [x, x + 3]]):
        left, right = batch
        loss = (MODEL(left) - right).square().mean()
        loss.backward()
        MODEL.zero_grad()
        losses.append(loss.item())
        total = total + loss.detach()
    print("behind", len(losses))
    return total


PROGRAMS = [
    over_batches,
    kept_to_the_end,
    never_read,
    rebound,
    moved,
    in_a_list,
    cleared,
    in_an_object,
    in_a_cell,
    as_a_temporary,
    in_each_round,
    in_a_block,
    over_one,
    over_one_that_has_a_name,
    left_early,
    returned_from,
    raised_in,
    handed_to_a_callee,
    handed_to_a_callee_in_a_list,
    given_back,
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_it_dies_when_it_dies_in_eager(fn: Callable[..., Any], dynamic, capsys) -> None:
    tagged = jitmagic.jit(fn, dynamic=dynamic)
    for start in range(3):
        x = torch.arange(start, start + 3.0)
        wanted, told = fn(x), capsys.readouterr().out
        made = tagged(x)
        assert capsys.readouterr().out == told and type(made) is type(wanted)
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(made, wanted)
        del made, wanted
        capsys.readouterr()  # what their ends told
    handle = handle_of(tagged)
    outcomes = [member.outcome for member in (handle, *handle.family.members)]
    assert outcomes.count(COMPILED) >= 2


def test_a_round_over_a_progress_bar_is_one_graph() -> None:
    """Not cut where the list that was unpacked ends: nothing tells of that."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for batch in Bar([(x, x + 1), [x, x + 2], (x, x + 3)]):
            left, right = batch
            total = total + (left * right).sum()
        return total

    tagged = jitmagic.jit(fn)
    torch.testing.assert_close(tagged(torch.ones(3)), fn(torch.ones(3)))
    entries = [e for m in handle_of(tagged).family.members for e in m.dispatcher.entries]
    ends = [entry.notes.ends.why for entry in entries if entry.notes.ends is not None]
    assert any("(generator)" in why for why in ends)
    assert not [why for why in ends if why.endswith(("a list", "a tuple"))]
