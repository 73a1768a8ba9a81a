"""Loops whose number of rounds varies: Python runs them, one round of them is compiled.

Each program is called with many lengths, 0 and 1 among them, and compared with eager: results,
gradients, what it prints and raises, in float64, as long loops amplify roundings. The frame itself
is compiled twice (once where its sizes are symbols from the first call on), and once for a length
that is special; nothing is given up.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of

LENGTHS = (4, 6, 5, 9, 12, 3, 7, 8, 2, 11, 13)
Program = Callable[..., Any]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(2, 8)
        c = x.new_zeros(2, 8)
        made = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t].expand(2, 8) @ w, (h, c))
            made.append(h)
        return torch.stack(made)


class Within(nn.Module):
    """The loop is a callee's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Cell()

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 2, w).sum(0).tanh()


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(8)
    for row in x:
        h = torch.tanh(h @ w + row)
    return h


def pieces(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, made = x.new_zeros(8), []
    for i, row in enumerate(x.unbind(0), 1):
        h = torch.tanh(h @ w + row) * i
        made.append(h)
    return h, len(made), len(x.unbind(0))


def backwards(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(8)
    for i in range(x.shape[0] - 1, -1, -2):
        h = torch.tanh(h @ w + x[i])
    return h


def left(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(8)
    for i, row in enumerate(x):
        if i == 2:
            continue
        h = torch.tanh(h @ w + row)
        if i > 6:
            break
    else:
        h = h + 1
    return h


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(8)
    for i in range(x.shape[0]):
        for j in range(x.shape[0] // 2):
            h = torch.tanh(h @ w + x[i] - x[j])
    return h


def raised(x: torch.Tensor, w: torch.Tensor) -> Any:
    h, n = x.new_zeros(8), 0
    try:
        for row in x:
            h, n = torch.tanh(h @ w + row), n + 1
            if n == 9:
                raise ValueError(n)
    except ValueError as error:
        h = h + error.args[0]
    finally:
        h = h * 2
    return h, n


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    made, h = torch.zeros_like(x), x.new_zeros(8)
    for t in range(len(x)):
        h = torch.tanh(h @ w + x[t])
        made[t] = h
    return made


def zipped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(8)
    for row, n in zip(x, reversed(range(len(x))), strict=True):
        h = torch.tanh(h @ w + row) * n
    return h


def gathered(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Another loop, and calls, over a list that the first one fills."""
    made, total = [], x.new_zeros(8)
    for row in x:
        made.append(torch.tanh(row @ w))
    for each in made:
        total = total + each
    return total, torch.stack([*made, total]).sum(0), len(made), made[-1:]


def comprehension(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.tanh(x[i] @ w) for i in range(x.shape[0])] + [w[0]]).sum(0) * 2


def counted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    i, h = 0, x.new_zeros(8)
    while i < x.shape[0]:
        h = torch.tanh(h @ w + x[i])
        i += 1
    return h


def told(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(8)
    for i, row in enumerate(x):
        h = torch.tanh(h @ w + row)
        print("round", i, tuple(h.shape))
    return h


def of_a_number(x: torch.Tensor, w: torch.Tensor, n: int = 0) -> torch.Tensor:
    for i in range(n):
        x = torch.tanh(x @ w) + i
    return x


def picked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Data decide the number of rounds."""
    h = x.new_zeros(8)
    for row in x[x[:, 0] > 0]:
        h = torch.tanh(h @ w + row)
    return h


def halved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Few rounds, which are the same for many lengths: unrolled."""
    n = x.shape[0]
    while n > 1:
        x, n = torch.tanh(x @ w), n // 2
    return x


PROGRAMS: dict[str, Program] = {
    f.__name__: f
    for f in (
        *(rows, pieces, backwards, left, nested, raised, written, zipped, gathered, comprehension),
        *(counted, told, of_a_number, picked, halved),
    )
}
MODELS: dict[str, Callable[[], nn.Module]] = {"cell": Cell, "within": Within}
SPECIAL = {"counted": 1, "halved": 4, "nested": 1}  # variants for some lengths


def answer(fn: Program, x: torch.Tensor, w: torch.Tensor, train: bool, **more: Any) -> list[Any]:
    """Results and what was printed, the gradients of what was given; or the error."""
    x, w = (t.detach().clone().requires_grad_(train) for t in (x, w))
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            found = fn(x, w, **more)
    except Exception as error:
        return [type(error), str(error), text.getvalue()]
    leaves = tree_leaves(found)
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    gradients: tuple[Any, ...] = ()
    if train and wanted:
        loss = sum(t.square().sum() for t in wanted)
        gradients = torch.autograd.grad(loss, (x, w), allow_unused=True)
    return [*leaves, *gradients, text.getvalue()]


def compare(made: Program, plain: Program, length: int, train: bool, device: str = "cpu") -> None:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(length, 8, generator=generator, dtype=torch.float64)
    w = torch.randn(8, 8, generator=generator, dtype=torch.float64) * 0.5
    more = {"n": length} if plain is of_a_number else {}
    found, wanted = (answer(fn, x.to(device), w.to(device), train, **more) for fn in (made, plain))
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", [*PROGRAMS, *MODELS])
def test_any_number_of_rounds(name: str, train: bool) -> None:
    torch.manual_seed(0)
    plain = PROGRAMS[name] if name in PROGRAMS else MODELS[name]().double()
    made = jitmagic.jit(plain)
    for length in LENGTHS:
        compare(made, plain, length, train)
    handle = handle_of(made)
    assert len(handle.dispatcher.entries) <= 2 + SPECIAL.get(name, 0)
    assert not [each for each in (handle, *handle.family.members) if each.given_up is not None]
    for length in (1, 0, 10):
        compare(made, plain, length, train)


@pytest.mark.parametrize("name", [*PROGRAMS, *MODELS])
def test_when_sizes_are_symbols_from_the_first_call(name: str) -> None:
    """A number may be dynamic too, if the options name it."""
    plain = PROGRAMS[name] if name in PROGRAMS else MODELS[name]().double()
    varying = {"n": ...} if plain is of_a_number else True
    made = jitmagic.jit(plain, dynamic=varying, backend="eager")
    for length in LENGTHS:
        compare(made, plain, length, train=False)
    handle = handle_of(made)
    assert len(handle.dispatcher.entries) <= 1 + SPECIAL.get(name, 0)
    assert not [each for each in (handle, *handle.family.members) if each.given_up is not None]
    for length in (1, 0, 10):
        compare(made, plain, length, train=False)


def test_a_round_that_needs_its_number_is_unrolled() -> None:
    layers = [nn.Linear(8, 8) for _ in range(4)]

    def deep(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = torch.tanh(layers[i](x) @ w)
        return x

    made = jitmagic.jit(deep, backend="eager")
    x, w = torch.randn(3, 8), torch.randn(8, 8)
    for n in (2, 3, 4, 1, 3, 2):
        torch.testing.assert_close(made(x, w, n), deep(x, w, n))
    rounds = sum(len(each.dispatcher.entries) for each in handle_of(made).family.members)
    assert rounds <= 4 and handle_of(made).given_up is None


def test_fullgraph_unrolls() -> None:
    made = jitmagic.jit(rows, fullgraph=True, backend="eager")
    for length in (4, 6, 5):
        compare(made, rows, length, train=False)
    handle = handle_of(made)
    assert len(handle.dispatcher.entries) == 3 and not handle.family.members


@pytest.mark.parametrize("marked", [True, False])
def test_one_length_is_unrolled_unless_it_is_marked(marked: bool) -> None:
    made = jitmagic.jit(rows, backend="eager")
    x, w = torch.randn(5, 8), torch.randn(8, 8)
    if marked:
        jitmagic.mark_dynamic(x, 0)
    for _ in range(3):
        torch.testing.assert_close(made(x, w), rows(x, w))
    handle = handle_of(made)
    assert len(handle.dispatcher.entries) == 1 and bool(handle.family.members) is marked


def test_an_index_into_one_row_is_no_round_of_a_loop() -> None:
    """Both of its limits leave one value: a dimension of size one is indexed by 0 or -1."""

    def summed(x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0])
        for t in range(x.shape[1]):
            h = torch.tanh(h + x[:, t])
        return h

    made = jitmagic.jit(summed, dynamic=True, backend="eager")
    for rows_, columns in ((2, 4), (2, 1), (1, 6), (3, 5), (1, 7)):
        x = torch.randn(rows_, columns)
        torch.testing.assert_close(made(x), summed(x))
    handle = handle_of(made)
    entries = [len(each.dispatcher.entries) for each in (handle, *handle.family.members)]
    assert max(entries) <= 3 and entries[1:]


def test_break_gives_its_reason() -> None:
    made = jitmagic.jit(rows, backend="eager")
    for length in (4, 6):
        compare(made, rows, length, train=False)
    reasons = [
        record.result("trace").exit.reason.message
        for record in handle_of(made).journal.records
        if getattr(record.result("trace").exit, "reason", None) is not None
    ]
    assert reasons[0] == "how often this loop runs varies (the rows of a tensor)"


@pytest.mark.parametrize("program", [rows, backwards])
def test_a_loop_under_a_transform_is_a_variant_for_each_length(program: Program) -> None:
    def batched(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.vmap(program, in_dims=(0, None))(x, w)

    made = jitmagic.jit(batched, backend="eager")
    for length in (4, 6, 5):
        x, w = torch.randn(3, length, 8, dtype=torch.float64), torch.eye(8, dtype=torch.float64)
        torch.testing.assert_close(made(x, w), batched(x, w))
    handle = handle_of(made)
    assert len(handle.dispatcher.entries) == 3 and not handle.family.members


def test_reset_clears_varying_lengths() -> None:
    made = jitmagic.jit(rows, backend="eager")
    for length in (4, 6, 5):
        compare(made, rows, length, train=False)
    handle = handle_of(made)
    assert handle.family.members
    handle.reset()
    for _ in range(3):
        compare(made, rows, 5, train=False)
    assert len(handle.dispatcher.entries) == 1 and not handle.family.members
