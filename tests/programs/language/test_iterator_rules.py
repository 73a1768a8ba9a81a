"""Iterators over containers that change, errors of slices and sizes, and hidden tensor methods."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

Ordered = collections.OrderedDict
MAKERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2],
    "dict": lambda: {1: 1, 2: 2},
    "items": lambda: {1: 1, 2: 2},
    "defaultdict": lambda: collections.defaultdict(int, {1: 1, 2: 2}),
    "OrderedDict": lambda: Ordered({1: 1, 2: 2}),
    "set": lambda: {1, 2},
    "deque": lambda: collections.deque([1, 2]),
}


def _add(target: Any, key: int) -> None:
    if isinstance(target, dict):
        target[key] = key
    elif isinstance(target, set):
        target.add(key)
    else:
        target.append(key)


def _drop(target: Any, key: int) -> None:
    if isinstance(target, dict):
        del target[key]
    else:
        target.remove(key)


def _clear(target: Any, key: int) -> None:
    target.clear()


def _replace(target: Any, key: int) -> None:
    _drop(target, key)
    _add(target, key)


def _walk(x: Tensor, target: Any, kind: str, change: Any, at: int, pause: bool) -> Any:
    """Change the container before step `at`, and report each of six steps."""
    steps: list[Any] = []
    iterator = iter(target.items() if kind == "items" else target)
    for step in range(6):
        if step == at:
            change(target, 1)
            if pause:
                jitmagic.graph_break()
        try:
            steps.append(next(iterator, None))
        except RuntimeError:
            steps.append("RuntimeError")
    return x + 1, steps, target


@pytest.mark.parametrize("pause", [False, True], ids=["", "with a break"])
@pytest.mark.parametrize("change", [_add, _drop, _clear, _replace])
@pytest.mark.parametrize("kind", MAKERS)
def test_changed_containers(kind: str, change: Any, pause: bool) -> None:
    key_change = change if change is not _add else lambda target, key: _add(target, key + 2)
    for at in range(5):
        for local in (False, True):

            def program(x: Tensor, target: Any, at: int = at, local: bool = local) -> Any:
                used = MAKERS[kind]() if local else target
                return _walk(x, used, kind, key_change, at, pause)

            wanted = program(torch.ones(2), MAKERS[kind]())
            found = jitmagic.jit(program)(torch.ones(2), MAKERS[kind]())
            assert repr(found) == repr(wanted), at


@pytest.mark.parametrize("make", [dict, Ordered, lambda: collections.defaultdict(int)])
def test_types_of_views_and_iterators(make: Any) -> None:
    def program(x: Tensor, table: Any) -> Any:
        views = [table, table.keys(), table.values(), table.items()]
        return x + 1, [type(one) for one in views], [type(iter(one)) for one in views]

    assert repr(jitmagic.jit(program)(torch.ones(2), make())) == repr(
        program(torch.ones(2), make())
    )


def _echo() -> Any:
    received = yield 1
    yield received


def _closed() -> Any:
    generator = _echo()
    generator.close()
    return generator


def _assigned(key: Any, new: Any) -> list[int]:
    items = [1, 2, 3, 4]
    items[key] = new
    return items


def _deleted(key: Any) -> list[int]:
    items = [1, 2, 3, 4]
    del items[key]
    return items


@pytest.mark.parametrize(
    "act",
    [
        lambda x: _echo().send(1),
        lambda x: _echo().send(None),
        lambda x: _closed().send(1),
        lambda x: _assigned(slice(None, None, 2), [1]),
        lambda x: _assigned(slice(None, None, 0), [1]),
        lambda x: _assigned(slice("a"), 3),
        lambda x: _deleted(slice(None, None, 0)),
        lambda x: [1, 2][::0],
        lambda x: (1, 2)["a":],
        lambda x: x.shape[::0],
        lambda x: slice(None).indices(-1),
        lambda x: slice(1, 2, 3, 4),
        lambda x: slice(),
        lambda x: torch.nn.ModuleList([torch.nn.ReLU()])[::0],
        lambda x: (*x.shape, 1.5) + x.shape,
        lambda x: x.shape + (1.5,),
        lambda x: torch.Size([2]) + [1],
        lambda x: [1] + x.shape,
        lambda x: torch.Size([1.5]),
        lambda x: list([1], [2]),
        lambda x: frozenset([1], [2]),
    ],
)
def test_errors_that_a_program_catches(act: Callable[[Tensor], Any]) -> None:
    def program(x: Tensor) -> Any:
        try:
            return x + 1, act(x)
        except Exception as error:
            return x + 1, type(error)

    found = jitmagic.jit(program, options={"on_error": "raise"})(torch.ones(2))
    assert repr(found) == repr(program(torch.ones(2)))


@pytest.mark.parametrize("inside", [False, True])
def test_an_entry_of_a_tensor_hides_a_method_but_no_property(inside: bool) -> None:
    def hide(x: Tensor) -> None:
        x.add = lambda other: other * 100  # type: ignore[method-assign]
        x.__dict__["shape"] = 5

    def program(x: Tensor, y: Tensor) -> Any:
        if inside:
            hide(x)
        return x.add(y), x.mul(y), x.shape

    results = []
    for run in (program, jitmagic.jit(program)):
        x = torch.ones(2)
        if not inside:
            hide(x)
        results.append(repr(run(x, torch.ones(2))))
    assert results[0] == results[1]


@pytest.mark.parametrize("materialised", [False, True])
@pytest.mark.parametrize("name", ["relu", "note", "mro"])  # `mro` is of the metaclass
def test_a_tensor_that_hides_a_compiled_method_is_compiled_anew(
    name: str, materialised: bool
) -> None:
    fn = jitmagic.jit(lambda x: x.relu(), options={"on_error": "raise"})
    plain, other = torch.tensor([-1.0, 2.0]), torch.tensor([-1.0, 2.0])
    fn(plain)
    setattr(other, name, lambda: 5)
    if materialised:  # inline values are compared without making a dictionary of them
        vars(other)
    for x in (plain, other, plain, other):
        assert repr(fn(x)) == repr(x.relu())
    delattr(other, name)
    assert repr(fn(other)) == repr(plain.relu())
    assert len(jitmagic.api.handle_of(fn).journal) == (2 if name == "relu" else 1)
