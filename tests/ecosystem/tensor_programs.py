"""Registers functions of tensors as cases: called twice, with or without a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .case import Tag, case

Program = Callable[..., Any]
Register = Callable[[Program], Program]


def called(library: str, title: str, *inputs: Callable[[], Tensor]) -> Register:
    """Register a function of tensors, called twice without gradients."""

    def register(program: Program) -> Program:
        @case(library, title)
        def run(tag: Tag) -> Any:
            tagged = tag(program)
            return [tagged(*(make() for make in inputs)) for _ in range(2)]

        return program

    return register


def trained(library: str, title: str, *inputs: Callable[[], Tensor]) -> Register:
    """Register a function of tensors that require grad, called twice with a backward."""

    def register(program: Program) -> Program:
        @case(library, title)
        def run(tag: Tag) -> Any:
            tagged, answers = tag(program), []
            for _ in range(2):
                given = [make().requires_grad_() for make in inputs]
                loss = tagged(*given)
                loss.backward()
                answers.append([loss.detach(), *(x.grad for x in given)])
            return answers

        return program

    return register


def vector() -> Tensor:
    return torch.randn(8)


def rows() -> Tensor:
    return torch.randn(6, 8)


def square() -> Tensor:
    return torch.randn(8, 8) / 3


def heads() -> Tensor:
    return torch.randn(2, 2, 16, 8)
