"""Programs before and after an edit, for entries that another process has left on disk.

Each edit is a pair of texts of one module, in which `make()` returns a function and the arguments
of a call. `EDITS` has them by kind; the kinds are what a trace reads: code, helpers, globals,
closures, classes, modules, defaults, flags of torch, patched functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

__all__ = ["EDITS"]

_HEAD = """
import enum, functools
import torch
from torch import nn
import torch.nn.functional as F
"""
_X = "torch.arange(6.0).reshape(2, 3) - 2"


def _function(body: str, before: str = "", args: str = _X) -> str:
    return f"{_HEAD}{before}\ndef f(x):\n    {body}\ndef make():\n    return f, ({args},)\n"


def _pairs(template: str, choices: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the template with each two different choices."""
    for one, other in permutations(choices, 2):
        yield template.replace("@", one), template.replace("@", other)


def _code() -> Iterator[tuple[str, str]]:
    yield from _pairs(_function("return @"), [
        "x * 2", "x * 3", "x * 2.0", "x + 2", "x - 2", "torch.relu(x)", "torch.sigmoid(x)",
    ])  # fmt: skip


def _helpers() -> Iterator[tuple[str, str]]:
    yield from _pairs(_function("return g(x)", "def g(x):\n    return @"), [
        "x.sin()", "x.cos()", "x.sum(0)", "x.sum(1)",
    ])  # fmt: skip
    yield from _pairs(
        _function("return g(x)", "def g(x, k=@):\n    return x * k"), ["1", "2", "-0.0"]
    )
    yield from _pairs(_function("return g(x)", "def g(x, *, k=@):\n    return x * k"), ["1", "2.5"])
    wrapped = (
        "def twice(h):\n    def run(x):\n        return h(h(x))@\n"
        "    return functools.wraps(h)(run)\n"
        "def g(x):\n    return x + 1\ng = twice(g)"
    )
    yield from _pairs(_function("return g(x)", wrapped), [" * 2", " * 3", ""])


def _globals() -> Iterator[tuple[str, str]]:
    yield from _pairs(_function("return x * K", "K = @"), ["1", "2", "2.0", "True", "-1"])
    yield from _pairs(_function("return x * K[0]", "K = @"), ["(1, 2)", "(2, 1)", "[3]", "{0: 4}"])
    yield from _pairs(
        _function("return x + 1 if K == 'a' else x - 1", "K = @"), ["'a'", "'b'", "None"]
    )
    yield from _pairs(_function("return x * len(K)", "K = 'ab'\n@"), [
        "pass", "len = lambda one: 5", "K = 'abc'",
    ])  # fmt: skip
    yield from _pairs(_function("return x * K", "K = @"), [
        "torch.tensor(2.0)", "torch.tensor([1.0, 2.0, 3.0])", "torch.tensor(3)",
    ])  # fmt: skip


def _closures() -> Iterator[tuple[str, str]]:
    text = (
        _HEAD
        + "def make():\n    k = @\n    def f(x):\n        return x * k\n    return f, ("
        + _X
        + ",)\n"
    )
    yield from _pairs(text, ["1", "2", "0.5", "torch.ones(3)"])
    inner = (
        _HEAD + "def make():\n    def g(x):\n        return x @ 2\n    def f(x):\n"
        "        return g(x) + 1\n    return f, (" + _X + ",)\n"
    )  # fmt: skip
    yield from _pairs(inner, ["*", "+", "-"])


def _classes() -> Iterator[tuple[str, str]]:
    method = _HEAD + (
        "class A:\n    k = 2\n    def __init__(self):\n        self.n = 1\n    def h(self, x):\n"
        "        return @\n    def f(self, x):\n        return self.h(x)\ndef make():\n"
        f"    return A().f, ({_X},)\n"
    )
    yield from _pairs(method, ["x * self.k", "x + self.k", "x * self.n", "-x"])
    yield from _pairs(
        method.replace("@", "x * self.k").replace("k = 2", "k = @"), ["2", "3", "2.5"]
    )
    yield from _pairs(
        method.replace("@", "x * self.n").replace("self.n = 1", "self.n = @"),
        ["1", "2", "None or 7"],
    )
    prop = method.replace("k = 2", "k = property(lambda self: @)").replace(
        "return @", "return x * self.k"
    )
    yield from _pairs(prop, ["2", "3"])
    static = method.replace("k = 2", "k = 2\n    s = staticmethod(lambda x: x * @)").replace(
        "return @", "return self.s(x)"
    )
    yield from _pairs(static, ["2", "3"])
    based = _HEAD + (
        "class B:\n    def h(self, x):\n        return x * 2\nclass C:\n    def h(self, x):\n"
        "        return x * 3\nclass A(@):\n    pass\ndef f(x):\n    return A().h(x)\ndef make():\n"
        f"    return f, ({_X},)\n"
    )
    yield from _pairs(based, ["B", "C", "B, C", "C, B"])
    colour = _HEAD + (
        "class Colour(enum.Enum):\n    RED = @\ndef f(x):\n    return x * Colour.RED.value\n"
        f"def make():\n    return f, ({_X},)\n"
    )
    yield from _pairs(colour, ["1", "2"])
    operator = _function(
        "return K * x", "class K_:\n    def __mul__(self, x):\n        return x * @\nK = K_()"
    )
    yield from _pairs(operator, ["2", "4"])


