"""torch.distributed.pipelining: a tagged stage on each rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from .corpus import Chain, Tag, World, gradients, local, program, state


def _stage(world: World) -> nn.Module:
    first = Chain(nn.Linear(8, 16), nn.ReLU())
    last = Chain(nn.Linear(16, 8), nn.Tanh())
    return last if world.rank else first


def _run(schedule: Any, world: World, batch: int) -> Any:
    """Run one step; the last rank has the losses."""
    if not world.rank:
        schedule.step(world.rows(batch))
        return []
    losses: list[Any] = []
    result = schedule.step(target=torch.ones(batch, 8), losses=losses)
    return [local(result), [local(loss) for loss in losses]]


def _trained(tag: Tag, world: World, kind: Any, batches: tuple[int, ...]) -> Any:
    model = _stage(world)
    stage = PipelineStage(tag(model), world.rank, 2, torch.device("cpu"))
    schedule = kind(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    optimizer, answers = torch.optim.AdamW(model.parameters(), lr=0.1), []
    for batch in batches:
        optimizer.zero_grad()
        answers += [_run(schedule, world, batch), gradients(model)]
        optimizer.step()
    return [*answers, state(model)]


@program("ScheduleGPipe, a tagged stage per rank")
def _gpipe(tag: Tag, world: World) -> Any:
    return _trained(tag, world, ScheduleGPipe, (4, 4, 4))


@program("Schedule1F1B, a tagged stage per rank")
def _one_forward_one_backward(tag: Tag, world: World) -> Any:
    return _trained(tag, world, Schedule1F1B, (4, 4, 4))


@program("a pipeline for each batch size, of the same tagged stage", graphs=2, changing=True)
def _sizes(tag: Tag, world: World) -> Any:
    model = _stage(world)
    tagged, answers = tag(model), []
    for batch in (4, 6, 8):
        stage = PipelineStage(tagged, world.rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        model.zero_grad()
        answers += [_run(schedule, world, batch), gradients(model)]
    return answers
