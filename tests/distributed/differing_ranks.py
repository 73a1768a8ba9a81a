"""Ranks that compute other things than each other around collectives that they share.

A compiler that removes, merges, repeats or moves a collective on one rank only makes both wait.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from .corpus import Net, Tag, World, gradients, program, trained
from .functional_collectives import called, differentiated


@called("a result that one rank uses")
def _used_by_one(x: Tensor, world: World) -> Tensor:
    total = funcol.all_reduce(x.sin(), "sum", world.mesh)
    return total * 2 if dist.get_rank() == 0 else x + 1


@called("two collectives that are equal on one rank")
def _equal_on_one(x: Tensor, world: World) -> Tensor:
    second = x if dist.get_rank() == 0 else x * 2
    first = funcol.all_reduce(x, "sum", world.mesh)
    return first + funcol.all_reduce(second, "sum", world.mesh)


@called("a collective of a constant on one rank")
def _constant_on_one(x: Tensor, world: World) -> Tensor:
    given = torch.ones(4) if dist.get_rank() == 0 else x[0, :4].sin()
    return funcol.all_reduce(given, "sum", world.mesh) + x[:, :4]


@called("independent collectives, the second ready first on one rank")
def _ready_first(x: Tensor, world: World) -> Tensor:
    cheap, costly = x + 1, x
    for _ in range(6):
        costly = torch.tanh(costly @ costly.t() @ costly)
    first, second = (cheap, costly) if dist.get_rank() == 0 else (costly, cheap)
    total = funcol.all_reduce(first, "sum", world.mesh)
    rows = funcol.all_gather_tensor(second, 0, world.mesh)
    return total.sum() + rows


@differentiated("backwards of independent collectives, in the other order on one rank")
def _backward_order(x: Tensor, world: World) -> Tensor:
    rows = funcol.all_gather_tensor_autograd(x.sin(), 0, world.mesh)
    part = funcol.reduce_scatter_tensor_autograd(x.cos(), "sum", 0, world.mesh)
    if dist.get_rank() == 0:
        return rows.sum() + part.square().sum()
    return part.exp().sum() + rows.tanh().square().sum()


@differentiated("gathered rows that a backward needs on one rank")
def _saved_on_one(x: Tensor, world: World) -> Tensor:
    rows = funcol.all_gather_tensor_autograd(x * 2, 0, world.mesh)
    return rows.sin() * rows if dist.get_rank() == 0 else rows + 1


@called("a branch on values of this rank between collectives", graphs=5, breaks=3)
def _own_branch(x: Tensor, world: World) -> Tensor:
    total = funcol.all_reduce(x.sin(), "sum", world.mesh)
    made = total * 2 if x[0, 0] > 0 else total.cos()
    return funcol.all_reduce(made, "sum", world.mesh)


@called("a number of this rank between collectives", graphs=5, breaks=3)
def _own_number(x: Tensor, world: World) -> Tensor:
    total = funcol.all_reduce(x.sin(), "sum", world.mesh)
    scale = x.sum().item()
    made = total * scale
    made = made + 1 if scale > 0 else made - 1
    return funcol.all_reduce(made, "sum", world.mesh)


@program(
    "branches on signs that change from call to call, by rank", graphs=5, breaks=2, changing=True
)
def _changing_signs(tag: Tag, world: World) -> Any:
    """One rank's guess about a branch fails where the other's is right."""

    def run(x: Tensor) -> Tensor:
        total = funcol.all_reduce(x.sin(), "sum", world.mesh)
        made = total.exp() if bool(x.sum() > 0) else total.cos()
        dist.all_reduce(made)
        return made

    tagged = tag(run)
    signs = (1, 1, 1, -1, 1, -1, -1, 1) if world.rank else (1, 1, -1, 1, 1, 1, -1, -1)
    return [tagged(torch.full((4 + place % 2, 3), float(sign))) for place, sign in enumerate(signs)]


@program("rows selected by each rank, counted by all", graphs=2, changing=True)
def _selected(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        chosen = x[x[:, 0] > 0]
        count = torch.tensor([chosen.shape[0]])
        dist.all_reduce(count)
        return chosen.sin() / count

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5, 9)]


@program("a loop until the sum of both ranks is small", graphs=4, breaks=4, changing=True)
def _loop(tag: Tag, world: World) -> Any:
    """torch.compile breaks at each test too, but does not count that."""

    def run(x: Tensor) -> Tensor:
        while funcol.all_reduce(x.abs().sum(), "sum", world.mesh) > 1:
            x = x / 2
        return x

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5)]


@program("a collective in each of forty iterations", graphs=2, changing=True)
def _many(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x.sin()
            dist.all_reduce(x)
            x = x / 2
        return x

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5)]


@program("collectives that are computed again in the backward", graphs=2, changing=True)
def _checkpointed(tag: Tag, world: World) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    first = parallelize_module(Net(8, 16, 8), world.mesh, plan)
    second = parallelize_module(Net(8, 16, 8), world.mesh, plan)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.first, x, use_reentrant=False)
            return checkpoint(self.second, x.tanh(), use_reentrant=False)

    return trained(tag(Both()), [World(0, None).rows(count) for count in (4, 6, 5)])


@program("a rank that recompiles while the other does not", graphs=4, changing=True)
def _recompiles(tag: Tag, world: World) -> Any:
    model = Net()

    def run(x: Tensor, scale: Any) -> Tensor:
        y = model(x * scale)
        dist.all_reduce(y)
        return y.sum()

    tagged, answers = tag(run), []
    scales = (1.0, 2, torch.tensor(3.0), True) if world.rank else (1.0, 2.0, 1.0, 3.0)
    for x, scale in zip(world.batches(4, 4, 4, 4), scales, strict=True):
        with torch.no_grad():
            answers.append(tagged(x, scale))
    return answers


@program("an error on both ranks between collectives", graphs=3, breaks=1, changing=True)
def _error(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        total = funcol.all_reduce(x.sin(), "sum", world.mesh)
        if x.shape[0] == 6:
            raise ValueError("six rows")
        return funcol.all_reduce(total * 2, "sum", world.mesh)

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5, 6, 4):
        try:
            answers.append(tagged(x))
        except ValueError as error:
            answers.append(str(error))
    return answers


@program("a gradient that one rank's loss does not need")
def _unneeded(tag: Tag, world: World) -> Any:
    model = Net()

    def run(x: Tensor) -> Tensor:
        rows = funcol.all_gather_tensor_autograd(model(x), 0, world.mesh)
        return rows[:4].square().mean() if dist.get_rank() == 0 else rows[4:].sin().mean()

    tagged, answers = tag(run), []
    for x in world.batches(4, 4):
        model.zero_grad()
        loss = tagged(x)
        loss.backward()
        answers += [loss, gradients(model)]
    return answers
