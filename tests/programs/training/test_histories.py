"""Containers grow while a program trains: losses, windows over them, replay buffers."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic import RecompileWarning

from ..counts import counts_of
from ..harness import assert_alike

Deque = collections.deque
Log = Callable[[Any, Tensor], Any]  # what is done with a loss: a history, the loss -> a result


def _every(history: list[float], loss: Tensor) -> Any:
    history.append(loss.item())
    return loss * 2 if len(history) % 4 == 0 else loss.detach()


def _window(history: Any, loss: Tensor) -> Any:
    history.append(loss.item())
    recent = history[-3:]
    return sum(recent) / len(recent)


def _bounded(history: list[Tensor], loss: Tensor) -> Any:
    history.append(loss.detach())
    if len(history) > 3:
        history.pop(0)
    return history[-1] - history[0], len(history)


def _mean(history: Any, loss: Tensor) -> Any:
    history.append(loss.item())
    return sum(history) / len(history)


def _smoothed(history: list[float], loss: Tensor) -> Any:
    history.append(loss.item() if not history else 0.9 * history[-1] + 0.1 * loss.item())
    return loss.detach()


def _baseline(history: Any, loss: Tensor) -> Any:
    better = loss.detach() - (sum(history) / len(history) if history else 0.0)
    history.append(loss.item())
    return better


def _annealed(history: list[float], loss: Tensor) -> Any:
    history.append(loss.item())
    return loss.detach() * min(1.0, len(history) / 20)


def _recorded(history: dict[str, list[float]], loss: Tensor) -> Any:
    history.setdefault("loss", []).append(loss.item())
    history["best"] = [min(history["loss"])]
    return len(history), len(history["loss"])


class Memory:
    """A typical replay buffer."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return len(self.kept)


def _remembered(memory: Memory, loss: Tensor) -> Any:
    memory.kept.append(loss.detach())
    if len(memory) < 3:
        return None
    return torch.stack(memory.kept[-3:]) / len(memory)


