"""with_sizes(program, seed): the program reads sizes, and its calls are of different ones.

Statements that compute with sizes and branch on them, and such whose results are as large as data
say, are put before its own, each may take what one before it made; further calls have the tensors
of the first with other sizes, equal ones changed alike. What eager does of all that is the oracle's
to ask, so calls that raise are kept now and then.
"""

from __future__ import annotations

import random
import re
import types
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .program import Program, load

__all__ = ["DATA_SIZES", "SIZES", "Bounded", "TooLarge", "with_sizes"]

_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33)
_SHAPE = re.compile(r"tensor\(\(([\d, ]*)\)")
_KEEP_RAISING = 0.05
_MOST = 1 << 28  # bytes of one result
_TRIES = 20  # for a statement that eager runs
_OF_DATA = 0.4  # of the statements
_CONDITIONS = ("$x != 0", "$x > 0", "$x <= 0", "$x.abs() > 0.5", "$x == $x", "$x > $n")
SIZES = (
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
    "$v = ($n * $m - 1) // 3, ($n << 1) % 5, $n / $m, divmod($n, 3), $n ** 2, -$n",
    "$v = math.ceil($n / 2) + math.floor($m * 0.5) + round($n / 3)",
    "$v = $x.sum() * ($n > $m) + ($n == 4 or $m == 4)",
    "$v = $x.unfold(0, min($n, 2), 1)",
    "$v = F.interpolate($x.reshape(1, 1, -1).float(), scale_factor=2)",
    "$v = $x.reshape(-1)[torch.arange($n) * $m % $x.numel()]",
    "$v = torch.linspace(0, $n, $m)",
    "$v = $x.flip(0).roll($n // 2, 0)",
    "$v = $x.as_strided(($n, 2), (1, 0))",
    "while $x.numel() > 9 and $x.dim() > 1:\n    $x = $x.sum(-1)\n$v = $x",
    "$v = [$x[i] * i for i in range($n)][-1]",
    "$v = ($x.sum(), 'long') if $n * $m > 20 else ($x.mean(), 'short')",
    "try:\n    $v = $x.reshape($n // 2, 2, -1)\nexcept RuntimeError:\n    $v = $x + 1",
    "assert $n != 17, f'not {$n}'\n$v = $x",
)
DATA_SIZES = (
    "$v = $x[$c]",
    "$v = $x[$c] * 2 + $n",
    "$v = torch.nonzero($c) + $n",
    "$v = $x[($c).reshape($n, -1).any(-1)]",
    "$v = $x[($c).reshape($n, -1).all(-1)].sum(0)",
    "$v = torch.masked_select($x, $c).reshape(-1, 1)",
    "$v = torch.where($c)[0] * $m",
    "$v = $x.reshape(-1)[torch.where(($c).reshape(-1))[0]]",
    "$v = torch.unique($x.detach().reshape(-1))",
    "$v = torch.unique($x.detach().reshape(-1).round(), return_counts=True)[1] * $n",
    "$v = torch.unique_consecutive(($c).reshape(-1)).shape[0] + $n",
    "$v = $x.repeat_interleave($n, dim=0)",
    "$v = $x.repeat_interleave(torch.arange($n), dim=0)",
    "$v = torch.arange($n).repeat_interleave(($c).reshape($n, -1).sum(-1))",
    "$v = torch.bincount(($c).reshape(-1).long(), minlength=$n)",
    "$v = torch.bincount(($c).reshape($n, -1).sum(-1)) * $m",
    "$v_k = int(($c).sum())\n$v = torch.zeros($v_k + 1, 3) + $v_k",
    "$v = $x.reshape(-1)[: ($c).sum().item()] * 2",
    "$v = $x.reshape(-1)[($c).sum().item() :].sum()",
    "$v = torch.arange(($c).sum().item()).float()",
    "$v = $x[: int(torch.ones($n).sum().item()) // 2]",
    "$v = $x * 2 if ($c).sum().item() > $n else $x - 1",
    "$v = $x * 2 if len($x[$c]) > $m else $x - $n",
    "$v_s = torch.tensor([$n - 1, 1]).tolist()\n$v = [t.sum() for t in $x.split($v_s)]",
    "$v = torch.cat([$x[$c], $x.reshape(-1)])",
    "$v = $x.clone()\n$v[$c] = $n",
    "$v = $x.clone()\n$v[$c] = $x[$c] * 2",
    "$v = len($x[$c]) * $n + 1, $x[$c].numel() / $n",
    "$v = F.one_hot(($c).reshape(-1).long()).sum(0)",
    "$v = torch.zeros($n, $m).index_add_(0, torch.nonzero($c)[:, 0] % $n, torch.ones(1, $m)"
    ".expand(($c).sum().item(), $m))",
    "$v = $x[$c].view(-1, 1).expand(-1, $m).softmax(-1)",
    "$v = $x[$c].sort()[0].cumsum(0)",
    "$v = torch.stack([$x[$c], $x[$c] + $n]).sum(0)",
    "$v = F.pad($x[$c], (1, $n))",
    "$v = torch.argwhere($c).shape[0] == $n",
    "$v = $x[$c][: $n]",
    "$v = $x[$c][torch.arange($n) % max($x[$c].shape[0], 1)]",
    "$v = $x[$c]\nfor step in range(min(len($v), 3)):\n    $v = $v + step",
    "$v = [t * 2 for t in $x[$c].chunk(2)]",
    "$v = $x.reshape(-1).topk(min(($c).sum().item(), 3))[0]",
)


