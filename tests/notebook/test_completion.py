"""<TAB> after the magics, in a shell; what `jitmagic.<TAB>` shows."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest

pytest.importorskip("IPython")
from IPython.core.completer import provisionalcompleter

import jitmagic

OPTIONS = [
    *("--annotate", "--backend", "--dynamic", "--explain", "--fullgraph", "--lazy", "--mode"),
    *("--quiet", "--time"),
]
MODES = ["default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"]
CASES = {
    "%%compile --mo": ["--mode"],
    "%%compile ": OPTIONS,
    "%%compile --fullgraph --f": [],
    "%%compile --mode ": MODES,
    "%%compile --mode reduce-ov": ["reduce-overhead"],
    "%%compile --mode max-autotune-n": ["max-autotune-no-cudagraphs"],
    "%%compile --backend a": ["aot_eager"],
    "%compile ": ["plain"],
    "%compile --full": ["--fullgraph"],
    "%compile --mode default p": ["plain"],
    "%compile_off ": ["tagged"],
    "%compile_status plain tag": ["tagged"],
    "%jit_timeit --s": ["--seconds"],
    "%jit_cache ": ["bundle", "clear", "list", "unbundle"],
    "%jit_cache bundle x.jmz ": ["tagged"],
    "%jit_cache clear --old": ["--older-than"],
}


@contextmanager
def without_jedi(shell):
    """Disable Jedi, which reads all of torch for a second if the magics complete nothing."""
    shell.Completer.use_jedi, before = False, shell.Completer.use_jedi
    try:
        yield
    finally:
        shell.Completer.use_jedi = before


@pytest.fixture
def named(loaded):
    loaded.user_ns["plain"] = lambda x: x
    loaded.user_ns["tagged"] = jitmagic.jit(lambda x: x)
    loaded.user_ns["number"] = 3
    with without_jedi(loaded):
        yield loaded


@pytest.mark.parametrize("line", CASES)
def test_a_magic_is_completed(named, line):
    symbol = "" if line.endswith(" ") else line.split()[-1]
    assert named.complete(symbol, line, len(line))[1] == CASES[line]


def test_a_front_ends_completion_replaces_the_word(loaded):
    line = "%%compile --mode reduce-ov"
    with provisionalcompleter():
        found = [(c.text, c.start, c.end) for c in loaded.Completer.completions(line, len(line))]
    assert found == [("reduce-overhead", line.index("reduce"), len(line))]


def test_every_option_of_a_cell_is_completed(loaded):
    usage = loaded.find_cell_magic("compile").__doc__
    offered = loaded.complete("", "%%compile ", 10)[1]
    assert sorted(set(re.findall(r"^ +(--[a-z]+)", usage, re.MULTILINE))) == offered


def test_nothing_is_completed_once_it_is_unloaded(loaded):
    loaded.run_line_magic("unload_ext", "jitmagic")
    assert loaded.complete("--mo", "%%compile --mo", 14)[1] == []
    loaded.run_line_magic("load_ext", "jitmagic")


def test_public_names_alone_are_shown():
    shown = [name for name in dir(jitmagic) if not name.startswith("_")]
    assert shown == sorted(jitmagic.__all__)
    assert all(hasattr(jitmagic, name) for name in shown)
