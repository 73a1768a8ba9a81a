"""Random small tensor programs for fuzzing fusion and code generation.

`random_function(seed)` returns a function and its inputs; equal seeds give equal programs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

__all__ = ["random_function"]

UNARY = [
    lambda x: x.sin(), lambda x: x * 0.5 + 1, lambda x: x.relu(), lambda x: x.tanh(),
    lambda x: (-x.abs()).exp(), lambda x: x.sigmoid(), lambda x: x * x, lambda x: x.clone(),
]  # fmt: skip
BINARY = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: torch.maximum(x, y),
    lambda x, y: torch.where(x > y, x, y * 0.5),
]  # fmt: skip
REDUCE = [
    lambda x, d: x.sum(d, keepdim=True) * 0.1, lambda x, d: x.amax(d, keepdim=True),
    lambda x, d: x.mean(d, keepdim=True), lambda x, d: x.sum(d) * 0.1, lambda x, d: x.amin(d),
]  # fmt: skip


def _shape_op(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    choice = rng.randrange(6)
    if choice == 0 and x.dim() >= 2:
        return x.transpose(-1, -2)
    if choice == 1:
        return x.reshape(-1)
    if choice == 2 and x.dim() >= 1 and x.shape[-1] > 2:
        return x[..., 1:]
    if choice == 3 and x.dim() >= 1:
        return torch.cat([x, x * 2], -1)
    if choice == 4 and x.dim() >= 1:
        return x.flip(0)
    if choice == 5 and x.dim() == 1 and x.numel() % 2 == 0:
        return x.reshape(2, -1)
    return x.contiguous() + 1


def _broadcasts(x: torch.Tensor, y: torch.Tensor) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape))
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def random_function(seed: int) -> tuple[Callable, list[torch.Tensor]]:
    """Return a program of a dozen steps over two or three inputs; some write to an input at the
    end.
    """
    rows, columns = random.Random(seed).choice([(4, 6), (7, 33), (16, 16), (40, 20), (3, 130)])

    def fn(*inputs: torch.Tensor):
        rng = random.Random(seed)
        values = list(inputs)
        for _ in range(rng.randrange(4, 14)):
            x = rng.choice(values[-4:] + values)
            kind = rng.random()
            if kind < 0.35:
                values.append(rng.choice(UNARY)(x))
            elif kind < 0.65:
                fitting = [y for y in values if _broadcasts(x, y)]
                values.append(rng.choice(BINARY)(x, rng.choice(fitting)))
            elif kind < 0.85 and x.dim() > 0:
                values.append(rng.choice(REDUCE)(x, rng.randrange(-x.dim(), x.dim())))
            else:
                values.append(_shape_op(x, rng))
        made = values[len(inputs) :]
        results = [values[-1], *rng.sample(made, min(2, len(made)))]
        if rng.random() < 0.3:
            same = [v for v in made if v.shape == inputs[0].shape]
            if same:
                inputs[0].copy_(rng.choice(same))
        return [r + 0 if any(r is x for x in inputs) else r for r in results]

    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, columns), (rows, columns), (columns,)]
    return fn, [torch.randn(shape, generator=generator) for shape in shapes]
