"""Random chains of views, moves, reductions and arithmetic: lowered, verified, read back,
interpreted.
"""

from __future__ import annotations

import random

import pytest
import torch
from recording import check

from jitmagic.loops.python_form import from_python, to_python

MOST = 400  # elements of a tensor in a chain, at most


def _dim(rng, x):
    return rng.randrange(x.dim()) if x.dim() else 0


def _shape(rng, x):
    """Return another shape with as many elements."""
    sizes, left = [], x.numel()
    while left > 1:
        factor = rng.choice([n for n in range(1, left + 1) if left % n == 0])
        sizes.append(factor)
        left //= factor
    sizes += [1] * rng.randrange(2)
    rng.shuffle(sizes)
    return sizes


def _slice(rng, x):
    d = _dim(rng, x)
    start, step = rng.randrange(x.shape[d]), rng.choice([1, 1, 2, 3])
    return lambda x: x[(slice(None),) * d + (slice(start, None, step),)]


def _ranked(least, make):
    return lambda rng, x: make(rng, x) if x.dim() >= least else (lambda x: x.unsqueeze(0))


def _reshape(rng, x):
    shape = _shape(rng, x)
    return lambda x: x.reshape(shape)


def _permute(rng, x):
    dims = rng.sample(range(x.dim()), x.dim())
    return lambda x: x.permute(dims)


def _expand(rng, x):
    n = rng.choice([1, 2, 3])
    return lambda x: x.unsqueeze(0).expand(n, *x.shape) if x.numel() * n < MOST else x * 2


def _flip(rng, x):
    d = _dim(rng, x)
    return lambda x: x.flip(d)


def _roll(rng, x):
    d, n = _dim(rng, x), rng.randrange(-3, 4)
    return lambda x: x.roll(n, d)


def _pad(rng, x):
    a, b = rng.choice([0, 1, 2]), rng.choice([0, 1])
    return lambda x: torch.constant_pad_nd(x, [a, b], 0.5)


def _cat(rng, x):
    d = _dim(rng, x)
    return lambda x: torch.cat([x, x * 2], d) if x.numel() * 2 < MOST else x.narrow(d, 0, 1)


def _sum(rng, x):
    d, keep = _dim(rng, x), rng.random() < 0.5
    return lambda x: x.sum(d, keep)


def _center(rng, x):
    d = _dim(rng, x)
    return lambda x: x - x.amax(d, keepdim=True)


def _index(rng, x):
    d = _dim(rng, x)
    picks = torch.tensor([rng.randrange(x.shape[d]) for _ in range(3)])
    return lambda x: x.index_select(d, picks) if x.shape[d] > 1 else x + 1


def _select(rng, x):
    d = _dim(rng, x)
    n = rng.randrange(x.shape[d])
    return lambda x: x.select(d, n)


def _pointwise(rng, x):
    number = rng.choice([0.5, -1.25, 3])
    return rng.choice(
        [
            lambda x: x * number + 1,
            lambda x: torch.where(x > number, x, -x),
            lambda x: x.clamp(-2, 3).abs(),
            lambda x: x.to(torch.bfloat16).to(x.dtype),
            lambda x: torch.maximum(x, x.sigmoid()),
        ]
    )


MOVES = [
    _reshape,
    _ranked(1, _permute),
    _ranked(1, _slice),
    _ranked(1, _flip),
    _ranked(1, _roll),
    _ranked(1, _pad),
    _ranked(1, _cat),
    _ranked(1, _sum),
    _ranked(1, _center),
    _ranked(1, _index),
    _ranked(1, _select),
    _expand,
    _pointwise,
    _pointwise,
]


def chain(seed: int, x: torch.Tensor, length: int = 9):
    """Return the tensors of `length` random moves on x."""
    rng = random.Random(seed)
    moves, here = [], x
    for _ in range(length):
        move = rng.choice(MOVES)(rng, here)
        here = move(here)
        moves.append(move)
    kept = [n for n in range(length) if rng.random() < 0.3] + [length - 1]

    def program(x):
        made = []
        for move in moves:
            x = move(x)
            made.append(x)
        return [made[n] for n in kept]

    return program


@pytest.mark.parametrize("seed", range(80))
def test_random_chain(seed):
    torch.manual_seed(seed)
    shape = [(4, 6), (2, 3, 4), (12,), (), (1, 5, 1)][seed % 5]
    x = torch.randn(shape)
    program = check(chain(seed, x), x, exact=False, tolerance=4.0)
    again = from_python(to_python(program), program.constants)
    assert (again.steps, again.buffers) == (program.steps, program.buffers)
