"""Functional collectives: sizes that change, uneven splits, groups, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as differentiable
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from .corpus import Net, Tag, World, gradients, program

SIZES = (4, 6, 10, 6)


def called(title: str, graphs: int = 2, breaks: int = 0, **stated: Any) -> Callable[[Any], Any]:
    """Register a function of a matrix and the world, called with four sizes."""

    def register(function: Callable[[Tensor, World], Any]) -> Any:
        @program(title, graphs, breaks, changing=True, **stated)
        def run(tag: Tag, world: World) -> Any:
            tagged = tag(lambda x: function(x, world))
            return [tagged(x) for x in world.batches(*SIZES)]

        return function

    return register


def differentiated(
    title: str, graphs: int = 2, breaks: int = 0, **stated: Any
) -> Callable[[Any], Any]:
    """Register a function of a matrix and the world, called with a backward at four sizes."""

    def register(function: Callable[[Tensor, World], Tensor]) -> Any:
        @program(title, graphs, breaks, changing=True, **stated)
        def run(tag: Tag, world: World) -> Any:
            tagged, answers = tag(lambda x: function(x, world)), []
            for x in world.batches(*SIZES):
                x.requires_grad_()
                result = tagged(x)
                (result.square().sum() * (world.rank + 1)).backward()
                answers += [result, x.grad]
            return answers

        return function

    return register


@called("all_reduce of four sizes")
def _all_reduce(x: Tensor, world: World) -> Tensor:
    return funcol.all_reduce(x * 2, "sum", world.mesh) + x


@called("all_gather_tensor along the columns")
def _all_gather(x: Tensor, world: World) -> Tensor:
    return funcol.all_gather_tensor(x.sin(), 1, world.mesh) * 2


@called("reduce_scatter_tensor of four sizes")
def _reduce_scatter(x: Tensor, world: World) -> Tensor:
    return funcol.reduce_scatter_tensor(x.sin(), "sum", 0, world.mesh).cos()


@called("all_to_all_single with uneven splits")
def _all_to_all(x: Tensor, world: World) -> Tensor:
    rows = x.shape[0]
    sent = [1, rows - 1]
    received = [1, 1] if world.rank == 0 else [rows - 1, rows - 1]
    return funcol.all_to_all_single(x.sin(), received, sent, world.mesh) * 2


@called("broadcast from the second rank")
def _broadcast(x: Tensor, world: World) -> Tensor:
    return funcol.broadcast(x.exp(), 1, world.mesh) + x


@called("permute_tensor around the ring")
def _permute(x: Tensor, world: World) -> Tensor:
    return funcol.permute_tensor(x.sin().flatten(), [1, 0], world.mesh).view_as(x) + x


@called("all_gather_into_tensor_coalesced of two matrices")
def _gather_coalesced(x: Tensor, world: World) -> Tensor:
    group = funcol._resolve_group_name(world.mesh)
    first, second = funcol.all_gather_into_tensor_coalesced([x, x * 2], group)
    return first + second.sin()


@called("reduce_scatter_tensor_coalesced of two matrices")
def _scatter_coalesced(x: Tensor, world: World) -> Tensor:
    group = funcol._resolve_group_name(world.mesh)
    given = [x.sin(), x.cos()]
    first, second = funcol.reduce_scatter_tensor_coalesced(given, "sum", [0, 0], group)
    return first * second


@called("all_reduce in each of four layers")
def _layers(x: Tensor, world: World) -> Tensor:
    for layer in range(4):
        x = funcol.all_reduce(torch.tanh(x * (layer + 1)), "avg", world.mesh) + x
    return x


@called("maximum, minimum and product of both ranks")
def _reductions(x: Tensor, world: World) -> list[Tensor]:
    return [funcol.all_reduce(x.sin(), name, world.mesh) * 2 for name in ("max", "min", "product")]


@called("ranks that compute something else between collectives")
def _by_rank(x: Tensor, world: World) -> Tensor:
    y = x.sin() if dist.get_rank() == 0 else (x * 2).cos().relu()
    return funcol.all_reduce(y, "sum", world.mesh) / dist.get_world_size()


@called("a branch on a reduced value", graphs=5, breaks=3)
def _branch(x: Tensor, world: World) -> Tensor:
    total = funcol.all_reduce(x.sum(), "sum", world.mesh)
    if total > 0:
        return funcol.all_reduce(x * 2, "sum", world.mesh)
    return funcol.all_gather_tensor(x, 0, world.mesh)


@called("counts sent first, then rows by these counts")
def _dispatch(x: Tensor, world: World) -> Tensor:
    """Send each row to the rank that its sign chooses, as a mixture of experts does."""
    chosen = x[:, 0] > 0
    x = torch.cat([x[~chosen], x[chosen]])
    sent = torch.stack([(~chosen).sum(), chosen.sum()])
    received = funcol.all_to_all_single(sent, None, None, world.mesh)
    sizes = funcol.wait_tensor(received).tolist()
    arrived = funcol.all_to_all_single(x, sizes, sent.tolist(), world.mesh)
    return funcol.wait_tensor(arrived).sin()


@program("functional collectives in two groups", graphs=2, changing=True)
def _two_groups(tag: Tag, world: World) -> Any:
    both = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(2)][world.rank]

    def run(x: Tensor) -> Tensor:
        y = funcol.all_reduce(x.sin(), "sum", both)
        z = funcol.all_reduce(y * 2, "sum", alone)
        return funcol.all_gather_tensor(z, 0, dist.group.WORLD) + 1

    tagged = tag(run)
    return [tagged(x) for x in world.batches(*SIZES)]


@program("a mesh of 1 x 2", graphs=2, changing=True)
def _nested_mesh(tag: Tag, world: World) -> Any:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("outer", "inner"))

    def run(x: Tensor) -> Tensor:
        y = funcol.all_reduce(x.sin(), "sum", (mesh, 1))
        z = funcol.all_gather_tensor(y, 0, mesh["outer"])
        return z * mesh.size(1) + mesh.get_local_rank("inner")

    tagged = tag(run)
    return [tagged(x) for x in world.batches(*SIZES)]


@program("a group that the caller passes", graphs=3, changing=True)
def _passed_group(tag: Tag, world: World) -> Any:
    groups = [dist.new_group([0, 1]), dist.group.WORLD]
    tagged = tag(lambda x, group: funcol.all_reduce(x.sin(), "sum", group) * group.size())
    return [tagged(x, groups[place % 2]) for place, x in enumerate(world.batches(*SIZES))]


@program("a result that the next call takes", graphs=4, changing=True)
def _chained(tag: Tag, world: World) -> Any:
    first = tag(lambda x: funcol.all_reduce(x.sin(), "sum", world.mesh))
    second = tag(lambda x: x * 2 + 1)
    return [second(first(x)) for x in world.batches(*SIZES)]


# -- gradients -------------------------------------------------------------------------------------


@differentiated("all_gather_tensor_autograd of four sizes")
def _gathered(x: Tensor, world: World) -> Tensor:
    return funcol.all_gather_tensor_autograd(x.sin(), 0, world.mesh) * 2


@differentiated("reduce_scatter_tensor_autograd of four sizes")
def _scattered(x: Tensor, world: World) -> Tensor:
    return funcol.reduce_scatter_tensor_autograd(x.sin(), "sum", 0, world.mesh).cos()


@differentiated("all_to_all_single_autograd with uneven splits")
def _exchanged(x: Tensor, world: World) -> Tensor:
    rows = x.shape[0]
    sent = [1, rows - 1]
    received = [1, 1] if world.rank == 0 else [rows - 1, rows - 1]
    return funcol.all_to_all_single_autograd(x.sin(), received, sent, world.mesh) * 2


@differentiated("distributed.nn.functional.all_reduce")
def _nn_all_reduce(x: Tensor, world: World) -> Tensor:
    return differentiable.all_reduce(x.sin()) * 2


@differentiated("distributed.nn.functional.all_gather")
def _nn_all_gather(x: Tensor, world: World) -> Tensor:
    return torch.cat(differentiable.all_gather(x.sin())) * 2


@differentiated("distributed.nn.functional.broadcast and reduce")
def _nn_broadcast(x: Tensor, world: World) -> Tensor:
    y = differentiable.broadcast(x.sin(), 0)
    return differentiable.reduce(y * x, 0) + x


@differentiated("distributed.nn.functional.all_to_all_single")
def _nn_all_to_all(x: Tensor, world: World) -> Tensor:
    return differentiable.all_to_all_single(torch.empty_like(x), x.sin()) * 2


class Reduced(torch.autograd.Function):
    """Sums in the backward, as the entry of a tensor-parallel block does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    """Sums in the forward, as the exit of a tensor-parallel block does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@program("autograd functions of a tensor-parallel block", graphs=2, changing=True)
def _megatron(tag: Tag, world: World) -> Any:
    model = Net()
    tagged = tag(lambda x: Summed.apply(model(Reduced.apply(x).sin())))
    answers = []
    for x in world.batches(*SIZES):
        x.requires_grad_()
        model.zero_grad()
        result = tagged(x)
        result.square().sum().backward()
        answers += [result, x.grad, gradients(model)]
    return answers


@program("an autograd function that sums the gradient that the caller passes", 4, 2, changing=True)
def _given_gradient(tag: Tag, world: World) -> Any:
    """Eager writes to the caller's tensor."""
    tagged, answers = tag(lambda x: Reduced.apply(x.sin())), []
    for x in world.batches(*SIZES):
        x.requires_grad_()
        gradient = world.rows(len(x) + 1)[1:]
        tagged(x).backward(gradient)
        answers += [x.grad, gradient]
    return answers


@program(
    "gradients of gradients of distributed.nn.functional.all_reduce",
    graphs=2,
    order="ranks",
    changing=True,
)
def _twice(tag: Tag, world: World) -> Any:
    """Gradients of gradients run the forward again, with its collectives."""

    def run(x: Tensor) -> Tensor:
        return differentiable.all_reduce(x.sin()).cos()

    tagged, answers = tag(run), []
    for x in world.batches(*SIZES):
        x.requires_grad_()
        gradient = tagged(x).sum()
        for _ in range(4):
            (gradient,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
            answers.append(gradient)
    return answers


@differentiated("a gradient that two branches share and one of them sums")
def _shared_gradient(x: Tensor, world: World) -> Tensor:
    y = x.sin()
    return (Reduced.apply(y) + y.cos() + y).exp()


@differentiated("distributed.nn.functional.gather and scatter")
def _nn_gather(x: Tensor, world: World) -> Tensor:
    parts = differentiable.gather(x.sin(), 1)
    return differentiable.scatter([part * 2 + x for part in parts], 1) * x
