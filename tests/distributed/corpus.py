"""The form of a program that runs on two ranks, and the list of all of them.

A program gets `tag`, which compiles a function, or a module in place, or returns it as it is
(eager), and the `World` in which it runs. It builds everything it needs, from the same seed under
each system, and returns all that must be equal: tensors, numbers and trees of these.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Tag = Callable[[Any], Any]
MODULES = (
    "functional_collectives",
    "in_place_collectives",
    "data_parallel",
    "fully_sharded",
    "tensor_parallel",
    "distributed_tensors",
    "pipelines",
    "differing_ranks",
    "unusual_arguments",
    "joined_collectives",
    "one_process_programs",
)


@dataclass(frozen=True)
class World:
    """The rank of this process and the mesh of both."""

    rank: int
    mesh: Any
    size: int = 2

    def rows(self, count: int = 4, width: int = 8) -> Tensor:
        """Return a matrix that differs between the ranks and is equal in each run."""
        seeded = torch.Generator().manual_seed(100 * self.rank + count)
        return torch.randn(count, width, generator=seeded)

    def classes(self, count: int, of: int = 4) -> Tensor:
        """Return class numbers for that many rows."""
        return (torch.arange(count) + self.rank) % of

    def batches(self, *counts: int) -> list[Tensor]:
        """Return matrices of these many rows."""
        return [self.rows(count) for count in counts]


Run = Callable[[Tag, World], Any]


@dataclass(frozen=True)
class Program:
    """A program, and what jitmagic makes of it today.

    `eager` counts the frames that run as eager. `changing` programs are called with several sizes.
    `behind` marks a known miss: torch.compile captures all frames without a break and jitmagic does
    not.
    `order` says whose order of collectives counts: eager's, or only that the ranks agree, where
    DDP fills its buckets in the order in which gradients become ready. `xfail` is the reason why
    the program is wrong today.
    """

    title: str
    run: Run
    graphs: int
    breaks: int
    eager: int
    changing: bool
    behind: bool
    order: Literal["eager", "ranks"]
    rtol: float
    atol: float
    xfail: str

    def __str__(self) -> str:
        return self.title


PROGRAMS: dict[str, Program] = {}


def program(
    title: str,
    graphs: int = 1,
    breaks: int = 0,
    eager: int = 0,
    *,
    changing: bool = False,
    behind: bool = False,
    order: Literal["eager", "ranks"] = "eager",
    rtol: float = 1e-4,
    atol: float = 1e-5,
    xfail: str = "",
) -> Callable[[Run], Run]:
    """Register a program under its title."""

    def register(run: Run) -> Run:
        assert title not in PROGRAMS, title
        PROGRAMS[title] = Program(
            title, run, graphs, breaks, eager, changing, behind, order, rtol, atol, xfail
        )
        return run

    return register


def load(modules: Sequence[str] = MODULES) -> dict[str, Program]:
    """Import these modules of programs and return the programs by title."""
    for name in modules:
        importlib.import_module(f"{__package__}.{name}")
    return PROGRAMS


class Net(nn.Module):
    """Two linear layers with an activation in between."""

    def __init__(self, width: int = 8, hidden: int = 16, results: int = 4) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, results)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Chain(nn.Module):
    """Layers one after the other, by a forward of user code, as nn.Sequential's is not."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def local(tensor: Any) -> Any:
    """Return a copy of the part of a tensor that this rank holds, without its history; of a DTensor
    also how it is divided, as a text.
    """
    if isinstance(tensor, DTensor):
        how = f"{tensor.placements} of {tuple(tensor.shape)}, strides {tensor.stride()}"
        return [how, local(tensor.to_local())]
    return tensor.detach().clone() if isinstance(tensor, Tensor) else tensor


def gradients(model: nn.Module) -> list[Any]:
    """Return copies of the gradients of a model's parameters."""
    return [local(parameter.grad) for parameter in model.parameters()]


def state(model: nn.Module) -> dict[str, Any]:
    """Return copies of a model's parameters and buffers."""
    return {name: local(value) for name, value in model.state_dict().items()}


def trained(model: nn.Module, batches: list[Tensor], step: Any = None) -> list[Any]:
    """Run a forward and a backward per batch; return the losses, all gradients and the state."""
    answers: list[Any] = []
    for batch in batches:
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        answers += [local(loss), gradients(model)]
        if step is not None:
            step()
    return [*answers, state(model)]
