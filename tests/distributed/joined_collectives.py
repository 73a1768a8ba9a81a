"""Small collectives that may become one. `EXACT` programs have no operation that rounds in another
way when it is compiled: each bit is that of eager.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from .corpus import Net, Tag, World, program, state
from .functional_collectives import called, differentiated

EXACT = {"rtol": 0.0, "atol": 0.0}


@called("small gathers of several layouts, one of which a product needs", **EXACT)
def _gathers(x: Tensor, world: World) -> list[Tensor]:
    mesh = world.mesh
    rows = funcol.all_gather_tensor(x * 2, 0, mesh)
    columns = funcol.all_gather_tensor(x.t(), 1, mesh)
    some = funcol.all_gather_tensor(x[1:, ::2], 0, mesh)
    chosen = rows[:, :4].abs() @ torch.ones(4, 1)
    last = funcol.all_gather_tensor(chosen.sign(), 0, mesh)
    return [rows, columns + 1, some.neg(), last, funcol.all_gather_tensor(x.amax(0), 0, mesh)]


@called("small reductions, scatters and broadcasts of several sizes", **EXACT)
def _reductions(x: Tensor, world: World) -> list[Tensor]:
    mesh = world.mesh
    sums = [funcol.all_reduce(x[row] * row, "sum", mesh) for row in range(4)]
    greatest = [funcol.all_reduce(x[row], "max", mesh) for row in range(2)]
    counts = [funcol.all_reduce((x[row] > 0).sum(), "sum", mesh) for row in range(3)]
    halves = [funcol.reduce_scatter_tensor(x * n, "sum", 0, mesh) for n in range(3)]
    sent = [funcol.broadcast(x + n, n, mesh) for n in range(2)]
    return [*sums, *greatest, *counts, *halves, *sent, sums[0] + sums[1]]


@differentiated("gradients of small gathers and scatters", **EXACT)
def _gradients(x: Tensor, world: World) -> Tensor:
    gathered = [funcol.all_gather_tensor_autograd(x * n, 0, world.mesh) for n in (1, 2, 4)]
    parts = [funcol.reduce_scatter_tensor_autograd(g, "sum", 0, world.mesh) for g in gathered]
    return parts[0] * 0.5 + parts[1] + parts[2].abs()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.net = nn.LayerNorm(8), Net(8, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(self.norm(x))


_LAYER = {
    "norm": SequenceParallel(),
    "net": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "net.up": ColwiseParallel(),
    "net.down": RowwiseParallel(output_layouts=Shard(1)),
}


@program("a tagged step that clips a sequence-parallel model", graphs=2, changing=True)
def _clipped(tag: Tag, world: World) -> Any:
    """Each gradient of a norm and each norm of a gradient is a partial sum."""
    layers = [Layer() for _ in range(2)]
    model = nn.Sequential(*(parallelize_module(one, world.mesh, dict(_LAYER)) for one in layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> tuple[Tensor, Any]:
        optimizer.zero_grad()
        for layer in layers:
            x = layer(x)
        loss = x.square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach(), norm

    tagged = tag(step)
    batches = [world.rows(2 * length).view(2, length, 8) for length in (4, 6)]
    return [tagged(x) for x in batches], state(model)