def with_sizes(program: Program, seed: int) -> Program:
    """The program with statements on sizes, and three to five calls more."""
    rng = random.Random(seed)
    shapes = [_shape(argument) for argument in program.calls[0]]
    named = list(zip(program.arguments, shapes, strict=False))
    tensors = [name for name, shape in named if shape]
    if not tensors:
        return program
    sized = _with_statements(rng, program, tensors)
    calls = [program.calls[0]]
    for _ in range(12):
        call = _resized(rng, program.calls[0])
        if len(calls) < 5 and _is_kept(rng, sized, call):
            calls.append(call)
    return replace(sized, calls=(*calls, *program.calls[1:2]))


def _with_statements(rng: random.Random, program: Program, tensors: list[str]) -> Program:
    """Those that run in the first call, before the program's own."""
    shape = "tuple" if program.shape == "single" else program.shape
    sized, names = replace(program, shape=shape), list(tensors)
    added: tuple[str, ...] = ()
    for n in range(rng.randrange(1, 4)):
        for _ in range(_TRIES):
            text = _statement(rng, f"w{n}", names)
            statements = (*added, text, *program.statements)
            larger = replace(sized, statements=statements, results=(*sized.results, f"w{n}"))
            if _is_kept(rng, larger, program.calls[0]):
                added, sized = (*added, text), larger
                names.append(f"w{n}")
                break
    return sized


def _statement(rng: random.Random, name: str, tensors: list[str]) -> str:
    """`tensors`: names that it may read; what is no tensor, or has no size, makes it raise."""
    x, y = rng.choice(tensors), rng.choice(tensors)
    text = rng.choice(DATA_SIZES if rng.random() < _OF_DATA else SIZES)
    text = text.replace("$c", rng.choice(_CONDITIONS)).replace("$v", name).replace("$x", x)
    return text.replace("$n", f"{x}.shape[0]").replace("$m", f"{y}.shape[-1]")


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


class TooLarge(Exception):
    """Memory that a program of a test should not take."""


class Bounded(TorchDispatchMode):
    """Raises where an operation gives more than `_MOST` bytes: a size that data decide, squared by
    two statements, was 48 GB.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            is_dense = isinstance(one, Tensor) and one.layout is torch.strided
            if is_dense and one.untyped_storage().nbytes() > _MOST:
                raise TooLarge
        return made


def _is_kept(rng: random.Random, program: Program, call: tuple[str, ...]) -> bool:
    """Whether eager has a result for the call; now and then also where it raises."""
    keeps_raising = rng.random() < _KEEP_RAISING
    space = load(replace(program, calls=(call,)).source())
    space["jitmagic"] = types.SimpleNamespace(graph_break=lambda: None)
    try:
        with redirect_stdout(StringIO()), Bounded():
            space["build"]()(*space["CALLS"][0]())
    except TooLarge:
        return False
    except Exception as error:  # whatever a program may raise
        return keeps_raising and "allocate memory" not in str(error)
    return True
