"""DTensor: placements, conversions and operations, with sizes that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor as placed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import local_map

from .corpus import Net, Tag, World, gradients, program, state


def differentiated(
    title: str, graphs: int = 2, breaks: int = 0, **stated: Any
) -> Callable[[Any], Any]:
    """Register a function of a plain matrix and the mesh, with a backward at three sizes."""

    def register(function: Callable[[Tensor, Any], Any]) -> Any:
        @program(title, graphs, breaks, changing=True, **stated)
        def run(tag: Tag, world: World) -> Any:
            tagged, answers = tag(lambda x: function(x, world.mesh)), []
            for x in world.batches(4, 6, 10):
                x.requires_grad_()
                result = tagged(x)
                result.sum().backward()
                answers += [result, x.grad]
            return answers

        return function

    return register


def _sharded(x: Tensor, mesh: Any, dim: int = 0) -> Any:
    return DTensor.from_local(x, mesh, [Shard(dim)], run_check=False)


@differentiated("redistribute from rows to columns")
def _rows_to_columns(x: Tensor, mesh: Any) -> Tensor:
    return _sharded(x.sin(), mesh).redistribute(mesh, [Shard(1)]).to_local().cos()


@differentiated("redistribute from partial sums to rows")
def _partial_to_rows(x: Tensor, mesh: Any) -> Tensor:
    made = DTensor.from_local(x.sin(), mesh, [Partial()], run_check=False)
    return made.redistribute(mesh, [Shard(0)]).to_local().cos()


@differentiated("full_tensor of a product")
def _full(x: Tensor, mesh: Any) -> Tensor:
    return (_sharded(x, mesh).sin() * 2).full_tensor() + 1


@differentiated("softmax over a divided dimension")
def _softmax(x: Tensor, mesh: Any) -> Tensor:
    return (_sharded(x, mesh, 1).softmax(0) * 2).to_local()


@differentiated("mean over the divided dimension")
def _mean(x: Tensor, mesh: Any) -> Tensor:
    d = _sharded(x, mesh)
    return (d - d.mean(0, keepdim=True)).to_local().square()


@differentiated("layer norm of divided rows")
def _layer_norm(x: Tensor, mesh: Any) -> Tensor:
    return nn.functional.layer_norm(_sharded(x, mesh), (8,)).to_local().sin()


@differentiated("a product of two divided matrices")
def _product(x: Tensor, mesh: Any) -> Tensor:
    left, right = _sharded(x, mesh, 1), _sharded(x.t().contiguous(), mesh, 0)
    return (left @ right).full_tensor().tanh()


@differentiated("local_map of a function of local tensors")
def _local_map(x: Tensor, mesh: Any) -> Tensor:
    mapped = local_map(
        lambda a, b: a.sin() * b,
        out_placements=[Shard(0)],
        in_placements=([Shard(0)], [Shard(0)]),
        device_mesh=mesh,
    )
    return mapped(_sharded(x, mesh), _sharded(x.cos(), mesh)).full_tensor()


@differentiated("distribute_tensor in tagged code")
def _distribute(x: Tensor, mesh: Any) -> Tensor:
    made = distribute_tensor(x.detach(), mesh, [Shard(0)])
    return made.full_tensor().sin() * x


@differentiated("distribute_tensor of a leaf that requires grad")
def _distribute_leaf(x: Tensor, mesh: Any) -> Tensor:
    return distribute_tensor(x, mesh, [Shard(1)]).full_tensor().sin() * x


def on_plain(title: str, *counts: int, graphs: int, breaks: int = 0) -> Callable[[Any], Any]:
    """Register a function of a plain matrix, which other ranks may write to, and the mesh."""

    def register(function: Callable[[Tensor, Any], Any]) -> Any:
        @program(title, graphs, breaks, changing=True)
        def run(tag: Tag, world: World) -> Any:
            tagged = tag(lambda x: function(x, world.mesh))
            return [(tagged(x), x) for x in world.batches(*counts)]

        return function

    return register


@on_plain("distribute_tensor by each placement", 4, 6, 10, graphs=2)
def _each_placement(x: Tensor, mesh: Any) -> Any:
    divided = distribute_tensor(x.cos(), mesh, [Shard(-1)], src_data_rank=1) * 2
    own = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
    partial = distribute_tensor(x.exp(), mesh, [Partial()]).full_tensor()
    copied = distribute_tensor(x.t(), mesh)  # not contiguous: `x` keeps its values
    return divided, own, partial, copied, distribute_tensor(x, mesh, [Replicate()]).add_(1)


@on_plain("distribute_tensor of uneven rows", 5, 7, 4, graphs=3)
def _distribute_uneven(x: Tensor, mesh: Any) -> Any:
    return (distribute_tensor(x.sin(), mesh, [Shard(0)]) * 2).full_tensor()


@on_plain("distribute_tensor without a use of its result", 4, 6, graphs=2)
def _distribute_unused(x: Tensor, mesh: Any) -> Any:
    distribute_tensor(x, mesh, [Shard(0)])
    rows = x.sin()
    distribute_tensor(rows, mesh, [Replicate()])
    return rows


@on_plain("backward to DTensors made in tagged code", 4, 6, 10, graphs=2)
def _made_leaves(x: Tensor, mesh: Any) -> Any:
    divided = distribute_tensor(x.clone().requires_grad_(), mesh, [Shard(0)])
    scale = placed.full((8,), 3.0, device_mesh=mesh, requires_grad=True)
    (divided.sin() * scale).sum().full_tensor().backward()
    return divided.grad, scale.grad


@on_plain("factories of DTensors", 4, 6, 10, graphs=2)
def _factories(x: Tensor, mesh: Any) -> Any:
    on = {"device_mesh": mesh, "placements": [Shard(0)]}
    made = placed.zeros(x.shape, **on) + placed.ones(x.shape[0], 8, dtype=torch.float64, **on)
    return made * placed.empty(x.shape, **on).fill_(2), placed.full((8, 4), 3, device_mesh=mesh)


@on_plain("a DTensor leaf that leaves tagged code", 4, 6, 10, graphs=2, breaks=3)
def _leaf_returned(x: Tensor, mesh: Any) -> Any:
    leaf = distribute_tensor(x.requires_grad_(), mesh, [Shard(0)])
    (leaf * 2).sin().sum().backward()
    return leaf, leaf.grad, leaf.sin()


@program("a DTensor distributed from a leaf, as an argument", graphs=2, changing=True)
def _from_leaf(tag: Tag, world: World) -> Any:
    def step(d: Any) -> Any:
        loss = (d.sin().redistribute(world.mesh, [Replicate()]) * 2).sum()
        loss.backward()
        with torch.no_grad():
            d -= d.grad
        return loss

    tagged, answers = tag(step), []
    for x in world.batches(4, 6, 10):
        d = distribute_tensor(x.requires_grad_(), world.mesh, [Shard(0)])
        answers += [tagged(d), d, d.grad, d.requires_grad, x.grad is None]
    return answers


@program("rows that do not divide evenly", graphs=3, changing=True)
def _uneven(tag: Tag, world: World) -> Any:
    tagged, answers = tag(lambda d: (d.sin() @ d.t()).full_tensor()), []
    for count in (5, 7, 3):
        d = distribute_tensor(world.rows(count), world.mesh, [Shard(0)]).requires_grad_()
        result = tagged(d)
        result.square().sum().backward()
        answers += [result, d.grad]
    return answers


@program("a DTensor on a mesh of 1 x 2", graphs=2, changing=True)
def _nested(tag: Tag, world: World) -> Any:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("outer", "inner"))
    tagged = tag(lambda d: d.sin().redistribute(mesh, [Replicate(), Replicate()]).to_local())
    made = [DTensor.from_local(x, mesh, [Replicate(), Shard(0)]) for x in world.batches(4, 6, 5)]
    return [tagged(d) for d in made]


@program("parameters updated as DTensors by hand", graphs=2, changing=True)
def _updated(tag: Tag, world: World) -> Any:
    model = distribute_module(Net(), world.mesh)

    def step(x: Tensor) -> Any:
        d = DTensor.from_local(x, world.mesh, [Shard(0)], run_check=False)
        loss = model(d).square().mean()
        return loss

    tagged, answers = tag(step), []
    for x in world.batches(4, 6, 5):
        model.zero_grad()
        loss = tagged(x)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        answers += [loss, gradients(model)]
    return answers, state(model)


def on_arguments(title: str, counts: tuple[int, ...], graphs: int = 2) -> Callable[[Any], Any]:
    """Register a function of two DTensors, of rows and of columns, with a backward per size."""

    def register(function: Callable[[Any, Any], Any]) -> Any:
        @program(title, graphs, changing=True)
        def run(tag: Tag, world: World) -> Any:
            tagged, answers = tag(function), []
            for count in counts:
                rows = distribute_tensor(world.rows(count), world.mesh, [Shard(0)])
                columns = distribute_tensor(world.rows(count).t(), world.mesh, [Shard(1)])
                given = [rows.requires_grad_(), columns.requires_grad_()]
                result = tagged(*given)
                result.square().sum().backward()
                answers += [result, *(one.grad for one in given)]
            return answers

        return function

    return register


@on_arguments("DTensors of five sizes as arguments and results", (4, 6, 10, 12, 8))
def _five_sizes(rows: Any, columns: Any) -> Any:
    return (rows.softmax(1) * columns.t()).sin() * rows.shape[0]


@on_arguments("a product of DTensors of five sizes", (4, 6, 10, 12, 8))
def _product_of_arguments(rows: Any, columns: Any) -> Any:
    return (columns @ rows).relu().mean()


@on_arguments("uneven DTensors of five sizes", (5, 7, 9, 11, 13))
def _five_uneven(rows: Any, columns: Any) -> Any:
    return (rows.softmax(1) @ rows.t()).full_tensor() * rows.shape[0] + columns.sum().full_tensor()


@on_arguments("gradients that are not divided, of five sizes", (4, 6, 8, 10, 12))
def _undivided_gradients(rows: Any, columns: Any) -> Any:
    return rows.softmax(0).full_tensor() @ columns.softmax(1).full_tensor()


@on_arguments("gradients that are not divided, of uneven sizes", (5, 7, 9, 11, 13))
def _undivided_uneven(rows: Any, columns: Any) -> Any:
    return rows.softmax(0).full_tensor() @ columns.softmax(1).full_tensor()


@on_arguments("a product of which each rank has a square", (16, 16), graphs=1)
def _square_parts(rows: Any, columns: Any) -> Any:
    return (rows @ rows.t()).to_local()[:, :8] * columns.t().to_local()


@on_arguments("DTensors that divide evenly in some calls", (4, 6, 5, 8, 7), graphs=3)
def _some_uneven(rows: Any, columns: Any) -> Any:
    return (rows + columns.t()).tanh().sum()


@program("placements and sizes of a DTensor", graphs=3, changing=True)
def _attributes(tag: Tag, world: World) -> Any:
    def run(d: Any) -> Any:
        scale = 2 if d.placements[0].is_shard() else 3
        return d.to_local() * scale * d.shape[0] + d.device_mesh.size() + d.dim()

    tagged = tag(run)
    made = [_sharded(x, world.mesh) for x in world.batches(4, 6, 5)]
    made.append(DTensor.from_local(world.rows(4), world.mesh, [Replicate()], run_check=False))
    return [tagged(d) for d in made]


@program("updates of DTensors in place", graphs=2, changing=True)
def _in_place(tag: Tag, world: World) -> Any:
    def run(d: Any, e: Any) -> Any:
        d.add_(e, alpha=0.5).mul_(2)
        d.clamp_(-1, 1)
        return d.sum().full_tensor()

    tagged, answers = tag(run), []
    for x in world.batches(4, 6, 5):
        d, e = _sharded(x, world.mesh), _sharded(x.cos(), world.mesh)
        answers += [tagged(d, e), d]
    return answers


@program("dropout of a DTensor", graphs=2, changing=True)
def _dropout(tag: Tag, world: World) -> Any:
    tagged, answers = tag(lambda d: nn.functional.dropout(d, 0.5).to_local() * 2), []
    for x in world.batches(4, 6, 5):
        torch.manual_seed(1)
        answers.append(tagged(_sharded(x, world.mesh)))
    return answers


@program("concatenation, slices and views of DTensors", graphs=2, changing=True)
def _views(tag: Tag, world: World) -> Any:
    def run(d: Any) -> Any:
        e = torch.cat([d, d.sin()], 1)
        return e[:, 2:10].unflatten(1, (2, 4)).transpose(1, 2).sum(1).full_tensor()

    tagged = tag(run)
    return [tagged(_sharded(x, world.mesh)) for x in world.batches(4, 6, 5)]


@program("a DTensor whose placement changes from call to call", graphs=4)
def _placements(tag: Tag, world: World) -> Any:
    tagged = tag(lambda d: (d.sin() * 2).full_tensor())
    placements = [Shard(0), Shard(1), Replicate(), Partial(), Shard(0)]
    x = world.rows(4)
    return [
        tagged(DTensor.from_local(x, world.mesh, [placement], run_check=False))
        for placement in placements
    ]
