"""Growth of compile time with the size of the program, per stage.

python -m tests.bench.growth [--only WORD] [--sizes 4] [--start F] [--rounds 2] [--excess]

Each family is a kind of program with a size n. A fresh function is compiled at n, 2n, 4n, ...; each
row is a stage: processor seconds of this process at each size (the least of some rounds; C++
compilers are processes of their own and do not count), and between neighbouring sizes the exponent
e of time ~ n^e. `rest` is what no stage covers: guards, the first run, comparison with eager.
`--excess` compares the functions in the profiles of the two largest sizes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import linecache
import math
import pstats
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import jitmagic
from jitmagic.records import Recording, RunningStage, watchers

__all__ = ["FAMILIES", "REST", "Family", "stage_seconds", "timed_stages"]

REST = "rest"
OPTIONS: dict[str, Any] = {"compile_seconds": 3600, "on_error": "raise", "keep": "compiled"}
NEGLIGIBLE = 0.05  # seconds: below this an exponent is noise
_serial = 0


@dataclass(frozen=True)
class Family:
    """`make(n)` returns a call that compiles a fresh function of size n; `n`: the least size."""

    name: str
    n: int
    make: Callable[[int], Callable[[], object]]


def function_from(source: str, **names: Any) -> Callable[..., Any]:
    """Return the function `f` of a source text that tracebacks and explanations can read."""
    global _serial
    _serial += 1
    file = f"<growth {_serial}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"torch": torch, **names}
    exec(compile(source, file, "exec"), namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


def _written(parameters: str, lines: Sequence[str], **names: Any) -> Callable[..., Any]:
    body = "".join(f"    {line}\n" for line in lines)
    return _jit(function_from(f"def f({parameters}):\n{body}", **names))


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    return jitmagic.jit(function, options=OPTIONS)


def pointwise(n: int) -> Callable[[], object]:
    lines = [f"x = torch.sin(x) + {1 / (i + 2)} * y" for i in range(n)]
    f = _written("x, y", [*lines, "return x"])
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    return lambda: f(x, y)


def _products(n: int) -> tuple[Callable[..., Any], torch.Tensor, list[torch.Tensor]]:
    f = _written("x, ws", ["for w in ws: x = torch.tanh(x @ w)", "return x.sum()"])
    return f, torch.randn(128, 128), [torch.randn(128, 128) for _ in range(n)]


def products(n: int) -> Callable[[], object]:
    f, x, weights = _products(n)
    return lambda: f(x, weights)


def products_backward(n: int) -> Callable[[], object]:
    f, x, weights = _products(n)
    for weight in weights:
        weight.requires_grad_()
    return lambda: f(x, weights).backward()


def inputs(n: int) -> Callable[[], object]:
    names = [f"x{i}" for i in range(n)]
    f = _written(", ".join(names), [*(f"x0 = x0 + {name}" for name in names[1:]), "return x0"])
    xs = [torch.randn(16, 16) for _ in range(n)]
    return lambda: f(*xs)


def outputs(n: int) -> Callable[[], object]:
    f = _written("x", [f"return [{', '.join(f'x * {i}.5' for i in range(n))}]"])
    x = torch.randn(16, 16)
    return lambda: f(x)


def adam(n: int) -> Callable[[], object]:
    parameters = [nn.Parameter(torch.randn(16, 16)) for _ in range(n)]
    for parameter in parameters:
        parameter.grad = torch.randn(16, 16)
    optimizer = torch.optim.Adam(parameters, foreach=True)
    f = _jit(function_from("def f():\n    optimizer.step()\n", optimizer=optimizer))
    return f


def modules(n: int) -> Callable[[], object]:
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(n)]
    f = _jit(nn.Sequential(*blocks))
    x = torch.randn(64, 16)
    return lambda: f(x).sum().backward()


def scalars(n: int) -> Callable[[], object]:
    lines = []
    for i in range(n):
        lines += [f"if k > {i}: a = a + k * {i}", f"else: a = a - {i}"]
    f = _written("x, k", ["a = 0", *lines, "return x * a"])
    x = torch.randn(16, 16)
    return lambda: f(x, n // 2)


def containers(n: int) -> Callable[[], object]:
    lines = ["found, named = [], {}", f"for i in range({n}):", "    found.append(x)"]
    f = _written("x", [*lines, "    named[i] = (i, x)", "return found, named, x + 1"])
    x = torch.randn(16, 16)
    return lambda: f(x)


def views(n: int) -> Callable[[], object]:
    lines = ["x = x.clone()"]
    for i in range(n):
        lines += [f"x[{i % 16}].add_({i})", f"y = y + x.view(256)[{i % 200}:{i % 200 + 16}]"]
    f = _written("x, y", [*lines, "return x, y"])
    x, y = torch.randn(16, 16), torch.randn(16)
    return lambda: f(x, y)


def breaks(n: int) -> Callable[[], object]:
    lines = []
    for i in range(n):
        lines += [f"if x.sum() > {i}: x = x * 2", "else: x = x + 1"]
    f = _written("x", [*lines, "return x"])
    x = torch.randn(16, 16)
    return lambda: f(x)


def reductions(n: int) -> Callable[[], object]:
    f = _written("x", [f"return [{', '.join(f'(x * {i}.5).sum(1)' for i in range(n))}]"])
    x = torch.randn(64, 64)
    return lambda: f(x)


def rows(n: int) -> Callable[[], object]:
    f = _written("x", [f"return [{', '.join(f'x[{i}] * {i}.5' for i in range(n))}]"])
    x = torch.randn(n, 64)
    return lambda: f(x)


def attention(n: int) -> Callable[[], object]:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        n,
        enable_nested_tensor=False,
    )
    f = _jit(model)
    x = torch.randn(2, 16, 32)
    return lambda: f(x).sum().backward()


FAMILIES = (
    Family("pointwise chain", 50, pointwise),
    Family("chain of matrix products", 25, products),
    Family("the same with backward", 25, products_backward),
    Family("inputs", 50, inputs),
    Family("outputs", 50, outputs),
    Family("parameters of Adam", 10, adam),
    Family("modules, with backward", 10, modules),
    Family("branches on numbers", 100, scalars),
    Family("entries of containers", 100, containers),
    Family("views and writes", 40, views),
    Family("graph breaks", 5, breaks),
    Family("reductions side by side", 25, reductions),
    Family("rows of one buffer", 25, rows),
    Family("attention layers, with backward", 2, attention),
)


class _Clock:
    """Seconds of the clock `time` by stage; a stage within another counts for itself alone."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.seconds: Counter[str] = Counter()
        self._now = REST
        self._outer: list[str] = []
        self._time, self._since = time, time()

    def switch(self, stage: str) -> None:
        now = self._time()
        self.seconds[self._now] += now - self._since
        self._now, self._since = stage, now

    def watch(self, _: Recording, stage: RunningStage, begins: bool) -> None:
        if begins:
            self._outer.append(self._now)
        self.switch(stage.stage if begins else self._outer.pop())


