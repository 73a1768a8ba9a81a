"""Names of functions and classes, which may be set at any time: read as they are in the call."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import jitmagic


def helper(x: Any) -> Any:
    return x


class Kind:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...


KIND = Kind()


def refused() -> str:
    try:
        helper()
    except TypeError as error:
        return str(error)
    return ""


def wrapped() -> str:
    @functools.wraps(helper)
    def inner() -> None: ...

    return inner.__name__ + inner.__qualname__


READS = {
    "a function": (helper, lambda: helper.__name__ + helper.__qualname__),
    "by getattr": (helper, lambda: getattr(helper, "__name__")),  # noqa: B009
    "in a text": (helper, lambda: f"{helper.__qualname__}!"),
    "its module and text": (helper, lambda: helper.__module__ + str(helper.__doc__)),
    "a method": (Kind.method, lambda: KIND.method.__name__ + KIND.method.__qualname__),
    "a static method": (Kind.static, lambda: Kind.static.__name__),
    "a class": (Kind, lambda: Kind.__name__ + type(KIND).__qualname__),
    "an error": (helper, refused),
    "what takes it over": (helper, wrapped),
}


@pytest.mark.parametrize("read", READS)
def test_a_name_that_is_set_is_seen(read):
    owner, name = READS[read]
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    before = {attribute: getattr(owner, attribute) for attribute in names}

    def answers(call):
        results = []
        try:
            for text in ("short", "rather long", "short", "longest of them all"):
                for attribute in names:
                    setattr(owner, attribute, text)
                results += [call(torch.ones(2)).tolist() for _ in range(2)]
        finally:
            for attribute, text in before.items():
                setattr(owner, attribute, text)
        return results

    def program(x):
        return x * len(name())

    tagged = jitmagic.jit(program, backend="eager", fullgraph=True)
    assert answers(tagged) == answers(program)


@pytest.mark.parametrize("owner", [type("Bare", (), {}), lambda: None], ids=["class", "function"])
def test_a_text_that_was_absent_is_seen(owner):
    def program(x):
        return x * len(owner.__doc__ or "")

    def answers(call):
        results = []
        for text in (None, "short", None, "rather long", None):
            owner.__doc__ = text
            results += [call(torch.ones(2)).tolist() for _ in range(2)]
        return results

    tagged = jitmagic.jit(program, backend="eager", fullgraph=True)
    assert answers(tagged) == answers(program)
