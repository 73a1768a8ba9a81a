"""Names of modules and frames: as globals, attributes and items of a dictionary."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic

from .mutation import plainly
from .test_shared_dictionaries import Made, run_program

X = torch.linspace(0.25, 1.5, 3)


def _module(text: str, **names: Any) -> dict[str, Any]:
    """Names of a module that `text` defines."""
    exec(text, names)
    return names


def globals_by_two_names() -> Made:
    text = """def run(x):
        global count
        count += 1
        alias['count'] += 10
        globals()['late'] = count
        return x * count + late, alias is globals(), 'late' in alias, alias.pop('late')
    """
    names = _module(text, count=0)
    names["alias"] = names
    return names["run"], lambda: (names["count"], "late" in names)


def all_names_of_the_globals() -> Made:
    text = """def run(x):
        global late
        late = len(names := globals())
        first = [name for name in names if name.startswith('c')]
        names['count'] += late
        del late
        names['cut'] = sum(v for k, v in names.items() if k == 'count')
        return x * count, first, list(names)[-2:], len(names), bool(globals())
    """
    names = _module(text, count=0, core=1)
    return names["run"], lambda: (names["count"], list(names)[-3:])


def keys_that_are_no_names() -> Made:
    text = """def run(x):
        names = globals()
        seen = names.get(1, 7), 2 in names, names.pop(3, None)
        names[1] = names.get(1, 0) + 1
        names[3] = 'three'
        del names[3]
        names[(1, 2)] = 5
        return x * scale, seen, names.pop((1, 2)), [key for key in names if type(key) is not str]
    """
    names = _module(text, scale=2.0)
    return names["run"], lambda: names.get(1)


def namespace_of_a_module() -> Made:
    module: Any = types.ModuleType("counts")
    text = "count = 0\ndef bump():\n    global count\n    count += 100\n    return globals()"
    exec(text, vars(module))
    table = vars(module)

    def run(x: Any) -> Any:
        module.count += 1
        table["count"] += 10
        same = module.bump() is table, module.__dict__ is vars(module)
        vars(module)["late"] = module.count
        del module.late
        return x * module.count, same, [name for name in table if not name.startswith("_")]

    return run, lambda: (module.count, hasattr(module, "late"))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "make",
    [globals_by_two_names, all_names_of_the_globals, keys_that_are_no_names, namespace_of_a_module],
)
def test_writes_are_seen_under_all_names(make: Callable[[], Made], backend: str) -> None:
    tag = jitmagic.jit(backend=backend, fullgraph=True)
    assert run_program(make, tag) == run_program(make, lambda run: run)


@pytest.mark.parametrize("first", ["another", "globals"])
def test_argument_may_be_the_globals_in_some_calls(first: str) -> None:
    results = []
    for tag in (lambda fn: fn, jitmagic.jit(backend="eager")):
        names = _module("def run(table, x):\n    table['scale'] = 5\n    return x * scale", scale=3)
        run = tag(names["run"])
        for chosen in (first, "another", "globals", "another"):
            names["scale"] = 3
            results.append(plainly(run(names if chosen == "globals" else {}, X)))
    assert results[:4] == results[4:]


def test_one_code_object_in_two_namespaces() -> None:
    code = compile("def scaled(x):\n    return x * scale", "scaled", "exec")
    one, other = {"scale": 2.0}, {"scale": 5.0}
    exec(code, one)
    again = types.FunctionType(one["scaled"].__code__, one)  # type: ignore[attr-defined]
    moved = types.FunctionType(one["scaled"].__code__, other)  # type: ignore[attr-defined]
    run = jitmagic.jit(lambda functions, x: [f(x) for f in functions], backend="eager")
    for functions in ([one["scaled"], again], [one["scaled"], moved], [moved, again]):
        assert plainly(run(functions, X)) == plainly([f(X) for f in functions])  # type: ignore[operator]
