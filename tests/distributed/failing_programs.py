"""Programs that go wrong in each way that the runner reports, and one that is right."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .corpus import Tag, World, program


def _is_tagged(tag: Tag) -> bool:
    return tag.__qualname__ == "Jitmagic.tag"


@program("hangs")
def _hangs(tag: Tag, world: World) -> Any:
    x = torch.ones(2)
    if _is_tagged(tag):
        (dist.recv if world.rank else dist.all_reduce)(x)
    return x


@program("differs")
def _differs(tag: Tag, world: World) -> Any:
    return torch.ones(2) + (world.rank if _is_tagged(tag) else 0)


@program("reorders")
def _reorders(tag: Tag, world: World) -> Any:
    small, large = torch.ones(2), torch.ones(4)
    for x in (small, large) if _is_tagged(tag) else (large, small):
        dist.all_reduce(x)
    return [small, large]


@program("raises on one rank")
def _raises(tag: Tag, world: World) -> Any:
    if _is_tagged(tag) and not world.rank:
        raise RuntimeError
    dist.all_reduce(x := torch.ones(2))
    return x


@program("dies")
def _dies(tag: Tag, world: World) -> Any:
    if _is_tagged(tag) and not world.rank:
        os._exit(3)
    return 1


@program("right")
def _right(tag: Tag, world: World) -> Any:
    def run(x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x + 1

    return tag(run)(torch.ones(2))
