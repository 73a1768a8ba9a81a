"""Random generators and coroutines: nested loops, handlers and `with` blocks around suspensions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["observed", "random_function"]

_NAMES = ("a", "b", "c")
_EXPRESSIONS = (
    "{v} + 1", "({v} * 0.5).sin()", "torch.add({v}, {w})", "{v}.mul({w}).cos()", "helper({v})",
    "[{v} * q for q in range(2)][1]", "({v} if flag else {w})", "scale({v})",
)  # fmt: skip
_YIELDS = ("yield {v} * 2", "yield {v}", "yield from inner({v})", "yield ({v}, 'pair')")
_AWAITS = ("await pause({v})", "await pause({v}, fails={fails})", "await asyncio.sleep(0, 0.5)")
_HANDLED = ("ValueError", "(ValueError, RuntimeError)", "RuntimeError", "KeyError")


def helper(x: Tensor) -> Tensor:
    return (x + 0.25).tanh()


def number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.5


def inner(x: Tensor) -> Any:
    yield x * 3
    yield x - 1
    return 0.75


@contextlib.contextmanager
def block(log: list[Any]) -> Iterator[None]:
    log.append("in")
    try:
        yield
    finally:
        log.append("out")


@contextlib.asynccontextmanager
async def async_block(log: list[Any]) -> Any:
    log.append("in")
    try:
        await asyncio.sleep(0)
        yield 1
    finally:
        await asyncio.sleep(0)
        log.append("out")


async def items(x: Tensor) -> Any:
    for k in range(2):
        await asyncio.sleep(0)
        yield x * k


async def pause(x: Tensor, fails: bool = False) -> float:
    await asyncio.sleep(0)
    if fails:
        raise RuntimeError("in pause")
    return 0.5


class _Writer:
    """Writes the source of one function."""

    def __init__(self, seed: int) -> None:
        self.random, self.is_async, self.count = random.Random(seed), seed % 3 == 0, 0

    def source(self) -> str:
        head = f"{'async ' * self.is_async}def f(a, b, flag, log):"
        given = ["c = a * b", "factor = 2.0", "def scale(x): return x * factor"]
        ends = ["return a.sum() + b.sum()"] if self.is_async else ["yield a", "return b.sum()"]
        lines = [*given, *self.block(3), *ends]
        return "\n".join([head, *(f"    {line}" for line in lines)])

    def filled(self, texts: tuple[str, ...]) -> str:
        v, w = self.random.choice(_NAMES), self.random.choice(_NAMES)
        return self.random.choice(texts).format(v=v, w=w, fails=self.count % 7 == 0)

    def block(self, depth: int, in_loop: bool = False) -> list[str]:
        return [
            line
            for _ in range(self.random.randint(1, 4))
            for line in self.statement(depth, in_loop)
        ]

    def inside(self, head: str, depth: int, in_loop: bool = False) -> list[str]:
        return [head, *(f"    {line}" for line in self.block(depth - 1, in_loop))]

    def statement(self, depth: int, in_loop: bool) -> list[str]:
        self.count += 1
        chance, name = self.random.random(), self.random.choice(_NAMES)
        if depth == 0 or chance < 0.3:
            return [f"{name} = {self.filled(_EXPRESSIONS)}"]
        if chance < 0.5:
            waits = self.filled(_AWAITS if self.is_async else _YIELDS)
            forms = (waits, f"s = {waits}", f"{name} = torch.add(a, number(({waits})))")
            return [self.random.choice(forms)]
        if chance < 0.6:
            return [self.random.choice((f"print({self.count})", f"log.append({self.count})"))]
        if chance < 0.66:
            return self.inside("if float(a.sum()) > 0:", depth, in_loop)
        if chance < 0.74:
            return self.inside(f"for i{depth} in range({self.random.randint(0, 3)}):", depth, True)
        if chance < 0.86:
            return self.handlers(depth, in_loop)
        if chance < 0.93:
            manager = "torch.no_grad()" if chance < 0.89 else "block(log)"
            return self.inside(f"with {manager}:", depth, in_loop)
        if self.is_async:
            heads = ("async with async_block(log):", "async for t in items(a):")
            return self.inside(heads[chance < 0.97], depth, in_loop)
        return ["if float(b.sum()) > 1: break"] if in_loop else ["factor = factor + 0.5"]

    def handlers(self, depth: int, in_loop: bool) -> list[str]:
        lines = self.inside("try:", depth, in_loop)
        lines += self.random.choice(([], [], ["    raise ValueError('here')"], ["    a.view(77)"]))
        kind = self.random.choice(_HANDLED)
        if (chance := self.random.random()) < 0.75:
            lines += self.inside(f"except {kind} as error:", depth, in_loop)
            lines.append("    log.append(repr(error)[:40])")
        if chance > 0.5:
            lines += [*self.inside("finally:", depth), f"    log.append({self.count})"]
        return lines


def random_function(seed: int) -> Callable[..., Any]:
    namespace = dict(globals())
    exec(compile(_Writer(seed).source(), f"<random {seed}>", "exec"), namespace)
    return namespace["f"]  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------- what can be seen


def observed(function: Callable[..., Any], seed: int) -> list[Any]:
    """Run it with sends, throws and closes chosen by the seed; return all that can be seen."""
    log: list[Any] = []
    found: list[Any] = []
    a, b = torch.linspace(-1, 1, 3).requires_grad_(), torch.ones(3) * 0.5
    with contextlib.redirect_stdout(io.StringIO()) as printed, torch.enable_grad():
        try:
            made = function(a, b, bool(seed % 2), log)
            if inspect.iscoroutine(made):
                found.append(_plain(asyncio.run(made)))
            else:
                _drive(made, random.Random(seed), found)
        except StopIteration as stop:
            found.append(_plain(stop.value))
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [(one.name, one.lineno) for one in frames if one.filename.startswith("<random")]
            found.append((type(error).__name__, str(error)[:60], lines))
    return [found, log, printed.getvalue()]


def _drive(generator: Any, chance: random.Random, found: list[Any]) -> None:
    found.append(_plain(next(generator)))
    for _ in range(25):
        step = chance.random()
        if step < 0.95:
            sent = None if step < 0.7 else 2.0
            made = generator.send(sent) if step < 0.85 else generator.throw(ValueError("thrown"))
            found.append((_plain(made), torch.is_grad_enabled()))
        else:
            generator.close()
            return


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return [round(x, 4) for x in value.detach().flatten().tolist()], value.requires_grad
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
