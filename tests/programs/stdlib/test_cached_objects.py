"""Mutable results of functools.lru_cache: changes by others and the counters are as in eager."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic

from ...covering import covered
from ..counts import counts_of


class Settings:
    def __init__(self):
        self.t = 1.0


@dataclasses.dataclass
class Data:
    t: float = 1.0


@functools.cache
def local_class():
    class Local:
        t = 1.0

    return Local


@functools.cache
def from_environment():
    return float(os.environ.get("JITMAGIC_TEST_T", "1"))


SHARED = {"t": 1.0}
REGISTRY = [1.0]
SEEN: list[object] = []
MADE: dict[str, Callable[..., object]] = {
    "instance": Settings,
    "dataclass": Data,
    "namespace": lambda: types.SimpleNamespace(t=1.0),
    "list": lambda: [1.0, 2.0],
    "dict": lambda: {"t": 1.0},
    "counter": lambda: collections.Counter(t=1),
    "set": lambda: {1, 2},
    "list in a tuple": lambda: ([1.0],),
    "sentinel": object,
    "registry": lambda: REGISTRY,
    "reads a dict": lambda: SHARED["t"],
    "reads the environment": from_environment.__wrapped__,
    "class": local_class.__wrapped__,
    "tensor": lambda: torch.ones(2),
    "argument": lambda n=1: [float(n)],
}


def number_of(found: Any) -> Any:
    """A number that depends on everything that `change` changes."""
    if isinstance(found, float | torch.Tensor):
        return found
    if isinstance(found, dict):
        return found["t"]
    if isinstance(found, set):
        return len(found)
    if isinstance(found, list):
        return sum(found)
    if isinstance(found, tuple):
        return found[0][0]
    return found.t if hasattr(found, "t") else float(found in SEEN)


def change(found: Any) -> None:
    """In place; of what cannot change, that which the function read."""
    if isinstance(found, float):
        SHARED["t"] += 2
        os.environ["JITMAGIC_TEST_T"] = "7"
    elif isinstance(found, torch.Tensor):
        found.add_(1)
    elif isinstance(found, dict):
        found["t"] += 2
    elif isinstance(found, set):
        found.add(len(found) + 5)
    elif isinstance(found, list):
        found.append(4.0)
    elif isinstance(found, tuple):
        found[0][0] += 2
    elif hasattr(found, "t"):
        found.t += 2
    else:
        SEEN.append(found)


def story(order: str, make: Callable[..., object], limit: int | None, tag: Any) -> list[object]:
    """Calls (f), changes (c) and clearings (0) in an order, with all that the program can see."""
    SHARED["t"], REGISTRY[:], SEEN[:] = 1.0, [1.0], []
    os.environ.pop("JITMAGIC_TEST_T", None)
    cached = functools.lru_cache(limit)(lambda *args: make(*args))
    tagged = tag(lambda x: x * number_of(cached(*arguments)))
    arguments = (3,) if make is MADE["argument"] else ()
    seen: list[object] = []
    for step in order:
        if step == "f":
            seen.append(tagged(torch.ones(2)).tolist())
        elif step == "c":
            change(cached(*arguments))
        else:
            cached.cache_clear()
        seen.append(cached.cache_info())
    os.environ.pop("JITMAGIC_TEST_T", None)
    return seen


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@covered(
    made=MADE,
    limit=[None, 128, 1],
    order=["cff", "fcff", "ffcf", "fc0fcf"],
    backend=["eager", "jit"],
)
def test_a_program_uses_the_object_that_the_cache_holds(made, limit, order, backend):
    options = {} if backend == "jit" else {"backend": backend}
    want = story(order, MADE[made], limit, lambda fn: fn)
    assert story(order, MADE[made], limit, functools.partial(jitmagic.jit, **options)) == want


def test_evicted_cache_entries():
    """The order of hits says which entry is dropped next."""

    def answers(tag):
        cached = functools.lru_cache(2)(lambda n: [n])
        tagged = tag(lambda x: x + cached(1)[0] + cached(2)[0] + cached(1)[0])
        results = []
        for n in (1, 3, 4, 1, 2):
            results.append(tagged(torch.ones(1)).tolist())
            cached(n).append(0)
            results.append((cached.cache_info(), cached(1), cached(2), cached(n)))
        return results

    assert answers(jitmagic.jit(backend="eager")) == answers(lambda fn: fn)


def test_a_library_is_one_graph_with_a_cold_cache(tmp_path, monkeypatch):
    """What its caches make is kept by them, without another compile."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "cached_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    library = importlib.import_module("cached_library")
    tagged = jitmagic.jit(lambda x: library.program(x), fullgraph=True, backend="eager")
    for t in (1, 3, 3):
        library.settings(2)["t"] = t
        assert tagged(torch.ones(1)).item() == 2 * t + 5
        assert library.settings.cache_info().currsize == library.flag.cache_info().currsize == 1
    assert counts_of(tagged).graphs == 2  # and the number that changed
    library.FLAG = False
    assert tagged(torch.ones(1)).item() == 2 * 3 + 5


LIBRARY = """
import functools

FLAG = True

@functools.lru_cache
def settings(n):
    return {"n": n, "t": 1}

@functools.cache
def flag():
    return FLAG

def program(x):
    return x * settings(2)["n"] * settings(2)["t"] + (5 if flag() else 0)
"""


STATEFUL = """
import functools, math, sys

CONSTANTS = {"m": sys}

@functools.cache
def module_of(name):
    return CONSTANTS[name]

def program(x, box, name):
    box.append(1)  # a write before the call
    CONSTANTS["m"] = math if name == "changed" else sys
    return x * (2 if module_of("m") is math else 3)
"""


@pytest.mark.parametrize("name", ["same", "changed"])
def test_a_cached_function_of_a_library_sees_what_was_written_before(name, tmp_path, monkeypatch):
    """One graph if its result is what a call at compile time gives, which the write precedes."""
    (tmp_path / "site-packages").mkdir()
    file = f"stateful_library_{name}"
    (tmp_path / "site-packages" / f"{file}.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    library = importlib.import_module(file)
    tagged = jitmagic.jit(lambda x, box: library.program(x, box, name), backend="eager")
    for _ in range(2):
        assert tagged(torch.ones(1), []).item() == (2 if name == "changed" else 3)
    assert library.module_of("m") is library.CONSTANTS["m"]
    assert bool(counts_of(tagged).breaks) == (name == "changed")
