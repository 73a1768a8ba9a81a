"""f.why, f.test and f.lower: attributes of tagged functions, which stay functions otherwise."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of

X = torch.randn(4, 6)
QUESTIONS = ("why", "test", "lower")


def scaled(x: Tensor, by: float = 2.0, *, shift: int = 1) -> Tensor:
    """Scale and shift."""
    return x * by + shift


named = jitmagic.jit(scaled)


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()

    def twice(self, x: Tensor) -> Tensor:
        return self(self(x))


def ask(tagged: Any, question: str, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """The answer by the attribute and by the public function."""
    if question == "test":
        kwargs["n"] = 12
    asked = getattr(tagged, question)(*args, **kwargs)
    public: Callable[..., Any] = getattr(jitmagic, question)
    return str(asked), str(public(tagged)(*args, **kwargs))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("args", [(X,), (X[:0],), (X.t(), 0.5), (torch.tensor(-0.0),)])
def test_the_attribute_answers_as_the_function(
    question: str, backend: str, args: tuple[Any, ...]
) -> None:
    tagged: Any = jitmagic.jit(scaled, backend=backend)
    tagged(X)
    by_attribute, by_function = ask(tagged, question, *args, shift=3)
    assert by_attribute == by_function
    assert by_attribute.startswith("scaled")


def test_every_form_of_function_can_be_asked() -> None:
    tagged: Any = jitmagic.jit
    assert "would be compiled" in str(tagged(lambda x: x + 1).why(X))
    method = tagged(Net().twice)
    assert "would be compiled" in str(method.why(Net(), X))  # its function's, with self

    @functools.partial(tagged, backend="eager")
    def inside(x: Tensor) -> Tensor:
        return x * len(QUESTIONS)

    assert torch.equal(inside.lower(X).compile()(X), X * 3)
    assert "would be compiled" in str(tagged(type("Sub", (Net,), {})).forward.why(Net(), X))


def test_bad_arguments_are_the_functions_own_error() -> None:
    for question in QUESTIONS[::2]:
        with pytest.raises(TypeError, match=r"scaled\(\) missing 1 required|missing a required"):
            getattr(named, question)()


def test_a_tagged_function_looks_like_the_function() -> None:
    assert repr(named).startswith("<function scaled at")
    assert inspect.isfunction(named)
    assert inspect.signature(named) == inspect.signature(scaled)
    assert named.__doc__ == scaled.__doc__
    assert copy.deepcopy(named) is named
    renamed: Any = jitmagic.jit(functools.wraps(named)(lambda x: x - 1))
    assert torch.equal(renamed.lower(X).compile()(X), X - 1)  # its own, not those it was given
    assert pickle.loads(pickle.dumps(scaled)) is scaled


def test_attributes_of_the_users_stay() -> None:
    def mine(x: Tensor) -> Tensor:
        return x

    mine.test, mine.why = None, 3  # type: ignore[attr-defined]
    tagged: Any = jitmagic.jit(mine)
    assert tagged.test is None
    assert tagged.why == 3
    assert str(tagged.lower(X)).startswith("mine: 0 flops")
    assert not hasattr(mine, "lower")


def test_modules_keep_their_attributes_and_repr() -> None:
    plain, tagged = Net(), jitmagic.jit(Net())
    assert repr(tagged) == repr(plain)
    assert not any(hasattr(tagged, question) for question in QUESTIONS)
    assert tagged.state_dict().keys() == plain.state_dict().keys()


def test_an_attribute_keeps_no_function_alive() -> None:
    def local(x: Tensor) -> Tensor:
        return x

    tagged: Any = jitmagic.jit(local)
    asking, alive = tagged.why, weakref.ref(tagged)
    assert "local.why" in repr(asking)
    gc.disable()
    try:
        del tagged
        assert alive() is None  # without a collection: it is in no cycle
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match="is gone"):
        asking(X)


def test_copies_for_reports_are_not_in_the_status() -> None:
    def listed(x: Tensor) -> Tensor:
        return x.sin() + 1

    tagged: Any = jitmagic.jit(listed)
    tagged(X)
    kept = [jitmagic.explain(tagged), tagged.lower(X), tagged.test(X, n=3), tagged.why(X)]
    kept.append(jitmagic.passport(tagged)(X))
    names = [card.name for card in jitmagic.status().cards]
    assert sum("listed" in name for name in names) == 1, names
    assert len(kept) == 5


def test_a_wrapper_has_the_name_that_it_took_over() -> None:
    """Cards, warnings and profiles call it by that, as reports do."""

    def doubled(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs) * 2

        return wrapper

    @jitmagic.jit(backend="eager")
    @doubled
    def users(x: Tensor) -> Tensor:
        return x + 1

    users(torch.ones(2))
    known = handle_of(users)
    assert known is not None
    assert known.label == "users"
    assert known.original.title.startswith("users (test_questions.py:")
    assert str(jitmagic.status(users)).startswith("users: compiled")
    assert str(jitmagic.why(users)(torch.ones(3))).startswith("users ")
