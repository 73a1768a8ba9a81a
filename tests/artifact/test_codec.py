"""Frozen data is read back as it was written, with types and signs of zeros."""

from __future__ import annotations

import json
import math

import pytest
import torch

from jitmagic.artifact.codec import Reader, Writer
from jitmagic.artifact.guards import refer, resolve
from jitmagic.artifact.vocabulary import vocabulary
from jitmagic.errors import CannotKeep, UserLine
from jitmagic.guards.guard import SizesRelate, ValueEquals
from jitmagic.guards.source import Argument, Item
from jitmagic.spec import TensorSpec
from jitmagic.symbols.expr import add, integer
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.size import SizeOf
from jitmagic.symbols.symbolic_numbers import Symbol


class NamingWriter(Writer):
    def other(self, value):
        return {"$": "ref", "to": refer(value)}


def through_json(value, shares=True):
    writer = NamingWriter(vocabulary(), shares=shares)
    written = json.loads(json.dumps({"data": writer.write(value), "shared": writer.shared}))
    special = {"ref": lambda reader, data: resolve(data["to"])}
    return Reader(vocabulary(), written["shared"], special).read(written["data"])


X = Argument(0, "x")
S = Symbol("s0", int, Interval(2, 64), SizeOf(X, 0))


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, 0, -(2**70), 1.0, 0.0, math.inf, -math.inf, 1e-310, 2j, "", "\ud800",
        b"\0\xff",
        (), (1, (2.0, True)), [1, [2]], {1: "a", (2, 3): [4]}, {1, 2}, frozenset({3}),
        slice(1, None, -1), range(0, 9, 2), ..., torch.float16, torch.device("cuda:1"),
        torch.strided, torch.channels_last, torch.Size((2, 3)), torch.ops.aten.add.Tensor,
        UserLine("a.py", 3, "f"),
        Item(Item(X, "k"), 0), Item(X, False), add(S, integer(3)),
        SizesRelate(">=", S, integer(2)), TensorSpec((2,), (1,), torch.int8, torch.device("cpu")),
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back(value, shares):
    back = through_json(value, shares)
    assert back == value
    assert type(back) is type(value)


def test_signs_and_nans_come_back():
    assert math.copysign(1, through_json(-0.0)) == -1
    assert math.isnan(through_json(math.nan))
    guard = through_json(ValueEquals(X, -0.0))
    assert math.copysign(1, guard.value) == -1


def test_equal_keys_of_other_types_stay_apart():
    """`Item(x, 0) == Item(x, False)`, which lead to different entries of a dictionary."""
    one, other = through_json((Item(X, 0), Item(X, False)))
    assert one.key is not False
    assert other.key is False


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6.0).reshape(2, 3), torch.arange(6).reshape(2, 3).t(), torch.ones(()),
     torch.empty(0, 3), torch.tensor([True]), torch.tensor([1.5], dtype=torch.bfloat16)],
)  # fmt: skip
def test_small_tensors_come_back(tensor):
    back = through_json(tensor)
    assert torch.equal(back, tensor)
    assert (back.dtype, back.stride()) == (tensor.dtype, tensor.stride())


@pytest.mark.parametrize("value", [object(), lambda: None, torch.zeros(1 << 20), [object()]])
def test_other_values_are_refused(value):
    with pytest.raises(CannotKeep):
        through_json(value)


@pytest.mark.parametrize(
    "data",
    [{"$": "no such kind"}, {"$": "Item", "base": 1}, {"#": 99}, {"$": "dtype", "name": "x"},
     {"$": "op", "name": "aten::no_such"}, {"$": "op", "name": "load_library::x"}, {"$": "bytes"}],
)  # fmt: skip
def test_malformed_data_raise(data):
    with pytest.raises((CannotKeep, LookupError, TypeError, AttributeError, RuntimeError)):
        Reader(vocabulary(), []).read(data)
