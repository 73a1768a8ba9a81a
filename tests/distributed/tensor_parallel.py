"""Tensor parallelism: modules of `parallelize_module`, alone and with FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from .corpus import Chain, Net, Tag, World, gradients, local, program, state, trained


def _same(count: int, width: int = 8) -> Tensor:
    """Return a matrix that is equal on both ranks."""
    return World(0, None).rows(count, width)


@program("columns and rows, changing batches", graphs=2, changing=True)
def _columns_rows(tag: Tag, world: World) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(Net(), world.mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return trained(tag(model), [_same(count) for count in (4, 6, 5)], optimizer.step)


@program("columns and rows under autocast", graphs=2, changing=True, rtol=2e-2, atol=1e-2)
def _columns_rows_cast(tag: Tag, world: World) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    net = parallelize_module(Net(), world.mesh, plan)
    model, answers = tag(net), []
    for count in (4, 6, 5):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(_same(count)).square().mean()
        loss.float().backward()
        answers += [local(loss), gradients(net)]
    return answers


class Normed(nn.Module):
    """A layer norm, and a block after it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.net = nn.LayerNorm(8), Net(8, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(self.norm(x))


@program("sequence parallel norm and a prepared input", graphs=2, changing=True)
def _sequence(tag: Tag, world: World) -> Any:
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "net": PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),)),
        "net.up": ColwiseParallel(),
        "net.down": RowwiseParallel(output_layouts=Shard(0)),
    }
    model = Normed()
    parallelize_module(model, world.mesh, plan)
    tagged, answers = tag(lambda x: model.net(model.norm(x))), []
    for count in (4, 6, 8):
        model.zero_grad()
        loss = tagged(world.rows(count // 2)).square().mean()
        loss.backward()
        answers += [local(loss), gradients(model)]
    return answers


@program("a prepared output", graphs=2, changing=True)
def _prepared_output(tag: Tag, world: World) -> Any:
    plan = {
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(use_local_output=False, output_layouts=Shard(0)),
        "": PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate()),
    }
    model = parallelize_module(Net(), world.mesh, plan)
    return trained(tag(model), [_same(count) for count in (4, 6, 8)])


@program("loss_parallel", graphs=2, changing=True)
def _loss_parallel(tag: Tag, world: World) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = Chain(parallelize_module(Net(8, 16, 8), world.mesh, plan), nn.Linear(8, 12))
    head = ColwiseParallel(use_local_output=False)
    parallelize_module(model, world.mesh, {"layers.1": head})
    tagged, answers = tag(lambda x, y: nn.functional.cross_entropy(model(x), y)), []
    for count in (4, 6, 5):
        model.zero_grad()
        with loss_parallel():
            loss = tagged(_same(count), torch.arange(count) % 12)
            loss.backward()
        answers += [local(loss), gradients(model)]
    return answers


class Attention(nn.Module):
    """Causal attention with heads that are divided among the ranks."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = [
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        made = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(made.transpose(1, 2).reshape(batch, length, -1))


@program("attention with divided heads", graphs=2, changing=True)
def _attention(tag: Tag, world: World) -> Any:
    columns = {name: ColwiseParallel() for name in ("query", "key", "value")}
    model = parallelize_module(
        Attention(heads=2), world.mesh, {**columns, "out": RowwiseParallel()}
    )
    batches = [_same(2 * length).view(2, length, 8) for length in (4, 6, 5)]
    return trained(tag(model), batches)


@program("a divided embedding", graphs=2, changing=True)
def _embedding(tag: Tag, world: World) -> Any:
    model = Chain(nn.Embedding(12, 8), nn.Linear(8, 4))
    plan = {"layers.0": RowwiseParallel(input_layouts=Replicate()), "layers.1": ColwiseParallel()}
    model = parallelize_module(model, world.mesh, plan)
    batches = [torch.arange(count) * 5 % 12 for count in (4, 6, 5)]
    return trained(tag(model), batches)


@program("an embedding divided by columns", graphs=2, changing=True)
def _embedding_columns(tag: Tag, world: World) -> Any:
    model = Chain(nn.Embedding(12, 8), nn.Linear(8, 4))
    plan = {
        "layers.0": ColwiseParallel(output_layouts=Replicate()),
        "layers.1": ColwiseParallel(),
    }
    model = parallelize_module(model, world.mesh, plan)
    return trained(tag(model), [torch.arange(count) * 5 % 12 for count in (4, 6, 5, 9)])


class Block(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(12, 8), Attention(heads=2)
        self.norm, self.net, self.head = nn.LayerNorm(8), Net(8, 16, 8), nn.Linear(8, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x)
        return self.head(x + self.net(self.norm(x)))


_BLOCK = {
    "embedding": RowwiseParallel(input_layouts=Replicate()),
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "attention.out": RowwiseParallel(),
    "net.up": ColwiseParallel(),
    "net.down": RowwiseParallel(),
    "head": ColwiseParallel(use_local_output=False),
}


@program("a language model whose batch and length change", graphs=3, changing=True)
def _language_model(tag: Tag, world: World) -> Any:
    model = parallelize_module(Block(), world.mesh, dict(_BLOCK))
    tagged, answers = tag(lambda x, y: nn.functional.cross_entropy(model(x).flatten(0, 1), y)), []
    # torch asks whether the batch divides by the ranks: one variant for each answer
    for batch, length in ((2, 4), (3, 6), (5, 7), (4, 9), (6, 5), (7, 8)):
        model.zero_grad()
        tokens = (torch.arange(batch * length) * 7 % 12).view(batch, length)
        with loss_parallel():
            loss = tagged(tokens, tokens.flatten().roll(1))
            loss.backward()
        answers += [local(loss), gradients(model)]
    return answers


@program("sequences divided by length, which changes", graphs=2, changing=True)
def _lengths(tag: Tag, world: World) -> Any:
    plan = {
        "norm": SequenceParallel(),
        "net": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "net.up": ColwiseParallel(),
        "net.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    model = Normed()
    parallelize_module(model, world.mesh, plan)
    tagged, answers = tag(lambda x: model.net(model.norm(x))), []
    for batch, length in ((2, 8), (3, 10), (5, 14), (7, 12)):
        model.zero_grad()
        loss = tagged(world.rows(batch * length // 2).view(batch, -1, 8)).square().mean()
        loss.backward()
        answers += [local(loss), gradients(model)]
    return answers


@program("tensor parallel and FSDP2 on a mesh of 1 x 2", graphs=2, changing=True)
def _two_dimensions(tag: Tag, world: World) -> Any:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    model = Net()
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = fully_shard(tag(model), mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return trained(model, [_same(count) for count in (4, 6, 5)], optimizer.step)


@program("a tagged step of a tensor-parallel model", graphs=3, changing=True)
def _whole_step(tag: Tag, world: World) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(Net(), world.mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    tagged = tag(step)
    return [tagged(_same(count)) for count in (4, 6, 5)], state(model)
