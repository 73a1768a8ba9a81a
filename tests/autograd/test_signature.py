"""The signature of the native autograd function is checked at construction."""

from __future__ import annotations

import pytest
import torch

from jitmagic.autograd.autograd_function import _described
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.partition import partition
from jitmagic.errors import CompileFailed, DoubleBackward
from jitmagic.extension import runtime_module
from jitmagic.spec import spec_of

from .lifting import lift
from .test_functions import t


def program(x, w):
    return (x @ w).tanh(), (x * 2).sum()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("saved_inputs", (7,)),
        ("saved_results", (7,)),
        ("grad_inputs", (7, 8)),
        ("mutated", (7,)),
        ("aliasing", ((2, 7, 1),)),
        ("aliasing", ((0, 0, "aten::no_such_view", "", (), 1, 1),)),
        ("aliasing", ((0, 0, "aten::alias", "", (1, 2), 1, 1),)),
        ("outputs", (7,)),
        ("tangents", ((0, (), ()), (7, (), ()))),
        ("reach", ((7,), (0,))),
        ("freed", (((0,), (70,)),)),
        ("replayed", ((7, -1, 0, 0),)),
        ("absent", ((torch.zeros(()), ()),) * 70),
    ],
)
def test_invalid_positions_are_refused(field, value):
    """Calls index by them without another look."""
    x, w = t(3, 4), t(4, 4)
    graph, inputs = lift(program, (x, w))
    joint = trace_joint(graph, [spec_of(given) for given in inputs])
    good = {**_described(partition(joint), graph), "absent": ()}
    for signature in (good, {**good, field: value}):
        given = (print, print, print, signature, CompileFailed, DoubleBackward)
        if signature is good:
            assert runtime_module().AutogradFunction(*given)
        else:
            with pytest.raises(ValueError, match=f"malformed signature: {field}"):
                runtime_module().AutogradFunction(*given)
