"""A fuzz program: statements, results and calls as data; goes out as readable source text.

The text stands by itself: `build()` makes the thing to compile, `CALLS` makes the arguments of each
call, `STATE` and `BOX` are module globals that the body may change.
"""

from __future__ import annotations

import itertools
import linecache
import re
from dataclasses import dataclass
from textwrap import indent
from typing import Any

__all__ = ["BACKWARDS", "HEAD", "KINDS", "Program", "load"]

KINDS = ("function", "closure", "module", "method")
BACKWARDS = ("sum", "each", "spend", "twice", "grad", "between results")

HEAD = """\
import collections, contextlib, copy, dataclasses, enum, functools, itertools, math, operator
import types, typing
import torch
import torch.utils.checkpoint
import torch.nn.functional as F
from torch import nn
import jitmagic
from tests.fuzz.inputs import tensor

Pair = collections.namedtuple("Pair", "first second")
STATE = {"count": 0, "log": []}
BOX = types.SimpleNamespace(value=None, n=0)
COUNT = 0


class Stop(Exception):
    pass


def helper(x, *rest, scale=2, **named):
    for other in rest:
        x = x + other
    return x * scale + len(named)


def weight(like, *shape):
    return torch.linspace(-1.0, 1.0, math.prod(shape)).view(shape).to(like)
"""

_MODULE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.linspace(-1, 2, 4))
        self.register_buffer("seen", torch.zeros(4))
        self.count = 0
        self.mlp = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3), nn.Tanh())
        self.norm, self.bn = nn.LayerNorm(4), nn.BatchNorm1d(4)
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.emb = nn.Embedding(5, 4, padding_idx=0)
        self.drop = nn.Dropout(0.4)
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.GELU(), nn.Identity()])
        self.table = nn.ModuleDict({{"a": nn.Linear(4, 2, bias=False)}})
        self.lstm = nn.LSTM(4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, {arguments}):
{body}


def build():
    return Net()
"""

_FUNCTION = """
def build():
    def f({arguments}):
{body}

    return f
"""

_CLOSURE = """
def build():
    calls, kept = 0, []

    def f({arguments}):
        nonlocal calls
        calls += 1
        kept.append(calls)
{body}

    return f
"""

_METHOD = """
class Thing:
    def __init__(self):
        self.count, self.items = 0, []

    def run(self, {arguments}):
{body}


def build():
    return Thing().run
"""

_TEXTS = {"function": _FUNCTION, "closure": _CLOSURE, "module": _MODULE, "method": _METHOD}
_numbers = itertools.count()


@dataclass(frozen=True)
class Program:
    """`statements` are blocks of lines; `calls` hold one source expression per argument."""

    arguments: tuple[str, ...]
    statements: tuple[str, ...]
    results: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]
    kind: str = "function"
    shape: str = "tuple"  # of the result: tuple | list | dict | pair | single
    # of all results | of each, retaining | of each | twice | per argument | per result
    backward: str = "sum"

    def body(self) -> str:
        """The function's body, not indented."""
        return "\n".join((*self.statements, f"return {self._returned()}"))

    def _returned(self) -> str:
        names = self.results
        if self.shape == "single" and len(names) == 1:
            return names[0]
        if self.shape == "list":
            return f"[{', '.join(names)}]"
        if self.shape == "dict":
            return "{" + ", ".join(f'"r{n}": {name}' for n, name in enumerate(names)) + "}"
        if self.shape == "pair" and len(names) >= 2:
            rest = "".join(f", {name}" for name in names[2:])
            return f"Pair({names[0]}, [{names[1]}{rest}])"
        return f"({', '.join(names)}{',' if len(names) < 2 else ''})"

    def source(self) -> str:
        """Text that defines build() and CALLS."""
        text = _TEXTS[self.kind]
        made = text.format(arguments=", ".join(self.arguments), body=indent(self.body(), " " * 8))
        calls = "".join(f"    lambda: ({', '.join(call)},),\n" for call in self.calls)
        way = f'BACKWARD = "{self.backward}"\n' if self.backward != "sum" else ""
        return f"{HEAD}{made}\n\n{way}CALLS = [\n{calls}]\n"

    def wide(self) -> str:
        """The same program in float64: the judge of roundings."""
        text = re.sub(
            r"torch\.(float16|bfloat16|float32|half|float)\b", "torch.float64", self.source()
        )
        text = re.sub(r"torch\.complex64\b", "torch.complex128", text)
        return re.sub(r"\.(float|half|bfloat16)\(\)", ".double()", text)


def load(text: str) -> dict[str, Any]:
    """Execute the text as a module of its own, with its lines known to tracebacks."""
    name = f"<fuzz {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"__name__": "fuzz_program"}
    exec(compile(text, name, "exec"), space)
    return space
