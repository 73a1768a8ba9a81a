"""torch's control-flow operators as plain Python, which the compiled programs are compared with.

In eager torch.cond and the like call torch.compile, so that their own eager calls would take
seconds and test torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Function = Callable[..., Any]

TORCH = SimpleNamespace(
    cond=torch.cond,
    while_loop=while_loop,
    scan=scan,
    map=map_rows,
    associative_scan=associative_scan,
)


def _cond(pred: Any, yes: Function, no: Function, operands: Sequence[Any] = ()) -> Any:
    return yes(*operands) if pred else no(*operands)


def _while_loop(test: Function, step: Function, carried: Sequence[Any]) -> Any:
    while test(*carried):
        carried = step(*carried)
    return carried


def _rows(xs: Any, dim: int, reverse: bool) -> list[Any]:
    count = tree_flatten(xs)[0][0].shape[dim]
    order = range(count)[:: -1 if reverse else 1]
    return [tree_map(lambda leaf, n=n: leaf.select(dim, n), xs) for n in order]


def _stacked(rows: Sequence[Any], dim: int, reverse: bool) -> Any:
    leaves = zip(*(tree_flatten(row)[0] for row in rows), strict=True)
    order = -1 if reverse else 1
    whole = [torch.stack(parts[::order]).movedim(0, dim) for parts in leaves]
    return tree_unflatten(whole, tree_flatten(rows[0])[1])


def _scan(f: Function, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    made = []
    for row in _rows(xs, dim, reverse):
        init, y = f(init, row)
        made.append(y)
    return init, _stacked(made, dim, reverse)


def _map(f: Function, xs: Any, *args: Any) -> Any:
    return _stacked([f(row, *args) for row in _rows(xs, 0, False)], 0, False)


def _associative_scan(
    f: Function, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "generic"
) -> Any:
    first, *rest = _rows(xs, dim, reverse)
    made = [first]
    for row in rest:
        made.append(f(made[-1], row))
    return _stacked(made, dim, reverse)


PLAIN = SimpleNamespace(
    cond=_cond, while_loop=_while_loop, scan=_scan, map=_map, associative_scan=_associative_scan
)


def observed(
    program: Function, operators: Any, args: Sequence[Any], weights: Sequence[Tensor] = ()
) -> tuple[list[Any], list[Tensor | None], Tensor]:
    """The results of a call, the gradients of its arguments and weights, and the next random
    number.
    """
    given = [
        one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one
        for one in args
    ]
    leaves = [one for one in given if isinstance(one, Tensor) and one.requires_grad]
    torch.manual_seed(1)
    made = tree_flatten(program(operators, *given))[0]
    wanted = [one for one in made if isinstance(one, Tensor) and one.requires_grad]
    sources = [*leaves, *(one for one in weights if one.requires_grad)]
    gradients: list[Tensor | None] = [None] * len(sources)
    if wanted:
        ramps = [torch.linspace(0.5, 1.5, one.numel()).double().view(one.shape) for one in wanted]
        loss = sum((one * ramp).sum() for one, ramp in zip(wanted, ramps, strict=True))
        assert isinstance(loss, Tensor)
        gradients = [*torch.autograd.grad(loss, sources, allow_unused=True)]
    results = [one.detach() if isinstance(one, Tensor) else one for one in made]
    return results, gradients, torch.rand(2)


def assert_alike(program: Function, compiled: Function, *call: Any, **more: Any) -> None:
    """Assert that a compiled call gives what plain Python gives. torch's operators give zeros for
    the gradients of a branch that was not taken, plain Python gives None.
    """
    ours, eager = observed(compiled, TORCH, *call, **more), observed(program, PLAIN, *call, **more)
    torch.testing.assert_close(ours[0], eager[0])
    torch.testing.assert_close(ours[2], eager[2])
    for mine, other in zip(ours[1], eager[1], strict=True):
        if mine is None or other is None:
            assert other is None
            assert mine is None or not mine.any()
        else:
            torch.testing.assert_close(mine, other)
