"""Callees that look at the variables of their callers find those that eager's frame has."""

from __future__ import annotations

import inspect
import sys
from functools import cache, partial
from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of
from ..scenarios import plainly


def shown(frame: Any) -> Any:
    return sorted((name, plainly(value)) for name, value in frame.f_locals.items())


def by_depth(depth: int = 1) -> Any:
    return shown(sys._getframe(depth))


def by_back() -> Any:
    return shown(inspect.currentframe().f_back)


def by_stack() -> Any:
    return shown(inspect.stack()[1].frame)


def by_traceback() -> Any:
    try:
        raise ValueError
    except ValueError as error:
        return shown(error.__traceback__.tb_frame.f_back)


def deeper() -> Any:
    return by_depth(2)


class Table:
    """As a data frame of pandas."""

    def query(self, text: str) -> Any:
        return self._evaluate(text)

    def _evaluate(self, text: str) -> Any:
        scope = Scope(3)
        return eval(text, {}, scope.names)

    def __getitem__(self, name: str) -> Any:
        return Scope(2).names[name]


class Scope:
    def __init__(self, level: int) -> None:
        self.names = dict(sys._getframe(level).f_locals)


TABLE = Table()
LOOKS = partial(by_depth, 1)


def dead_names(x, n):
    twice = n * 2
    y = x * twice
    z = y + 1
    return z, by_depth()


def after_another_break(x, n):
    limit, y = n + 3, x + 1
    print("between")
    y = y * 2
    found = by_back()
    z = y + 2
    return z, found, by_stack()


def in_a_loop(x, n):
    found = []
    for i in range(n):
        doubled = i * 2
        x = x + doubled
        found.append(by_traceback())
    return x, found


def deleted(x, n):
    gone, kept = n + 1, n + 2
    y = x * gone
    del gone
    return y, by_depth()


def handled(x, n):
    try:
        raise KeyError(n)
    except KeyError as error:
        missing = error.args[0]
        y = x + missing
    return y, by_depth()


def of_a_callee(x, n):
    inner = n + 1
    return dead_names(x, inner), deeper()


def by_a_method(x, n):
    limit = n + 2
    y = x * 2
    return y, TABLE.query("limit * 10")


def by_a_method_of_a_new_object(x, n):
    limit = n + 2
    table = Table()
    print("made")
    y = x * 2
    return y, table.query("limit * 10"), table["limit"]


def by_a_partial(x, n):
    limit = n + 1
    return x * 2, LOOKS()


TAGGED = jitmagic.jit(lambda: by_depth(2), backend="eager")
LISTED = [TABLE.query, {"read": 1}, by_depth]


class Holder:
    def __init__(self) -> None:
        self.read = by_depth
        self.tables = {"first": TABLE}

    def method(self, x, n):
        limit = n + 2
        y = x * 2
        return y, self.tables["first"].query("limit * 10")


HOLDER = Holder()


def by_a_tagged_function(x, n):
    limit = n + 1
    return x * 2, TAGGED()


def by_one_of_a_list(x, n):
    limit = n + 1
    return x * 2, LISTED[2]()


def by_an_attribute(x, n):
    limit = n + 1
    return x * 2, HOLDER.read()


def by_a_method_of_what_an_object_holds(x, n):
    limit = n + 1
    return x * limit, HOLDER.method(x, n)


def tensors_and_containers(x, n):
    parts = [x + 1, {"n": n}]
    total = parts[0].sum()
    y = x * 3
    return y, by_depth()


def in_a_closure(x, n):
    limit = n + 1
    shared = lambda: limit  # noqa: E731
    return x * 2, [name for name, _ in by_depth()], shared()


READ = [
    dead_names, after_another_break, in_a_loop, deleted, handled, of_a_callee, by_a_method,
    by_a_method_of_a_new_object, by_a_partial, tensors_and_containers, in_a_closure,
    by_a_tagged_function, by_one_of_a_list, by_an_attribute, by_a_method_of_what_an_object_holds,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", READ, ids=lambda program: program.__name__)
def test_all_variables_are_there(program, backend, capsys):
    x = torch.ones(2)
    want = [plainly(program(x, n)) for n in (2, 2, 3)]
    tagged = jitmagic.jit(program, backend=backend)
    assert [plainly(tagged(x, n)) for n in (2, 2, 3)] == want
    if program is not in_a_closure:
        assert counts_of(tagged).graphs


def quiet(x, n):
    twice = n * 2
    y = x * twice
    print(y)
    return y


def test_other_frames_do_not_keep_what_is_dead(capsys):
    tagged = jitmagic.jit(quiet, backend="eager")
    tagged(torch.ones(2), 2)
    root = jitmagic.api.handle_of(tagged).flat.root
    assert root.is_looked_at is False
    (key,) = root.resumes
    assert key.names == ("y",)


@cache
def cached() -> Any:
    return by_depth()


class Callable_:
    def __call__(self) -> Any:
        return by_depth()


def test_what_a_search_reaches(capsys):
    """Through wrappers, classes and what callees name."""
    callee = Callable_()
    for function in (lambda: cached(), lambda: callee(), lambda: inspect.getargvalues(None)):
        tagged = jitmagic.jit(lambda x, f=function: (print(), x + 1, f() if x is None else 0))
        tagged(torch.ones(1))
        assert jitmagic.api.handle_of(tagged).flat.root.is_looked_at
