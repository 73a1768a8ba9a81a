"""What cannot be exported raises with the line, the reason and the remedy, and changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.errors import JitmagicError, JitmagicWarning


def breaks(x):
    jitmagic.graph_break()
    return x + 1


def branches_on_data(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def prints(x):
    print("called")
    return x * 2


def counts(x):
    STATE["calls"] = STATE["calls"] + 1
    return x * 2


def draws(x):
    return x * random.random()


def masks(x):
    return x[x > 0] * 2


@dataclass
class Unregistered:
    x: torch.Tensor


def returns_object(x):
    return Unregistered(x + 1)


class Appends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x + 1)
        return x


class Scales(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.ones(())

    def forward(self, x):
        self.factor = x.sum()
        return x


STATE = {"calls": 0}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: breaks, r"(?s)one graph.*graph_break\(\)"),
        (lambda: branches_on_data, r"(?s)if x.sum\(\) > 0.*hint"),
        (lambda: prints, r'(?s)print\("called"\)'),
        (lambda: counts, r"(?s)changes.*buffer"),
        (lambda: draws, r"(?s)random numbers.*arguments"),
        (lambda: masks, r"(?s)x\[x > 0\]"),
        (lambda: returns_object, r"(?s)Unregistered.*register_dataclass"),
        (Appends, r"(?s)changes.*seen.*buffer"),
        (Scales, r"(?s)sets.*factor.*buffer"),
    ],
)
def test_refusal_names_line_and_remedy(make: Callable[[], Any], why: str) -> None:
    fn = make()
    random.seed(0)
    state = random.getstate(), torch.get_rng_state()
    with pytest.raises(JitmagicError, match=why):
        jitmagic.export(fn)(torch.ones(3))
    assert STATE == {"calls": 0}
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    if isinstance(fn, Appends):
        assert fn.seen == []


def add(x, y):
    return x + y


@pytest.mark.parametrize(
    ("dynamic", "why"),
    [
        ({"z": {0: None}}, "(?s)argument in dynamic 'z'.*known: x, y"),
        ({"x": {3: None}}, "x has no dimension 3"),
        ({"x": {0: (5, 9)}}, "(?s)is 4 in the example call.*5 to 9"),
        ({"x": {0: (9, 5)}}, "range in dynamic"),
        ({"x": {0: "batch"}}, "value for dynamic"),
        ({"x": {0: None}}, "(?s)dimension 0 of x is declared dynamic.*4 alone"),
        ("x", "value for dynamic"),
    ],
)
def test_declared_sizes_are_checked(dynamic: Any, why: str) -> None:
    with pytest.raises(JitmagicError, match=why):
        jitmagic.export(add, dynamic=dynamic)(torch.ones(4, 2), torch.ones(4, 2))


class Notes(torch.nn.Module):
    """Sets attributes: one as it was, and one that no call reads."""

    def __init__(self):
        super().__init__()
        self.mode, self.seen = "idle", None

    def forward(self, x):
        before, self.mode = self.mode, "busy"
        self.seen = x.shape[0]
        self.mode = before
        return x + 1


def test_attributes_that_no_call_reads_are_left_out_with_a_warning() -> None:
    module = Notes()
    with pytest.warns(JitmagicWarning, match=r"does not set self\.seen$"):
        program = jitmagic.export(module)(torch.ones(3))
    assert (module.mode, module.seen) == ("idle", None)
    assert torch.equal(program.module()(torch.ones(3)), torch.full((3,), 2.0))


def test_narrower_range_is_an_error_that_names_it() -> None:
    def even(x):
        return x * 2 if x.shape[0] <= 16 else x

    with pytest.raises(JitmagicError, match=r"(?s)valid from 2 to 16.*declare \{0: \(2, 16\)\}"):
        jitmagic.export(even, dynamic={"x": {0: (2, 64)}})(torch.ones(4))
    program = jitmagic.export(even, dynamic=True)(torch.ones(4))
    with pytest.raises(AssertionError, match="<= 16"):
        program.module()(torch.ones(17))


@pytest.mark.parametrize("given", [object(), torch.ones(3).to_sparse(), {1, 2}])
def test_arguments_that_no_graph_takes(given: object) -> None:
    with pytest.raises(JitmagicError, match="^y is a "):
        jitmagic.export(add)(torch.ones(3), given)
