"""Every program of the documents that the project started from (shared/seeds) that uses torch
alone.

Kept as close to the documents as the harness allows: torch.compile(...) there is jitmagic.jit here,
prints and mistakes included. Sizes are as given unless a run would take long.
"""

# ruff: noqa: T201
from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..harness import Program

# ------------------------------------------------------------------ 002: the traps of record/replay


def example1(x):
    if len(torch.nonzero(x)) > 1:
        return x + 1
    return x - 1


call_count = 0


def example3(x):
    global call_count
    call_count += 1
    return torch.rand(10) + x


def reset_count() -> dict[str, Any]:
    """The counter as it is now; it is set back to zero for the next run."""
    global call_count
    seen, call_count = call_count, 0
    return {"call_count": seen}


# ------------------------------------------------------------------------- 003: torch.compile notes


def multiply_add(x, y):
    return x * y + 2


def branch_on_sum(x):
    if x.sum() > 0:  # Tensor in Python control flow
        return x * 2
    return x - 1


def print_tensor(x):
    y = x + 1
    print(y)  # Python side effect
    return y * 2


def item(x):
    scale = x.sum().item()  # Tensor -> Python scalar
    return x * scale


def append(x):
    parts = []
    for i in range(3):
        parts.append(x + i)  # Python data structure
    return torch.stack(parts)


def where(cond, a, b):
    return torch.where(cond, a, b)


# ------------------------------------------------------------------------------ 004: the comparison


class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(100, 50)
        self.layer2 = nn.Linear(50, 10)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        x = self.layer2(x)
        return x


class Flexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(100, 50)
        self.dropout = nn.Dropout(0.5)
        self.layer2 = nn.Linear(50, 10)

    def forward(self, x, use_dropout=True):
        x = self.layer1(x)
        if use_dropout:
            x = self.dropout(x)
        x = self.layer2(x)
        return x


class Looping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(100, 100) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(784, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, x):
        return self.net(x)


class SimpleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.conv(x)
        x = self.relu(x)
        return x


class BadForTrace(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x, use_relu):
        x = self.conv(x)
        if use_relu:
            x = torch.relu(x)
        return x


class Linear2(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(10, 20)
        self.linear2 = nn.Linear(20, 5)

    def forward(self, x):
        x = self.linear1(x)
        x = torch.relu(x)
        x = self.linear2(x)
        return x


def relu_to_gelu() -> nn.Module:
    traced = fx.symbolic_trace(Linear2())
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target == torch.relu:
            node.target = F.gelu
    traced.recompile()
    return traced


class ModelWithDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(10, 20)
        self.dropout = nn.Dropout(0.5)
        self.linear2 = nn.Linear(20, 5)

    def forward(self, x):
        x = self.linear1(x)
        x = self.dropout(x)
        x = self.linear2(x)
        return x


def remove_dropout() -> nn.Module:
    traced = fx.symbolic_trace(ModelWithDropout())
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(traced.get_submodule(node.target), nn.Dropout):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


def eager_chain(x):
    y = x + 1
    z = y * 2
    w = z - 0.5
    return w


def fuse_three(x):
    y = x + 1
    z = y * 2
    w = z.relu()
    return w


def lazy_linears() -> nn.Module:
    return nn.Sequential(
        nn.LazyLinear(256), nn.ReLU(), nn.LazyLinear(128), nn.ReLU(), nn.LazyLinear(10)
    )


def lazy_convolution() -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(64, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10)
    )


def my_function(x, y):
    z = x + y
    return z * 2


def function_with_break(x):
    a = x + 1
    b = a * 2

    print(f"sum in the middle: {b.sum()}")  # graph break

    c = b - 1
    return c


def function_no_break(x):
    a = x + 1
    b = a * 2
    c = b - 1
    return c


def expensive_and_cheap(x):
    a = torch.sin(x @ x.T)  # expensive_operation
    b = torch.relu(a)  # cheap_operation
    c = b + 1
    return c.sum()


def dispatched(x):
    return x + 1


def bad_code(x):
    a = x + 1
    print(a)  # Break
    b = a * 2
    print(b)  # Break
    return b


def good_code(x):
    a = x + 1
    b = a * 2
    return b


def r(*shape: int, grad: bool = False) -> Tensor:
    """A tensor that depends on its shape alone."""
    generator = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def fixed(function: Any) -> Any:
    return lambda: function


