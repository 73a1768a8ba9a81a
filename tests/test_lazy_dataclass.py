"""`lazy_dataclass.dataclass` makes the classes that `dataclasses.dataclass` makes, but later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from jitmagic import lazy_dataclass

Decorator = Callable[..., Any]


def point(dataclass: Decorator, **keywords: bool) -> Any:
    @dataclass(**keywords)
    class Point:
        """A point."""

        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="", compare=False, repr=False)
        _: dataclasses.KW_ONLY
        scale: float = 1.0
        kind: ClassVar[str] = "point"

    return Point


KEYWORDS: list[dict[str, bool]] = [
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "repr": False},
    {"slots": True, "eq": False, "weakref_slot": True},
    {"frozen": True, "kw_only": True},
]


def parameters(cls: Any) -> list[bool]:
    """What the class was made with."""
    names = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
    return [getattr(cls.__dataclass_params__, name) for name in names]


def outcome(run: Callable[[], object]) -> object:
    """What it returns, or the exception that it raises."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
def test_classes_behave_as_those_of_dataclasses(keywords: dict[str, bool]) -> None:
    def facts(cls: Any) -> list[object]:
        one, same = cls(x=1, names=["a"], note="n"), cls(x=1, names=["a"], note="m")
        shown = repr(one) if keywords.get("repr", True) else ""
        return [
            outcome(cls),
            outcome(lambda: cls(1, 2, [], "", 2.0)),
            outcome(lambda: cls(x=1, z=2)),
            [getattr(one, f.name) for f in dataclasses.fields(one)],
            shown,
            one == same,
            one == cls(x=2),
            one == 3,
            cls.__match_args__,
            getattr(cls, "__slots__", None),
            cls.__hash__ is None,
            cls.__hash__ is object.__hash__,
            outcome(lambda: setattr(one, "x", 5)),
            outcome(lambda: delattr(one, "note")),
            str(inspect.signature(cls)),
            cls.__init__.__qualname__,
            cls.__doc__,
            parameters(cls),
            cls.kind,
        ]

    lazy, stdlib = (
        point(lazy_dataclass.dataclass, **keywords),
        point(dataclasses.dataclass, **keywords),
    )
    assert facts(lazy) == facts(stdlib)
    assert dataclasses.replace(lazy(x=1), x=3).x == 3


def test_methods_are_compiled_when_they_pay() -> None:
    cls = point(lazy_dataclass.dataclass, frozen=True)
    for _ in range(lazy_dataclass._CALLS):
        assert not inspect.isfunction(vars(cls)["__init__"])
        cls(1)
    cls(1)
    assert inspect.isfunction(vars(cls)["__init__"])
    assert not inspect.isfunction(vars(cls)["__repr__"])


@pytest.mark.parametrize("keywords", KEYWORDS, ids=str)
def test_first_instances_are_those_of_the_compiled_init(keywords: dict[str, bool]) -> None:
    cls = point(lazy_dataclass.dataclass, **keywords)
    calls: list[dict[str, Any]] = [{"x": 1}, {"x": 1, "names": ["a"]}, {"scale": 2.0, "x": 3}]

    def made() -> list[list[object]]:
        ones = [] if "kw_only" in keywords else [cls(1, 2, ["b"], note="n")]
        ones += [cls(**call) for call in calls]
        return [[getattr(one, part.name) for part in dataclasses.fields(one)] for one in ones]

    before = made()
    assert not inspect.isfunction(vars(cls)["__init__"])
    with pytest.raises(TypeError, match="missing 1 required"):
        cls(y=1)
    assert inspect.isfunction(vars(cls)["__init__"])
    assert made() == before


@lazy_dataclass.dataclass
class Named:
    cls: type
    compiled: bool
    args: int = 0


def test_fields_have_any_name() -> None:
    assert Named(cls=int, compiled=True, args=2) == Named(int, True, 2)


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    parts: tuple[object, ...] = ()

    def __repr__(self) -> str:
        return self.name


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Branch(Leaf):
    extent: int = 0

    def __post_init__(self) -> None:
        if self.extent < 0:
            raise ValueError(self.extent)


@lazy_dataclass.dataclass(frozen=True, slots=True, repr=False)
class Silent(Leaf):
    weight: int = 0


class Plain(Branch):
    pass


def test_what_a_class_defines_stays() -> None:
    assert repr(Leaf("a")) == repr(Silent("a")) == "a"
    assert repr(Branch("a")).startswith("Branch(name='a', parts=(), extent=0)")
    with pytest.raises(ValueError):
        Branch("a", extent=-1)


def test_classes_that_inherit_have_methods_of_their_own() -> None:
    assert Leaf("a") == Leaf("a") != Branch("a")
    assert Branch("a", (), 1) != Branch("a", (), 2)
    assert hash(Branch("a", (), 1)) == hash(("a", (), 1))
    assert repr(Plain("b")) == "Plain(name='b', parts=(), extent=0)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plain("b").extent = 3


@pytest.mark.parametrize("dataclass", [dataclasses.dataclass, lazy_dataclass.dataclass])
def test_classes_of_dataclasses_may_inherit(dataclass: Decorator) -> None:
    @dataclass(frozen=True)
    class Tree(Branch):
        age: int = 1

    assert Tree("a", (), 2, age=3).age == 3
    assert dataclasses.asdict(Tree("a", (), 2)) == {"name": "a", "parts": (), "extent": 2, "age": 1}


def test_frozen_instances_with_slots_are_copied_and_pickled() -> None:
    leaf = Branch("a", (Leaf("b"),), 3)
    assert copy.copy(leaf) == copy.deepcopy(leaf) == pickle.loads(pickle.dumps(leaf)) == leaf


def test_instances_that_contain_themselves_are_shown() -> None:
    @lazy_dataclass.dataclass
    class Node:
        parts: list[object]

    node = Node([])
    node.parts.append(node)
    assert repr(node).endswith("Node(parts=[...])")


def test_nan_equals_itself_in_fields() -> None:
    nan = float("nan")
    assert Leaf("a", (nan,)) == Leaf("a", (nan,))
