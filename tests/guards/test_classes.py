"""Facts about classes that change: the native check agrees with the reference implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from jitmagic.bytecode import FrameSnapshot
from jitmagic.frame.native import GuardProgram, lower_guards
from jitmagic.guards import guard as g
from jitmagic.guards.check import holds, show_guard, why


class Base:
    def run(self) -> None: ...


class Between(Base): ...


class Thing(Base):
    scale = 3


class Slotted:
    __slots__ = ("tag",)


class Gives:
    def __get__(self, instance: object, owner: type) -> int:
        return 5


FACTS = (
    g.ClassFact("is", "scale", 0, 3),
    g.ClassFact("is", "run", 1, Base.run),
    g.ClassFact("absent", "other"),
    g.ClassFact("absent", "scale", 1),
    g.ClassFact("absent", "__hash__"),
    g.ClassFact("is", "__hash__", 0, object.__hash__),
    g.ClassFact("yields", "size"),
    g.ClassFact("yields", "scale"),
    g.ClassFact("yields", "run"),
    g.ClassFact("yields", "__class__"),
    g.ClassFact("slot", "scale"),
)
GUARDS = (
    *(g.ClassFacts.about(Thing, fact) for fact in FACTS),
    g.ClassFacts.about(Thing),
    g.ClassFacts.about(Thing, *FACTS[:3]),
    g.ClassFacts.about(Slotted, g.ClassFact("slot", "tag")),
    g.ClassFacts.about(Slotted, g.ClassFact("slot", "__doc__")),
)
FRAME = FrameSnapshot((lambda: None).__code__, (), (), {}, {}, "f", "f")


# Attributes of classes for a while; None: gone.
CLASS_CHANGES = {
    "another value": (Thing, "scale", 4),
    "new": (Thing, "other", 4),
    "new in a base": (Base, "other", 4),
    "hidden in a base": (Base, "scale", 4),
    "hides a base": (Thing, "run", lambda self: 1),
    "replaced in a base": (Base, "run", lambda self: 1),
    "property": (Thing, "size", property(lambda self: 5)),
    "property in a base": (Base, "size", property(lambda self: 5)),
    "property for a value": (Thing, "scale", property(lambda self: 5)),
    "plain default": (Thing, "size", 5),
    "descriptor that may change": (Thing, "size", Gives()),
    "bases": (Thing, "__bases__", (Between,)),
    "property for a slot": (Slotted, "tag", property(lambda self: 5)),
    "gone": (Thing, "scale", None),
    "slot gone": (Slotted, "tag", None),
}


@contextlib.contextmanager
def class_changed(name: str) -> Iterator[None]:
    cls, attribute, value = CLASS_CHANGES[name]
    old = cls.__bases__ if attribute == "__bases__" else vars(cls).get(attribute)
    if value is not None:
        setattr(cls, attribute, value)
    else:
        delattr(cls, attribute)
    try:
        yield
    finally:
        delattr(cls, attribute) if old is None else setattr(cls, attribute, old)


@pytest.mark.parametrize("name", CLASS_CHANGES)
def test_native_and_reference_agree_about_classes(name: str) -> None:
    programs = [GuardProgram(lower_guards((guard,), (), {}, {})[0]) for guard in GUARDS]

    def agree() -> list[bool]:
        found = [holds(guard, FRAME) for guard in GUARDS]
        assert [program.check(()) for program in programs] == found
        return found

    before = agree()
    with class_changed(name):
        assert (agree() == before) == (name in ("plain default", "hides a base"))
    assert agree() == before


SENTENCES = {
    "another value": "Thing.scale is 4, was 3",
    "new in a base": "there is a Base.other now: 4",
    "hidden in a base": "there is a Base.scale now: 4",
    "replaced in a base": "Base.run is function <lambda>, was function Base.run",
    "property": "there is a Thing.size now: a property",
    "bases": "Thing inherits from Between, Base, did from Base",
    "property for a slot": "Slotted.tag is a property, was a slot",
    "gone": "Thing.scale no longer exists",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_why_sentences_about_classes(name: str) -> None:
    guards = [guard for guard in GUARDS if holds(guard, FRAME)]
    with class_changed(name):
        said = {why(guard, FRAME) for guard in guards if not holds(guard, FRAME)}
    assert SENTENCES[name] in {text.replace(f"{__name__}.", "") for text in said}


def test_one_line_per_class() -> None:
    names = [g.ClassFact("absent", f"a{i}") for i in range(8)]
    guard = g.ClassFacts.about(Thing, *FACTS[:3], *FACTS[6:8], *names)
    known = f"class {__name__}.Thing: same bases; same scale, run"
    absent = "no other, a0, a1, a2, a3, a4 and 3 more"
    assert show_guard(guard) == f"{known}; {absent}; no property size, scale"
