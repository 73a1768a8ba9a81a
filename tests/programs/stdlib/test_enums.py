"""Enum members and classes: what the class defines is followed, and never run while tracing."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

from ..counts import counts_of
from ..harness import Program, check


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3

    def scale(self) -> float:
        return self.value * 2.0

    @property
    def nice(self) -> str:
        return self.name.lower()

    @classmethod
    def first(cls) -> Color:
        return cls.RED

    @staticmethod
    def three() -> int:
        return 3


class Planet(enum.Enum):
    EARTH = (1.0, 2.0)
    VENUS = (3.0, 4.0)

    def __init__(self, mass: float, radius: float) -> None:
        self.mass = mass
        self.radius = radius

    def density(self) -> float:
        return self.mass / self.radius


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Mode(enum.StrEnum):
    MEAN = "mean"
    SUM = "sum"


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Step(enum.Enum):
    RELU = "relu"
    TANH = "tanh"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.relu(x) if self is Step.RELU else torch.tanh(x)


def members(x: Tensor, color: Color) -> Any:
    return x * color.scale(), color.nice, color, color.first().value, color.three()


def classes(x: Tensor, color: Color) -> Any:
    for one in Color:
        x = x + one.value
    return x, len(Color), Color(2), Color["BLUE"].value, color in Color, [c.name for c in Color]


def attributes(x: Tensor, color: Color) -> Any:
    return x * Planet.EARTH.mass + Planet.VENUS.density(), Planet.EARTH.value


def numbers(x: Tensor, color: Color) -> Any:
    return x * Level.HIGH, x.sum(dim=Level.LOW), [x, x + 1][Level.HIGH], Level.HIGH + 1


def texts(x: Tensor, color: Color) -> Any:
    loss = torch.nn.functional.mse_loss(x, x * 2, reduction=Mode.SUM)
    return loss, Mode.MEAN.upper(), f"{color} {color!r} {Mode.SUM.value}", str(Level.LOW)


def flags(x: Tensor, color: Color) -> Any:
    both = Access.READ | Access.WRITE
    if Access.WRITE in both and not both & Access.RUN:
        x = x * 2
    return x, both, ~both, both ^ Access.READ, list(both), both.value


def called(x: Tensor, color: Color) -> Any:
    step = Step.RELU if color is Color.RED else Step.TANH
    return step(x)


def no_member(x: Tensor, color: Color) -> Any:
    try:
        return Color(9)
    except ValueError as error:
        return str(error), x * 2


class Task(enum.StrEnum):
    """As lightning's: members are equal to text in any case."""

    A = "a"
    B = "b"

    @classmethod
    def from_str(cls, value: str) -> Task:
        for key, one in cls.__members__.items():
            if one == value:
                return cls(cls[key])
        raise ValueError(value)

    def __eq__(self, other: object) -> bool:
        return self.value.lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(self.value.lower())


def looked_up(x: Tensor, color: Color) -> Any:
    return x * (2 if Task.from_str("B") is Task.B else 3), Color(color) is color


class Other(enum.Enum):
    FIRST = 1
    ALSO = 1  # another name for it


def table(x: Tensor, color: Color) -> Any:
    total = sum(one.value for one in Color.__members__.values())
    names = [name for name in Other.__members__], len(Other.__members__), "NO" in Color.__members__
    return (
        x * total,
        names,
        Other.__members__["ALSO"],
        Color.__members__.get("NO"),
        list(Color.__members__.items()),
    )


PROGRAMS = [
    looked_up,
    table,
    members,
    classes,
    attributes,
    numbers,
    texts,
    flags,
    called,
    no_member,
]


@pytest.mark.parametrize("target", PROGRAMS, ids=lambda target: target.__name__)
def test_one_graph(target: Callable[..., Any]) -> None:
    def calls() -> list[tuple[Any, ...]]:
        return [(torch.arange(3.0), Color.RED), (torch.ones(3), Color.BLUE)]

    check(Program(target.__name__, lambda: target, calls, graphs=1, options={"backend": "eager"}))


SEEN: list[str] = []
PREFIX = ["a"]


class Talking(enum.Enum):
    """Special methods of the user's, with effects and reading what may change."""

    A = 1

    def __add__(self, other: int) -> int:
        SEEN.append("add")
        return int(self.value) + other

    def __str__(self) -> str:
        return PREFIX[0] + self.name

    def __lt__(self, other: object) -> bool:
        SEEN.append("lt")
        return True


class Loudness(enum.IntEnum):
    LOW = 0
    HIGH = 1

    def __str__(self) -> str:
        return self.name.lower()


class Reduction(enum.StrEnum):
    MEAN = "mean"
    SUM = "sum"

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass
class Settings:
    level: Loudness = Loudness.HIGH
    mode: Reduction = Reduction.SUM
    sizes: tuple[int, ...] = (1, 2)


def test_members_with_own_repr_compare_by_value() -> None:
    def program(x: Tensor, settings: Settings) -> Any:
        if settings.level == Loudness.HIGH and settings.level in (Loudness.LOW, Loudness.HIGH):
            x = x * (settings.level + 1)
        x = x.sum() if settings.mode == Reduction.SUM else x.mean()
        return x, f"{settings.level}/{settings.mode!s}", settings.level > Loudness.LOW

    run = jitmagic.jit(program, backend="eager", fullgraph=True)
    for settings in (Settings(), Settings(Loudness.LOW), Settings(mode=Reduction.MEAN)):
        assert run(torch.ones(3), settings) == program(torch.ones(3), settings)


def test_settings_with_members_become_dictionaries() -> None:
    def program(x: Tensor, settings: Settings) -> Any:
        return x * len(settings.sizes), dataclasses.asdict(settings)

    run = jitmagic.jit(program, backend="eager", fullgraph=True)
    x, found = run(torch.ones(1), Settings(sizes=(4, 5, 6)))
    assert (x.item(), found) == (
        3,
        {"level": Loudness.HIGH, "mode": Reduction.SUM, "sizes": (4, 5, 6)},
    )


class Holding(enum.Enum):
    ITEMS = [0]  # noqa: RUF012 - a value that changes


def test_special_methods_run_in_each_call() -> None:
    def program(x: Tensor) -> Any:
        return x * (Talking.A + 1), str(Talking.A), Talking.A < Talking.A

    run = jitmagic.jit(program, backend="eager")
    SEEN.clear()
    for prefix in "abc":
        PREFIX[0] = prefix
        x, text, less = run(torch.ones(2))
        assert (x.tolist(), text, less) == ([2, 2], prefix + "A", True)
    assert SEEN == ["add", "lt"] * 3
    assert counts_of(run).breaks == 0


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")  # what grows is told
def test_a_value_that_is_a_list_is_that_list() -> None:
    def program(x: Tensor) -> Tensor:
        Holding.ITEMS.value.append(len(Holding.ITEMS.value))
        return x * len(Holding.ITEMS.value)

    run = jitmagic.jit(program, backend="eager")
    found = [run(torch.ones(1)).item() for _ in range(3)]
    assert (found, Holding.ITEMS.value) == ([2, 3, 4], [0, 1, 2, 3])
