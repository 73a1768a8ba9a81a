"""Flags and counters in buffers, read before a write to them, are guarded as Python numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of


class Once(nn.Module):
    """Initialises itself from its first batch."""

    def __init__(self, made: Tensor) -> None:
        super().__init__()
        self.register_buffer("made", made)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.made.item() == 0:
            self.mean.copy_(x.mean(0))
            self.made.fill_(1)
        return x - self.mean


class Asked(Once):
    """Initialise itself by the truth of tensors."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.made:
            self.mean.copy_(x.mean(0))
            self.made.fill_(True)
        return x - self.mean


class Averaged(nn.Module):
    """Average parameters as torch.optim.swa_utils does."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=dtype))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.count == 0:
            self.mean.copy_(x[0])
        else:
            self.mean.lerp_(x[0], 1 / (self.count + 1))
        self.count += 1
        return self.mean * 2


class Picked(Once):
    """Take the number out of its tensor first, as torch.ao does with its flags."""

    def forward(self, x: Tensor) -> Tensor:
        if self.made[0] == 0:
            self.mean.copy_(x.mean(0))
            self.made.fill_(1)
        return x - self.mean


class Scheduled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.step += 0
        early = self.step < 2  # written to before: nobody knows
        return torch.where(early, x, -x)


class Warming(Scheduled):
    def forward(self, x: Tensor) -> Any:
        made = x * 0.1 if self.step.item() < 2 else x * 2
        self.step += 1
        return made, float(self.step)


class Listed(Averaged):
    """The tables of the module are read before it counts."""

    def forward(self, x: Tensor) -> Tensor:
        total = sum(buffer.sum() for buffer in self.buffers())
        return super().forward(x) + total


class Doubled(nn.Module):
    """float32 rounds this comparison, Python does not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.rate == 0.1 else x - 1


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "a flag of bytes": (lambda: Once(torch.zeros(1, dtype=torch.uint8)), 0),
    "a flag of floats": (lambda: Once(torch.tensor(0.0)), 0),
    "a number of a tensor": (lambda: Picked(torch.zeros(1, dtype=torch.int32)), 0),
    "a bool": (lambda: Asked(torch.tensor(False)), 0),
    "an int for a bool": (lambda: Asked(torch.tensor([0])), 0),
    "a count of ints": (lambda: Averaged(torch.int64), 0),
    "a count of floats": (lambda: Averaged(torch.float32), 0),
    "among others": (lambda: Listed(torch.int64), 0),
    "written before": (Scheduled, 0),
    "a schedule": (Warming, 0),
    "a rounded comparison": (Doubled, 1),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", MODELS)
def test_as_eager(name: str, backend: str) -> None:
    build, breaks = MODELS[name]
    eager, model = build(), build()
    run = jitmagic.jit(model, backend=backend)
    for number in range(5):
        x = torch.arange(6.0).reshape(2, 3) + number
        torch.testing.assert_close(run(x), eager(x))
        for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
        if number == 0:
            assert counts_of(run).breaks == breaks
        if number == 3:  # somebody sets it anew
            for buffer in (*model.buffers(), *eager.buffers()):
                buffer.zero_()


def test_a_new_value_is_a_new_variant() -> None:
    @jitmagic.jit
    def step(x: Tensor, flag: Tensor) -> Tensor:
        return x + 1 if flag.item() > 2 else x - 1

    for value in (0, 5, 1, 9, 2, 3):
        assert (
            step(torch.zeros(2), torch.tensor(value)).tolist() == [1.0 if value > 2 else -1.0] * 2
        )
    assert counts_of(step).breaks == 0
