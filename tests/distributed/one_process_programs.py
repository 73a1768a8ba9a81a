"""The programs of the ecosystem's `distributed` library, which run on any number of processes."""

from __future__ import annotations

from typing import Any

import torch

from tests.ecosystem.with_distributed import PROGRAMS

from .corpus import Tag, World, program


def _register(title: str, run: Any) -> None:
    @program(f"any size: {title}")
    def seeded(tag: Tag, world: World) -> Any:
        torch.manual_seed(world.rank)
        return run(tag, world.mesh)


for _title, _run in PROGRAMS.items():
    _register(_title, _run)