# What it is kept in at first, what is done, how many variants that takes in 14 calls.
HISTORIES: dict[str, tuple[Callable[[], Any], Log, int]] = {
    "every fourth": (list, _every, 4),
    "window": (list, _window, 3),
    "bounded": (list, _bounded, 4),
    "mean": (list, _mean, 3),
    "mean of a deque": (lambda: Deque(maxlen=5), _mean, 6),
    "mean of an endless deque": (Deque, _mean, 3),
    "smoothed": (list, _smoothed, 3),
    "baseline": (list, _baseline, 3),
    "baseline of a deque": (lambda: Deque(maxlen=4), _baseline, 5),
    "annealed": (list, _annealed, 3),
    "memory": (Memory, _remembered, 4),
    "records": (dict, _recorded, 4),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_takes_few_variants(name: str) -> None:
    begin, log, most = HISTORIES[name]
    seen = []
    for tag in (lambda f: f, lambda f: jitmagic.jit(f, backend="aot_eager")):
        torch.manual_seed(0)
        model, history = nn.Linear(4, 3), begin()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @tag
        def step(x: Tensor) -> Any:
            loss = F.mse_loss(model(x), x[:, :3])  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return log(history, loss)  # noqa: B023

        with warnings.catch_warnings():
            warnings.simplefilter("error", RecompileWarning)
            results = [step(torch.randn(5, 4)) for _ in range(14)]
        seen.append(tree_leaves([results, getattr(history, "kept", history)]))
    assert_alike(seen[1], seen[0])
    assert counts_of(step).graphs <= most
    assert counts_of(step).breaks == 0


def _first(xs: Any) -> Any:
    return xs.pop(0) if type(xs) is list else xs.popleft()


CONTENTS: dict[str, Callable[[list[Any], int], Any]] = {
    "last": lambda xs, i: xs[-1],
    "first": lambda xs, i: xs[0],
    "at": lambda xs, i: xs[i],
    "at, from the end": lambda xs, i: xs[-1 - i],
    "tail": lambda xs, i: xs[-2:],
    "all but the last": lambda xs, i: xs[:-1],
    "middle": lambda xs, i: xs[-3:-1],
    "from the front": lambda xs, i: xs[1:],
    "every other": lambda xs, i: xs[::2],
    "nothing": lambda xs, i: (xs[:0], xs[-0:], xs[5:], xs[-1:-3]),
    "copy": lambda xs, i: (list(xs), xs.copy(), xs[:] is xs),
    "reduced": lambda xs, i: (sum(xs), min(xs), max(xs)),
    "reduced tails": lambda xs, i: (sum(xs[-2:]), max(xs[:-1], default=0.5), sum(xs[1:], 1.5)),
    "appended": lambda xs, i: (xs.append(7.5), xs[-1], xs[-2], xs[0], xs[-2:], sum(xs), len(xs)),
    "appended, tails": lambda xs, i: (xs.extend((1, 0.5)), xs[-3:], xs[-4:-1], xs[-3:-2], xs[:-2]),
    "appended, all": lambda xs, i: (xs.append(0.5), xs[-9:], xs[:], sum(xs[-2:]), xs[1:], xs[:2]),
    "dropped": lambda xs, i: (_first(xs), xs[0], xs[-1], len(xs), bool(xs), sum(xs), list(xs)[-2:]),
    "moved on": lambda xs, i: (xs.append(9.0), _first(xs), _first(xs), xs[0], min(xs), list(xs)),
    "popped": lambda xs, i: (xs.pop(), xs.pop(0)),
    "truth": lambda xs, i: (bool(xs), not xs, len(xs) > 3, len(xs) or "none"),
    "written": lambda xs, i: (xs.__setitem__(0, 2.5), xs[0], xs[-1], sum(xs), xs[-2:]),
    "grown at the front": lambda xs, i: (xs.insert(0, 0.25), xs[0], xs[-1], xs[-2:], len(xs)),
}


@pytest.mark.parametrize("kind", [list, Deque, lambda items: Deque(items, maxlen=4)])
@pytest.mark.parametrize("name", CONTENTS)
def test_contents_equal_python(name: str, kind: Callable[[list[Any]], Any]) -> None:
    look = CONTENTS[name]

    def program(xs: Any, i: int, t: Tensor) -> Any:
        try:
            found = look(xs, i)
        except (IndexError, ValueError, TypeError) as error:
            found = type(error), str(error)
        return found, t + len(xs)

    tagged = jitmagic.jit(program, backend="eager")
    numbers = [0.5, 0.25, 3, -1.5, 0.125, 8.0, 1e-3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for round_ in range(2):
            for count in (3, 4, 5, 7, 2, 1, 0, 4, 3):
                items = [n + round_ for n in numbers[:count]]
                want, got = kind(items), kind(items)
                index = count % 3
                expected = program(want, index, torch.ones(2))
                made = tagged(got, index, torch.ones(2))
                assert repr((made, got)) == repr((expected, want))


LOSSY = (0.1, 1e16, 1.0, -1e16, 1e-9, 3, 0.3, -0.0, 1e308, 1e308, float("inf"), -float("inf"))
SUMS: dict[str, Callable[[list[Any], float, float], Any]] = {
    "behind": lambda xs, a, b: (xs.extend((a, b)), sum(xs)),
    "an int behind": lambda xs, a, b: (xs.extend((a, 1, b, True)), sum(xs)),
    "a part": lambda xs, a, b: (xs.append(a), sum(xs[-3:]), sum(xs[:-1])),
    "of numbers that vary": lambda xs, a, b: sum([a, b, 0.1, 1e16, a, -1e16]),
    "from a float": lambda xs, a, b: sum([b, a, 1], 0.1),
    "from an int": lambda xs, a, b: sum((1, 2, a, b), 3),
    "constants first": lambda xs, a, b: sum([0.1] * 10 + [a, 1e16, b]),
    "of mixed items": lambda xs, a, b: (xs.insert(0, a), sum(xs)),
    "up to a complex number": lambda xs, a, b: (sum([0.1] * 10 + [1j, 1]), sum([a, 1, b, 1j])),
    "up to a tensor": lambda xs, a, b: sum([*[0.1] * 10, a, torch.ones(2).double(), 0.1, 0.1]),
}


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_sums_equal_python_exactly(name: str, read: bool) -> None:
    """Compensated summation in sum(): of floats since CPython 3.12, of all numbers since 3.14."""

    def program(xs: list[Any], x: Tensor, b: float) -> Any:
        return SUMS[name](xs, x.item() if read else b, b), x + 1

    tagged = jitmagic.jit(program, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for turn, a in enumerate((*LOSSY, *LOSSY[::-1])):
            x, b = torch.tensor(a, dtype=torch.float64), float(LOSSY[turn * 5 % len(LOSSY)])
            for xs in ([0.1] * 10, [1e16, 1.0, 0.1], [2, 3], [0.5, 2, 0.1], list(LOSSY[:turn])):
                want, got = list(xs), list(xs)
                expected = program(want, x, b)
                assert repr((tagged(got, x, b), got)) == repr((expected, want))


def test_items_that_are_not_numbers_are_read() -> None:
    @jitmagic.jit(backend="eager")
    def total(xs: list[Any]) -> Any:
        return sum(xs[-2:]), len(xs)

    for items in ([1, 2.0], [1.5, True], [True, True, 2], [torch.ones(2), 1.5], [1, 2.0, 3], [4]):
        assert repr(total(list(items))) == repr((sum(items[-2:]), len(items)))


ARRAYS: dict[str, Callable[[float, float], Any]] = {
    "mean": lambda a, b: np.mean([a, b, 1.0]),
    "of a tuple": lambda a, b: np.sum((a, b)),
    "std": lambda a, b: np.std([a, b, 0.5]),
    "median": lambda a, b: np.median([a, b, 0.5]),
    "largest": lambda a, b: (np.max([a, b]), np.argmax([a, b])),
    "array": lambda a, b: np.array([a, b]),
    "nested": lambda a, b: np.array([[a, b], [0.5, 2.0]]).sum(0),
    "of ints too": lambda a, b: np.array([a, 1, b]),
    "stacked": lambda a, b: np.stack([a, b]),
    "rounded": lambda a, b: float(np.mean([a, b])),
    "of another dtype": lambda a, b: np.asarray([a, b], dtype=np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_takes_lists_of_numbers_that_vary(name: str) -> None:
    def program(x: Tensor, b: float) -> Any:
        return ARRAYS[name](x.sum().item(), b), x + 1

    tagged = jitmagic.jit(program, backend="eager")
    for turn in range(5):
        x = torch.arange(3.0) + turn
        assert repr(tagged(x, 0.25 * turn)) == repr(program(x, 0.25 * turn))
    assert counts_of(tagged).graphs <= (2 if name not in ("of ints too", "nested") else 8)
