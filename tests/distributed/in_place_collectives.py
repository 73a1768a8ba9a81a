"""Collectives of torch.distributed that write to their arguments, and messages between ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .corpus import Net, Tag, World, gradients, local, program, state
from .functional_collectives import called


@called("dist.all_reduce with each reduction")
def _all_reduce(x: Tensor, world: World) -> list[Tensor]:
    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        y = x.sin()
        dist.all_reduce(y, op)
        results.append(y * 2)
    return results


@called("dist.all_reduce of an argument")
def _argument(x: Tensor, world: World) -> Tensor:
    dist.all_reduce(x)
    return x / dist.get_world_size()


@called("dist.all_reduce of a part of an argument")
def _part(x: Tensor, world: World) -> Tensor:
    dist.all_reduce(x[1:3])
    return x * 2


@called("dist.all_gather into a list")
def _all_gather(x: Tensor, world: World) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.tan())
    return torch.cat(parts).sin()


@called("dist.all_gather_into_tensor of four sizes")
def _into_tensor(x: Tensor, world: World) -> Tensor:
    gathered = x.new_empty(x.shape[0] * world.size, x.shape[1])
    dist.all_gather_into_tensor(gathered, x.sin())
    return gathered * 2


@called("dist.reduce_scatter_tensor of four sizes")
def _reduce_scatter(x: Tensor, world: World) -> Tensor:
    scattered = x.new_empty(x.shape[0] // world.size, x.shape[1])
    dist.reduce_scatter_tensor(scattered, x.cos())
    return scattered * 2


@called("dist.all_to_all_single with uneven splits")
def _all_to_all(x: Tensor, world: World) -> Tensor:
    rows = x.shape[0]
    sent = [1, rows - 1]
    received = [1, 1] if world.rank == 0 else [rows - 1, rows - 1]
    made = x.new_empty(sum(received), x.shape[1])
    dist.all_to_all_single(made, x.exp(), received, sent)
    return made * 2


@called("dist.broadcast")
def _broadcast(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    dist.broadcast(y, 1)
    return y + x


@called("dist.reduce")
def _reduce(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    dist.reduce(y, 0)
    return y * 2 if dist.get_rank() == 0 else x


@called("dist.gather and dist.scatter")
def _gather(x: Tensor, world: World) -> Tensor:
    first = dist.get_rank() == 0
    parts = [torch.empty_like(x) for _ in range(2)] if first else None
    dist.gather(x.sin(), parts, 0)
    made = torch.empty_like(x)
    dist.scatter(made, [part * 2 for part in parts] if parts else None, 0)
    return made + 1


@called("dist.all_reduce with async_op and wait")
def _async(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    work = dist.all_reduce(y, async_op=True)
    other = x.cos()
    work.wait()
    return y + other


@called("two works, waited for in the other order")
def _two_works(x: Tensor, world: World) -> Tensor:
    y, z = x.sin(), x.new_empty(2 * x.shape[0], x.shape[1])
    first = dist.all_reduce(y, async_op=True)
    second = dist.all_gather_into_tensor(z, x.cos(), async_op=True)
    second.wait()
    total = z.sum()
    first.wait()
    return y + total


@called("dist.barrier between two computations")
def _barrier(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    dist.barrier()
    return y * 2


@called("dist.all_gather_object of sizes", breaks=3)
def _objects(x: Tensor, world: World) -> Tensor:
    sizes: list[Any] = [None, None]
    dist.all_gather_object(sizes, {"rows": x.shape[0] + world.rank})
    return x.sin() * sum(size["rows"] for size in sizes)


@called("dist.send and dist.recv", graphs=4, breaks=3)
def _messages(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    if dist.get_rank() == 0:
        dist.send(y, 1)
        return y
    received = torch.empty_like(y)
    dist.recv(received, 0)
    return received * 2


@called("dist.batch_isend_irecv around the ring", graphs=4, breaks=8)
def _ring(x: Tensor, world: World) -> Tensor:
    y, received = x.sin(), torch.empty_like(x)
    peer = 1 - dist.get_rank()
    sent, got = dist.P2POp(dist.isend, y, peer), dist.P2POp(dist.irecv, received, peer)
    for work in dist.batch_isend_irecv([sent, got]):
        work.wait()
    return received + y


@called("get_rank and get_world_size in arithmetic")
def _numbers(x: Tensor, world: World) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    y = x[rank::size].sin() * (rank + 1)
    dist.all_reduce(y)
    return y / size


@program("dist.all_reduce in new groups", graphs=2, changing=True)
def _groups(tag: Tag, world: World) -> Any:
    both = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(2)][world.rank]

    def run(x: Tensor) -> Tensor:
        y = x.sin()
        dist.all_reduce(y, group=both)
        z = y * 2
        dist.all_reduce(z, group=alone)
        return z + dist.get_rank(both) + dist.get_world_size(alone)

    tagged = tag(run)
    return [tagged(x) for x in world.batches(4, 6, 5)]


@program("dist.all_reduce of batches that differ between ranks", graphs=3, changing=True)
def _own_sizes(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        total = torch.stack([x.sum(), x.new_tensor(float(x.shape[0]))])
        dist.all_reduce(total)
        return x - total[0] / total[1]

    tagged = tag(run)
    return [tagged(world.rows(count + world.rank)) for count in (4, 6, 5)]


@program("gradients averaged by hand after the backward", graphs=2, changing=True)
def _averaged(tag: Tag, world: World) -> Any:
    model = Net()

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
                parameter -= 0.1 * parameter.grad
        return loss.detach()

    tagged, answers = tag(step), []
    for x in world.batches(4, 6, 5, 6):
        model.zero_grad()
        answers += [tagged(x), gradients(model)]
    return [*answers, state(model)]


@program("a loss that is reduced for a log", graphs=2, changing=True)
def _logged(tag: Tag, world: World) -> Any:
    model, log = Net(), []

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        log.append(shown / dist.get_world_size())
        return loss

    tagged, answers = tag(step), []
    for x in world.batches(4, 6, 5):
        model.zero_grad()
        tagged(x).backward()
        answers.append(gradients(model))
    return answers, [local(value) for value in log]