@contextmanager
def timed_stages(time: Callable[[], float] = time.process_time) -> Iterator[Counter[str]]:
    """Yield a Counter that holds the seconds of each stage when the block ends."""
    clock = _Clock(time)
    watchers.append(clock.watch)
    try:
        yield clock.seconds
        clock.switch("")
    finally:
        watchers.remove(clock.watch)


def stage_seconds(family: Family, n: int) -> Counter[str]:
    """Compile a fresh program of size n: processor seconds by stage."""
    torch.manual_seed(0)
    call = family.make(n)
    gc.collect()
    with timed_stages() as seconds:
        call()
    return seconds


def _calls(family: Family, n: int) -> dict[tuple[str, int, str], tuple[int, float]]:
    """By function the number of calls and the seconds in it alone, of a compile at size n."""
    call = family.make(n)
    gc.collect()
    profile = cProfile.Profile()
    profile.runcall(call)
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    return {function: (row[1], row[2]) for function, row in rows}


def _show_excess(family: Family, n: int) -> None:
    """Show what takes more than twice as long at size 2n as at n, the largest excess first."""
    less, more = _calls(family, n), _calls(family, 2 * n)
    total = sum(seconds for _, seconds in more.values())

    def excess(function: tuple[str, int, str]) -> float:
        return more[function][1] - 2 * less.get(function, (0, 0.0))[1]

    print(f"  n = {n}, {2 * n}: {total:.2f} s under the profiler")
    for function in sorted(more, key=excess, reverse=True)[:12]:
        (calls, seconds), (before, earlier) = more[function], less.get(function, (0, 0.0))
        if excess(function) < total / 100:
            break
        where = f"{function[0].rpartition('jitmagic/')[2]}:{function[1]} {function[2]}"
        print(f"  {earlier:7.3f} {seconds:7.3f} s {before:8} {calls:8} calls  {where}")


def _measured(family: Family, sizes: Sequence[int], rounds: int) -> list[Counter[str]]:
    stage_seconds(family, 2)
    found = []
    for n in sizes:
        tries = [stage_seconds(family, n) for _ in range(rounds)]
        found.append(Counter({s: min(one[s] for one in tries) for s in tries[0]}))
    return found


def _show(family: Family, sizes: Sequence[int], found: Sequence[Counter[str]]) -> None:
    print(f"{family.name}: n = {', '.join(map(str, sizes))}")
    rows = {stage: [one[stage] for one in found] for stage in found[-1] if stage}
    rows["total"] = [sum(one.values()) for one in found]
    for stage, times in rows.items():
        if times[-1] < NEGLIGIBLE:
            continue
        pairs = zip(times, times[1:], strict=False)
        exponents = [math.log2(max(b, 1e-9) / max(a, 1e-9)) for a, b in pairs]
        mark = " <" if exponents and exponents[-1] > 1.15 else ""
        seconds = " ".join(f"{t:8.3f}" for t in times)
        print(f"  {stage:22} {seconds}   e {' '.join(f'{e:5.2f}' for e in exponents)}{mark}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth")
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--sizes", type=int, default=4, help="how often n is doubled, and one")
    parser.add_argument("--start", type=int, default=1, help="the least n is multiplied by this")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--excess", action="store_true", help="show functions that grow faster")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for family in FAMILIES:
        if arguments.only not in family.name:
            continue
        sizes = [family.n * arguments.start << i for i in range(arguments.sizes)]
        _show(family, sizes, _measured(family, sizes, arguments.rounds))
        if arguments.excess:
            _show_excess(family, sizes[-1] // 2)


if __name__ == "__main__":
    main()
