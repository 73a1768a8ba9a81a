"""Compiling takes steps in proportion to a program: calls of functions are counted, not seconds.

Each family of tests/bench/growth.py is compiled at two sizes. No function of jitmagic is called
more often than the programs' lengths explain; `python -m tests.bench.growth` has the times.
"""

from __future__ import annotations

import cProfile
import gc
import os
from collections import Counter

import pytest
import torch

from jitmagic.bytecode import Instruction
from jitmagic.codegen import render
from jitmagic.devices import Target
from jitmagic.late import collector_paused
from jitmagic.loops.ir import run_time_values
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.records import watchers
from jitmagic.schedule import schedule
from jitmagic.symbols.expr import bounds, leaves
from tests.bench import growth
from tests.processes import ROOT, run_forked

PACKAGE = str(ROOT / "jitmagic") + os.sep
TARGET = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")


def graphs_of(call):
    """Compile up to the joint graph, which torch runs: the forward and backward graphs."""
    graphs = []

    def watch(_, stage, begins):
        if stage.stage == "partition" and not begins:
            graphs.extend(g for g in (stage.result.forward, stage.result.backward) if g is not None)

    watchers.append(watch)
    try:
        call()
    finally:
        watchers.remove(watch)
    return graphs


def compiled(call):
    """Run every stage but that of C++ compilers."""
    for graph in graphs_of(call):
        render(schedule(lower(graph, "graph"), TARGET, Options()), TARGET, {})


def calls(family, n):
    """Return how often each function of jitmagic is called in a compile at size n."""
    torch.manual_seed(0)
    call = family.make(n)
    # Neither results that an earlier program has left nor its finalizers may count.
    for cached in (bounds, leaves, run_time_values):
        cached.cache_clear()
    profile = cProfile.Profile(builtins=False)
    with collector_paused():
        gc.collect()
        profile.runcall(compiled, call)
    counts = Counter()
    for entry in profile.getstats():
        # Callbacks of dead expressions run whenever the collector does, also for earlier programs.
        if entry.code.co_filename.startswith(PACKAGE) and entry.code.co_name != "_forget":
            counts[entry.code] += entry.callcount
    return counts


# A resume function has all the code that it reaches: n breaks assemble n²/2 lines.
FAMILIES = [family for family in growth.FAMILIES if family.name != "graph breaks"]


# In a process that has compiled nothing: which functions a compile calls depends on what was
# compiled before it, and after 10,000 other tests one was called at the larger size alone.
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_functions_are_called_in_proportion_to_the_program(family):
    done = run_forked(f"from tests.test_growth import check_calls; check_calls({family.name!r})")
    assert not done.returncode, done.stderr


def check_calls(name):
    """Compare the calls of a family at two sizes."""
    growth.OPTIONS["backend"] = "aot_eager"
    (family,) = [one for one in FAMILIES if one.name == name]
    calls(family, 2)  # what is computed once in a process
    less, more = calls(family, 2 * family.n), calls(family, 4 * family.n)  # nests are full by then
    assert sum(less.values()) > 20 * family.n
    # Twice, and a constant: a function called for each pair of n is called four times as often.
    faster = {
        f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}": (less[code], count)
        for code, count in more.items()
        if count > 2.7 * less[code] + 5 * family.n
    }
    assert not faster, faster
    assert more.total() < 2.7 * less.total()


def test_breaks_copy_only_the_code_that_is_reached(monkeypatch):
    monkeypatch.setitem(growth.OPTIONS, "backend", "aot_eager")
    copied = Counter()

    def copy(instruction):
        copied["instructions"] += 1
        return original(instruction)

    original = Instruction.copy
    monkeypatch.setattr(Instruction, "copy", copy)
    n = 16
    call = next(family for family in growth.FAMILIES if family.name == "graph breaks").make(n)
    call()
    lines = 20 * n  # instructions, about; two ways on at each break, and the residual
    assert n * n < copied["instructions"] < 1.2 * n * lines
