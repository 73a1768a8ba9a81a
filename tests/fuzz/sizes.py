"""with_sizes(program, seed): the program reads sizes, and its calls are of different ones.

Statements that compute with sizes and branch on them are put before its own; further calls have the
tensors of the first with other sizes, equal ones changed alike. What eager does of all that is the
oracle's to ask, so calls that raise are kept now and then.
"""

from __future__ import annotations

import random
import re
import types
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

from .program import Program, load

__all__ = ["with_sizes"]

_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33)
_SHAPE = re.compile(r"tensor\(\(([\d, ]*)\)")
_KEEP_RAISING = 0.05
STATEMENTS = (
    "$v = $x * $n + $n // 2",
    "$v = $x + 1 if $n > 3 else $x - $n",
    "$v = $x if $n % 2 == 0 else -$x",
    "$v = $x.reshape(-1)[: $n]",
    "$v = $x.reshape(-1)[$n // 2 :] * ($n + 1)",
    "$v = $x.reshape($x.numel() // $x.shape[-1], -1)",
    "$v = torch.zeros($n * 2 + 1, $m) + $n - $m",
    "$v = torch.arange($n)[:, None] < torch.arange($m)",
    "$v = torch.cat([$x.reshape(-1), torch.ones($n)])",
    "$v = torch.full((len($x), $m), $n + $m)",
    "$v = F.pad($x, (0, $n % 3))",
    "$v = $x.unsqueeze(0).expand($m, *$x.shape)",
    "$v = $x * (1.0 / $n)",
    "$v = $x.sum(0) / max($n, $m) + min($n, 4)",
    "$v = $x.narrow(0, $n - 1, 1)",
    "$v = torch.stack([$x] * 2).view(2, *$x.shape)",
    "$v = [t.sum() for t in $x.split(max($n // 2, 1))][-1]",
    "$v = $x.chunk(2)[0]",
    "$v = torch.tensor([$n, $m])",
    "$v = $x.flatten().view(-1, 1).mT",
    "$v = $x.repeat(*[2] * $x.dim())",
    "$v = torch.eye($n, $m)",
    "if $n == $m:\n    $v = $x * 2\nelse:\n    $v = $x + $m",
    "$v = $x\nfor step in range(min($n, 4)):\n    $v = $v + step",
    "$v = $x.new_ones($x.shape[::-1])",
    "$v = $x.sum(), $n, $n * $m - 1, ($n, $m) == (4, 4)",
    "$v = (f'{$n}', bool($n), $x.size(0) + 1, $x.numel())",
)


def with_sizes(program: Program, seed: int) -> Program:
    """The program with statements on sizes, and three to five calls more."""
    rng = random.Random(seed)
    shapes = [_shape(argument) for argument in program.calls[0]]
    named = list(zip(program.arguments, shapes, strict=False))
    tensors = [name for name, shape in named if shape]
    if not tensors:
        return program
    added, results = _statements(rng, tensors)
    sized = replace(
        program,
        statements=(*added, *program.statements),
        results=(*program.results, *results),
        shape="tuple" if program.shape == "single" else program.shape,
    )
    calls = [program.calls[0]]
    for _ in range(12):
        call = _resized(rng, program.calls[0])
        if len(calls) < 5 and (rng.random() < _KEEP_RAISING or _runs(sized, call)):
            calls.append(call)
    return replace(sized, calls=(*calls, *program.calls[1:2]))


def _statements(rng: random.Random, tensors: list[str]) -> tuple[list[str], list[str]]:
    made, names = [], []
    for n in range(rng.randrange(1, 4)):
        x, y = rng.choice(tensors), rng.choice(tensors)
        text = rng.choice(STATEMENTS).replace("$v", f"w{n}").replace("$x", x)
        text = text.replace("$n", f"{x}.shape[0]").replace("$m", f"{y}.shape[-1]")
        made.append(text)
        names.append(f"w{n}")
    return made, names


def _shape(text: str) -> tuple[int, ...]:
    found = _SHAPE.search(text)
    return tuple(int(n) for n in found[1].split(",") if n.strip()) if found else ()


def _resized(rng: random.Random, call: tuple[str, ...]) -> tuple[str, ...]:
    """Sizes that are equal stay so; 0 and 1, which broadcast, stay more often than not."""
    numbers = sorted({n for argument in call for n in _shape(argument)})
    changed = {n for n in numbers if rng.random() < (0.7 if n > 1 else 0.1)}
    other = {n: rng.choice(_SIZES) if n in changed else n for n in numbers}

    def resized(found: re.Match[str]) -> str:
        sizes = [other[int(n)] for n in found[1].split(",") if n.strip()]
        return f"tensor(({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"

    return tuple(_SHAPE.sub(resized, argument) for argument in call)


def _runs(program: Program, call: tuple[str, ...]) -> bool:
    """Whether eager has a result for the call."""
    space = load(replace(program, calls=(call,)).source())
    space["jitmagic"] = types.SimpleNamespace(graph_break=lambda: None)
    try:
        with redirect_stdout(StringIO()):
            space["build"]()(*space["CALLS"][0]())
    except Exception:  # whatever a program may raise
        return False
    return True
