"""Registers programs: a function, and a `use` that returns all that can be observed of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import jitmagic

Use = Callable[[Any], Any]
USES: dict[str, tuple[Any, Use]] = {}


def program(function: Any) -> Callable[[Use], Use]:
    """Pair a use with the function that it uses."""

    def register(use: Use) -> Use:
        USES[use.__name__] = function, use
        return use

    return register


def same(actual: Any, expected: Any) -> None:
    """Compare results: tensors by value, everything else by equality."""
    if isinstance(expected, Tensor):
        torch.testing.assert_close(actual, expected)
    elif isinstance(expected, list | tuple):
        assert type(actual) is type(expected) and len(actual) == len(expected), (actual, expected)
        for one, other in zip(actual, expected, strict=True):
            same(one, other)
    else:
        assert actual == expected, (actual, expected)


def pieces(tagged: Any) -> list[Any]:
    return [record.outcome for record in jitmagic.api.handle_of(tagged).journal.records]


def drain(generator: Any, *sent: Any) -> list[Any]:
    """Send values until the generator ends; return its items and the value that it returns."""
    items: list[Any] = []
    try:
        items.append(next(generator))
        for value in sent:
            items.append(generator.send(value))
        items.extend(generator)
    except StopIteration as end:
        items.append(("returned", end.value))
    except Exception as error:
        items.append(("raised", type(error), str(error)))
    return items
