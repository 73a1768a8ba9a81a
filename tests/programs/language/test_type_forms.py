"""Annotations as values: subscripts, keys, comparisons, `torch.jit.annotate`; `.tolist()`."""

# ruff: noqa: UP006, UP007, UP035, UP045  (the old spellings are what is tested)

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Dict, List, Optional, Union

import pytest
import torch
from torch import Tensor

import jitmagic

TABLE = {List: 2, Optional: 3, Optional[int]: 4, list[int]: 5}
Vectors = List[Tensor]


def annotated_list(x: Tensor) -> Any:
    parts = torch.jit.annotate(List[Tensor], [])
    for i in range(3):
        parts.append(x * i)
    return torch.cat(parts)


def annotated_values(x: Tensor) -> Any:
    nothing = torch.jit.annotate(Optional[Tensor], None)
    found = torch.jit.annotate(Dict[str, Tensor], {"x": x * 2})
    return x if nothing is None else nothing, found


def nested(x: Tensor) -> Any:
    form = Dict[str, List[Optional[Tensor]]]
    return x + 1, form, form.__args__[0]


def keys(x: Tensor) -> Any:
    return x + TABLE[List] + TABLE[Optional[int]] + TABLE.get(Union[int, None], 9)


def compared(x: Tensor) -> Any:
    same = List[int] == List[int], Vectors == List[Tensor], List == Dict
    return x * 2, same, Vectors is List


def instances(x: Tensor) -> Any:
    return x + 1, isinstance([x], List), isinstance(x, Dict), isinstance(len, typing.Callable)


P, T = typing.ParamSpec("P"), typing.TypeVar("T")


def of_parameters(x: Tensor) -> Any:
    """What `def inner(*args: P.args, **kwargs: P.kwargs) -> T` evaluates where it is defined."""
    return x + 1, P.args, P.kwargs, T, P.args == P.args


class Settings(typing.TypedDict, total=False):
    rate: float


class Shaped(type):
    """Whoever has a shape is an instance, and whoever has a width a subclass."""

    def __instancecheck__(cls, one: Any) -> bool:
        return hasattr(one, "shape") and len(one.shape) == 1

    def __subclasscheck__(cls, kind: type) -> Any:
        return getattr(kind, "width", 0)  # Python asks for its truth


class Row(metaclass=Shaped):
    width = 3


class Numbers(type):
    """A number is an instance too; the rest is as ever."""

    def __instancecheck__(cls, one: Any) -> bool:
        return type(one) is int or super().__instancecheck__(one)


class Number(metaclass=Numbers):
    pass


class Whole(Number):
    pass


NUMBER, WHOLE = Number(), Whole()


def metaclasses_that_ask_their_own(x: Tensor) -> Any:
    subjects = (3, "3", x, NUMBER, WHOLE, Row())
    answers = [isinstance(one, kind) for one in subjects for kind in (Number, Whole)]
    return x * 2, answers, isinstance(x, torch.nn.Buffer)


def metaclasses(x: Tensor) -> Any:
    answers: list[Any] = [isinstance(one, Row) for one in (x, x[None], 3, Row())]
    answers += [issubclass(kind, Row) for kind in (Row, int)]
    answers += [isinstance(3, (Row, int)), isinstance(x, (int, Row))]
    match x:
        case Row():
            answers.append("a row")
    try:
        isinstance({"rate": 1.0}, Settings)
    except TypeError as error:
        answers.append(str(error))
    return x + 1, answers


class Sized(type):
    __call__ = tuple  # no function: it is called without the class


class Pair(metaclass=Sized):
    pass


def metaclasses_whose_call_is_a_class(x: Tensor) -> Any:
    made = Settings(rate=2.0)
    more: Any = Settings({"rate": 3.0}, extra=x + 1)  # type: ignore[misc]
    results = [Settings(rate=n) for n in range(2)]
    return x * made["rate"], made, more, type(more) is dict, results, Pair([1, 2])  # type: ignore[call-arg]


def cast(x: Tensor) -> Any:
    return typing.cast(Optional[Tensor], x) + 1


def known_lists(x: Tensor) -> Any:
    sizes = torch.tensor([[2, 2], [4, 1]]).prod(1).tolist()
    return x.split(sizes), sizes, torch.tensor(-0.0).tolist(), torch.tensor([]).tolist()


FORMS = [form for form in vars(typing).values() if isinstance(form, typing._SpecialForm)]
PARTS = (Optional[typing.Literal["a", 1]], typing.ClassVar[List[int]], typing.Annotated[int, "m"])
BY_ORIGIN = {form: n for n, form in enumerate(FORMS)}


def origins(x: Tensor) -> Any:
    """A form that a path leads to and the same one found as a part of another."""
    found = [typing.get_origin(part) for one in PARTS for part in (one, *typing.get_args(one))]
    literal = typing.get_origin(typing.get_args(PARTS[0])[0])
    same = (
        literal is typing.Literal,
        literal == typing.Literal,
        typing.get_origin(PARTS[0]) is Union,
    )
    return x + 1, found, [BY_ORIGIN.get(one) for one in found if one is not None], same


def every_form(x: Tensor) -> Any:
    return x + 1, [BY_ORIGIN[form] for form in FORMS], [form is typing.Final for form in FORMS]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize(
    "fn",
    [
        origins,
        every_form,
        annotated_list,
        annotated_values,
        nested,
        of_parameters,
        keys,
        compared,
        instances,
        metaclasses,
        metaclasses_that_ask_their_own,
        metaclasses_whose_call_is_a_class,
        cast,
        known_lists,
    ],  # fmt: skip
)
def test_whole_and_as_eager(fn: Callable[[Tensor], Any], backend: str) -> None:
    compiled = jitmagic.jit(fn, backend=backend, fullgraph=True)
    for x in (torch.arange(8.0), torch.full((8,), -0.0)):
        assert repr(compiled(x)) == repr(fn(x))


def test_tolist_of_data_as_in_eager() -> None:
    def fn(x: Tensor) -> Any:
        return x * 2, (x + 1).tolist()

    compiled = jitmagic.jit(fn)
    for x in (torch.arange(3.0), torch.tensor([float("nan"), -0.0])):
        assert repr(compiled(x)) == repr(fn(x))


def test_bad_subscripts_raise_as_in_eager() -> None:
    def fn(x: Tensor) -> Any:
        return x + 1, Optional[1.5, x.shape]  # type: ignore[misc]

    with pytest.raises(TypeError) as eager:
        fn(torch.ones(2))
    with pytest.raises(TypeError) as ours:
        jitmagic.jit(fn)(torch.ones(2))
    assert str(ours.value) == str(eager.value)


def test_super_of_another_class_raises_as_in_eager() -> None:
    def fn(x: Tensor, one: Any) -> Any:
        try:
            return super(Settings, one).rate
        except TypeError as error:
            return x + 1, str(error)

    compiled = jitmagic.jit(fn)
    for one in (Whole(), Whole):
        for _ in range(2):
            assert repr(compiled(torch.ones(2), one)) == repr(fn(torch.ones(2), one))
