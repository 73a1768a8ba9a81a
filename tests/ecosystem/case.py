"""A case: what people do with a library, written once and run under every system.

A case gets `tag`, which compiles a function, or a module in place, or hands it back (eager). It
builds everything it needs itself, random weights included, and answers with all that must be the
same: tensors, numbers, None, and lists, tuples and dictionaries of these.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Tag = Callable[[Any], Any]
Program = Callable[[Tag], Any]

LIBRARIES = (
    "transformers",
    "peft",
    "accelerate",
    "diffusers",
    "lightning",
    "torchmetrics",
    "torch_geometric",
    "einops",
    "timm",
    "joblib",
    "torch",
    "torch_objects",
    "subclasses",
    "distributed",
)


@dataclass(frozen=True)
class Case:
    """`rtol`: what an entry may differ by; a tenth of it relative to its tensor's largest."""

    library: str
    title: str
    program: Program
    rtol: float


CASES: list[Case] = []


def case(library: str, title: str, rtol: float = 2e-4) -> Callable[[Program], Program]:
    """Register a program as a case."""

    def register(program: Program) -> Program:
        CASES.append(Case(library, title, program, rtol))
        return program

    return register


def load(library: str) -> list[Case]:
    """The cases of a library, whose file is imported now: raises where it is not installed."""
    importlib.import_module(f"{__package__}.with_{library}")
    return [case for case in CASES if case.library == library]