PROGRAMS = [
    Program(
        "002 example1",
        fixed(example1),
        lambda: [(torch.tensor([0, 0]),), (torch.tensor([1, 1]),), (torch.tensor([0, 3]),)],
        exact=True,
    ),
    Program(
        "002 example3",
        fixed(example3),
        lambda: [(r(10),)] * 4,
        graphs=1,
        breaks=0,
        exact=True,
        state=reset_count,
    ),
    Program("003 multiply_add", fixed(multiply_add), lambda: [(r(8), r(8))], 1, 0, 1, exact=True),
    Program("003 branch_on_sum", fixed(branch_on_sum), lambda: [(r(5).abs(),), (-r(5).abs(),)]),
    Program("003 print_tensor", fixed(print_tensor), lambda: [(r(3),)], 2, 1, 2, exact=True),
    Program("003 item", fixed(item), lambda: [(r(6),), (r(6) + 1,)]),
    Program("003 append", fixed(append), lambda: [(r(4),)], 1, 0, exact=True),
    Program("003 where", fixed(where), lambda: [(r(4) > 0, r(4), r(4) + 9)], 1, 0, 1, exact=True),
    Program("004 MyModel", MyModel, lambda: [(r(32, 100),)], 1, 0),
    Program("004 MyModel trains", MyModel, lambda: [(r(32, 100),)], 1, 0, train=True),
    Program(
        "004 MyModel recompiles",
        MyModel,
        lambda: [(r(n, 100),) for n in (32, 32, 64, 16, 32, 128)],
    ),
    Program(
        "004 Flexible",
        Flexible,
        lambda: [(r(32, 100), True), (r(32, 100), False)],
        1,
        0,
        train=True,
    ),
    Program("004 Looping", Looping, lambda: [(r(8, 100),)], 1, 0),
    Program("004 Classifier", Classifier, lambda: [(r(32, 784),)], 1, 0, train=True),
    Program("004 SimpleModel", SimpleModel, lambda: [(r(1, 3, 224, 224),)], 1, 0),
    Program(
        "004 BadForTrace",
        BadForTrace,
        lambda: [(r(1, 3, 24, 24), True), (r(1, 3, 24, 24), False)],
        1,
        0,
    ),
    Program("004 fx model", lambda: fx.symbolic_trace(Linear2()), lambda: [(r(5, 10),)], 1, 0),
    Program("004 relu to gelu", relu_to_gelu, lambda: [(r(5, 10),)], 1, 0),
    Program("004 ModelWithDropout", ModelWithDropout, lambda: [(r(5, 10),)], 1, 0, train=True),
    Program("004 remove_dropout", remove_dropout, lambda: [(r(5, 10),)], 1, 0, train=True),
    Program(
        "004 eager_chain",
        fixed(eager_chain),
        lambda: [(torch.tensor([1.0, 2.0, 3.0]),)],
        1,
        0,
        1,
        exact=True,
    ),
    Program("004 fuse_three", fixed(fuse_three), lambda: [(r(64),)], 1, 0, 1, exact=True),
    Program("004 lazy linears", lazy_linears, lambda: [(r(32, 512),)]),
    Program("004 lazy convolution", lazy_convolution, lambda: [(r(2, 3, 32, 32),)], train=True),
    Program("004 my_function", fixed(my_function), lambda: [(r(10), r(10))], 1, 0, 1, exact=True),
    # Two breaks: the text of a tensor, and the print. What is printed has no rounding in it.
    Program(
        "004 function_with_break",
        fixed(function_with_break),
        lambda: [(torch.arange(16.0).view(4, 4),)],
        2,
        1,
    ),
    Program(
        "004 function_no_break",
        fixed(function_no_break),
        lambda: [(r(4, 4),)],
        1,
        0,
        1,
        exact=True,
    ),
    Program(
        "004 expensive_and_cheap",
        fixed(expensive_and_cheap),
        lambda: [(r(12, 6, grad=True),)],
        1,
        0,
    ),
    Program("004 dispatched", fixed(dispatched), lambda: [(r(100),)], 1, 0, 1, exact=True),
    Program("004 bad_code", fixed(bad_code), lambda: [(r(3),)], 2, 2, exact=True),
    Program("004 good_code", fixed(good_code), lambda: [(r(3),)], 1, 0, 1, exact=True),
]
