"""Every kind of Source has all four operations, and a native step that the extension knows."""

from __future__ import annotations

import builtins
import re
import sys
from dataclasses import fields
from typing import Any

import pytest

from jitmagic.bytecode import build
from jitmagic.frame.native import lower_guards
from jitmagic.guards import source as s
from jitmagic.guards.source.row import Derived, Source

from ..processes import ROOT

STEPS = (ROOT / "extensions" / "frame" / "guard_steps.h").read_text()
LOADS = set(re.findall(r'LOAD\(\w+, "(\w+)"', STEPS))
ABSTRACT = {Source, Derived}
UNREAD = {s.Drawn}  # exists in compiled code only, so no guard reads it


def kinds() -> list[type[Source]]:
    public = (getattr(s, name) for name in s.__all__)
    found = [x for x in public if isinstance(x, type) and issubclass(x, Source)]
    return [cls for cls in found if cls not in ABSTRACT]


EXAMPLES = {
    "index": 0, "name": "x", "key": "k", "part": "__code__", "tables": (), "before": "a",
    "after": "b", "start": 1, "stop": None, "function": sum,
    "table": {"x": sum},
}  # fmt: skip


def example(cls: type[Source]) -> Source:
    argument = s.Argument(0, "x")
    given = {**EXAMPLES, "base": argument}
    if cls in (s.ItemAt, s.AttributeAt):
        given["index"] = s.Argument(1, "i")
    return cls(**{field.name: given[field.name] for field in fields(cls)})


class Residual:
    parameters = ("x", "i")
    builtins = vars(builtins)
    with_getattribute = frozenset()

    def base(self, source: Source) -> Any:
        return source.emit(self)

    def call_on(self, function: Any, base: Source) -> Any:
        return build.call(function, self.base(base))


def test_public_names_are_the_kinds() -> None:
    names, waiting = set(), [Source]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        names.add(cls.__name__)
    public = {name for name in names if not name.startswith("_")}
    assert public == {cls.__name__ for cls in (*kinds(), *ABSTRACT)}


@pytest.mark.parametrize("cls", kinds(), ids=lambda cls: cls.__name__)
def test_every_kind_is_described_and_read_again_by_code(cls: type[Source]) -> None:
    source = example(cls)
    assert s.describe(source)
    assert source.emit(Residual())
    roots = (
        s.Argument | s.Global | s.Globals | s.Builtin | s.ImportedModule | s.Drawn | s.HeldObject
    )
    assert isinstance(source.root, roots)


@pytest.mark.parametrize("cls", kinds(), ids=lambda cls: cls.__name__)
def test_every_kind_has_a_native_step_and_its_reference(cls: type[Source]) -> None:
    pytest.importorskip("numpy")  # the step of ArrayMemory holds its class
    source = example(cls)
    if cls in UNREAD:
        with pytest.raises(TypeError):
            lower_guards((), (source,), {}, vars(builtins))
        return
    steps, _ = lower_guards((), (source,), {}, vars(builtins))
    assert {step[0] for step in steps} <= LOADS
    assert cls.read is not Source.read
    assert not issubclass(cls, Derived) or hasattr(cls, "follow")


def test_every_native_load_belongs_to_a_kind() -> None:
    assert "numpy" in sys.modules
    steps = [lower_guards((), (example(cls),), {}, {})[0] for cls in kinds() if cls not in UNREAD]
    attribute = s.Item(s.InstanceDict(s.Argument(0, "x")), "k")
    steps.append(lower_guards((), (attribute,), {}, {})[0])
    assert {step[0] for each in steps for step in each} == LOADS
