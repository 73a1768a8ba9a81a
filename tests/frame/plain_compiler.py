"""A compiler for tests of the frame package: guards on the arguments, and the original as residual.

It replaces the pipeline, so that handles are tested without a tracer: each "compiled" variant is an
entry that runs the original as plain Python, with the hook active for its callees.
"""

from __future__ import annotations

from typing import Any

import torch

from jitmagic.frame.family import Compiler
from jitmagic.frame.handle import Handle
from jitmagic.frame.ledger import Variant
from jitmagic.frame.native import Entry, GuardProgram, lower_guards
from jitmagic.frame.tag import tag
from jitmagic.guards.guard import Guard, IdentityIs, TensorMatch, TypeIs, ValueEquals
from jitmagic.guards.source import Argument
from jitmagic.options import make_options
from jitmagic.records import Eager
from jitmagic.spec import spec_of


class PlainCompiler:
    """Counts what it compiles; `answer` may be replaced to skip, raise or make other entries."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.answer: Any = None

    @property
    def compiler(self) -> Compiler:
        return Compiler(self.compile)

    def tag(self, target: Any, **options: Any) -> Any:
        return tag(target, make_options(**options), self.compiler)

    def compile(self, handle: Handle, snapshot: Any, record: Any) -> Entry | Eager:
        self.compiled.append(handle.name)
        if self.answer is not None:
            return self.answer(handle, snapshot, record)
        return entry_for(handle, snapshot, record)


def guards_for(snapshot: Any) -> tuple[Guard, ...]:
    names = snapshot.code.co_varnames
    return tuple(_guard(Argument(i, names[i]), value) for i, value in enumerate(snapshot.args))


def _guard(source: Argument, value: Any) -> Guard:
    if isinstance(value, torch.Tensor):
        return TensorMatch(source, spec_of(value), torch._C._dispatch_keys(value).raw_repr())
    if isinstance(value, int | float | str | type(None)):
        return ValueEquals(source, value)
    return TypeIs(source, type(value))


def entry_for(handle: Handle, snapshot: Any, record: Any, extra: tuple[Guard, ...] = ()) -> Entry:
    guards = (*guards_for(snapshot), *extra)
    steps, _ = lower_guards(guards, (), snapshot.globals, snapshot.builtins)
    return plain_entry(handle, steps, guards)


def plain_entry(handle: Handle, steps: tuple[Any, ...], guards: tuple[Guard, ...] = ()) -> Entry:
    original, family = handle.original, handle.family
    run = lambda *values: original.run(values, family)  # noqa: E731
    made = Entry(GuardProgram(steps), run, None, None, True)
    made.notes = Variant(tuple(g for g in guards if not isinstance(g, IdentityIs)))
    return made