def _modules() -> Iterator[tuple[str, str]]:
    module = _HEAD + (
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        torch.manual_seed(0)\n        self.a = nn.Linear(3, 4)\n        self.k = 2\n"
        "        self.act = nn.ReLU()\n#1\n    def forward(self, x):\n        return #2\n"
        f"def make():\n    m = M()\n    #3\n    return m, ({_X},)\n"
    )

    def made(one: str = "", two: str = "self.act(self.a(x)) * self.k", three: str = "pass") -> str:
        return module.replace("#1", one).replace("#2", two).replace("#3", three)

    yield from _pairs(made(two="@"), ["self.a(x)", "self.act(self.a(x))", "self.a(self.act(x))"])
    yield from _pairs(made(three="m.k = @"), ["1", "3", "0.5"])
    yield from _pairs(
        made(three="m.act = @"),
        ["nn.Tanh()", "nn.GELU()", "nn.LeakyReLU(0.3)", "nn.LeakyReLU(0.1)"],
    )
    yield from _pairs(made(three="m.@()"), ["eval", "train", "double().float"])
    yield from _pairs(made(three="m.act = nn.Dropout(0.5); m.@()"), ["eval", "train"])
    yield from _pairs(
        made(three="m.a = @"), ["nn.Linear(3, 4, bias=False)", "nn.Linear(3, 2)", "nn.Identity()"]
    )
    yield from _pairs(made(three="m.forward = lambda x: x * @"), ["2", "3"])
    yield from _pairs(made(three="m.register_forward_hook(lambda m, x, y: y @ 1)"), ["+", "-"])


def _torch() -> Iterator[tuple[str, str]]:
    text = (
        _HEAD
        + "def f(x):\n    return torch.relu(x) * torch.ones(3)\ndef make():\n    @\n"
        + f"    return f, ({_X},)\n"
    )
    yield from _pairs(text, [
        "pass", "torch.relu = torch.sigmoid", "torch.relu = lambda x: x * 7",
        "torch.set_default_dtype(torch.float64)",
    ])  # fmt: skip
    text = _HEAD + f"def f(x):\n    return F.gelu(x)\ndef make():\n    @\n    return f, ({_X},)\n"
    yield from _pairs(text, ["pass", "F.gelu = F.silu", "F.gelu = lambda x: x + 9"])
    text = _HEAD + (
        "def f(x):\n    return x.abs() if torch.is_grad_enabled() else x.neg()\ndef make():\n"
        f"    torch.set_grad_enabled(@)\n    return f, ({_X},)\n"
    )
    yield from _pairs(text, ["True", "False"])
    text = _HEAD + (
        "def f(x):\n    return nn.functional.linear(x, torch.ones(2, 3))\ndef make():\n"
        f"    old = nn.functional.linear\n    @\n    return f, ({_X},)\n"
    )
    yield from _pairs(text, ["pass", "nn.functional.linear = lambda x, w: old(x, w) * 2"])
    text = _HEAD + (
        "def f(m, x):\n    return m(x)\ndef make():\n    m = nn.ReLU()\n    @\n"
        f"    return f, (m, {_X})\n"
    )
    yield from _pairs(text, [
        "pass",
        "nn.ReLU.forward = lambda self, x: x * 5",
        "nn.ReLU.forward = lambda self, x: x * 6",
        "nn.Module.__call__ = lambda self, x: x * 8",
    ])  # fmt: skip


EDITS: dict[str, list[tuple[str, str]]] = {
    "code": list(_code()),
    "helpers": list(_helpers()),
    "globals": list(_globals()),
    "closures": list(_closures()),
    "classes": list(_classes()),
    "modules": list(_modules()),
    "torch": list(_torch()),
}
