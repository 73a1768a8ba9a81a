"""Translation units: which kernels go together, compiled side by side, refused, told of."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from jitmagic.codegen import render
from jitmagic.codegen.plan import Unit
from jitmagic.errors import ToolchainError
from jitmagic.loops.lower import lower
from jitmagic.options import Options, make_options
from jitmagic.runtime import toolchain
from jitmagic.runtime import translation_units as units_module
from jitmagic.runtime.compilers import run
from jitmagic.runtime.load import load
from jitmagic.runtime.store import Store
from jitmagic.runtime.translation_units import build_units
from jitmagic.schedule import schedule
from tests.loops.recording import clone, record

from .processes import is_alive

NAMES = ("a", "b", "c")


def unit(*names: str) -> Unit:
    text = "\n".join(f'extern "C" int {name}(void* const*) {{ return 0; }}' for name in names)
    return Unit(text, names)


def rendered(fn, target, *inputs):
    graph, _ = record(fn, *[clone(x) for x in inputs])
    return render(schedule(lower(graph, "test"), target, Options()), target)


def long_line(x):
    for k in range(900):
        x = x * 1.0001 + k
    return x


def test_every_kernel_finds_its_library_and_progress_is_reported(target, tmp_path):
    said: list[str] = []
    units = [unit("a", "b"), unit("c")]
    libraries = build_units(units, target, Store(tmp_path), 60.0, said.append)
    assert tuple(libraries) == NAMES
    assert all(libraries[name].address(name) for name in NAMES)
    assert libraries["a"] is libraries["b"] is not libraries["c"]
    compiler = target.cxx.rsplit("/", 1)[-1]
    assert said[0] == f"{compiler} 0 of 3 kernels"
    assert said[-1] == f"{compiler} 3 of 3 kernels"
    assert len(said) == 3
    again = build_units(units, target, Store(tmp_path), 60.0, said.append)
    assert all(library.cached for library in again.values())


AFTER_ALL_UNITS = """#!/bin/sh
for argument; do case $argument in
    *.cpp) source=$argument;;
    -c) compiles=yes;;
esac; done
if [ "$compiles" ] && grep -q "namespace jm::detail" "$source"; then
    for moment in $(seq 600); do
        [ "$(ls {folder}/compiled.* 2>/dev/null | wc -l)" = {units} ] && exec {cxx} "$@"
        sleep 0.05
    done
    echo "the units wait for it" >&2
    exit 1
fi
{cxx} "$@" || exit
if [ "$compiles" ]; then touch {folder}/compiled.$$; fi
"""


@pytest.mark.parametrize("count", [1, 3])
def test_no_unit_waits_for_the_tiles_of_products(target, tmp_path, monkeypatch, count):
    """Even with two processors: they are only linked later."""
    monkeypatch.setattr(units_module, "usable_processors", lambda: 2)
    cxx = tmp_path / "cxx"
    cxx.write_text(AFTER_ALL_UNITS.format(cxx=target.cxx, folder=tmp_path, units=count))
    cxx.chmod(0o755)
    units = [unit(name) for name in NAMES[:count]]
    units = [replace(u, text=f"#include <jitmagic/gemm.h>\n{u.text}") for u in units]
    store = Store(tmp_path / "cache")
    libraries = build_units(units, replace(target, cxx=str(cxx)), store, 60.0, lambda _: None)
    assert tuple(libraries) == NAMES[:count]


REFUSES_PRODUCTS = """#!/bin/sh
for argument; do case $argument in
    *.cpp) if grep -q "namespace jm::detail" $argument; then echo "no tiles" >&2; exit 1; fi;;
esac; done
exec {cxx} "$@"
"""


@pytest.fixture
def nothing_compiled_ahead(monkeypatch):
    """No object of the installation is found."""
    monkeypatch.setattr(toolchain, "compiled_object", lambda *known: None)


@pytest.mark.usefixtures("nothing_compiled_ahead")
def test_error_in_product_object_fails_the_source(target, tmp_path):
    cxx = tmp_path / "cxx"
    cxx.write_text(REFUSES_PRODUCTS.format(cxx=target.cxx))
    cxx.chmod(0o755)
    units = [unit("a"), unit("b")]
    units[1] = replace(units[1], text=f"#include <jitmagic/gemm.h>\n{units[1].text}")
    with pytest.raises(ToolchainError, match="no tiles"):
        build_units(units, replace(target, cxx=str(cxx)), Store(tmp_path), 60.0, lambda _: None)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_error_in_one_unit_fails_the_source(target, tmp_path, broken):
    units = [unit(name) for name in NAMES]
    units[broken] = Unit("int x = not_declared;", (NAMES[broken],))
    with pytest.raises(ToolchainError, match="not_declared"):
        build_units(units, target, Store(tmp_path), 60.0, lambda _: None)


SLOW = """#!/bin/sh
for argument; do case $argument in *.cpp | *.o) : ${{source:=$argument}};; esac; done
if grep -q probe "$source"; then exec {cxx} "$@"; fi
if grep -q refused "$source"; then
    while [ "$(cat {folder}/pids.* | wc -l)" -lt 2 ]; do sleep 0.05; done
    echo "it is refused" >&2
    exit 1
fi
sleep 300 &
echo $$ $! > {folder}/pids.$$
wait
"""


@pytest.fixture
def slow(target, tmp_path, monkeypatch):
    """The target with a compiler that never ends, except on what it refuses."""
    monkeypatch.setattr(units_module, "usable_processors", lambda: 3)
    cxx = tmp_path / "cxx"
    cxx.write_text(SLOW.format(cxx=target.cxx, folder=tmp_path))
    cxx.chmod(0o755)
    return replace(target, cxx=str(cxx))


def at_work(folder, count: int) -> list[int]:
    """The processes of `count` slow compilers, and their children, once they run."""
    while True:
        lines = [file.read_text() for file in folder.glob("pids.*")]
        if sum(line.endswith("\n") for line in lines) == count:
            return [int(pid) for line in lines for pid in line.split()]
        time.sleep(0.01)


def test_ctrl_c_while_compilers_work(target, slow, tmp_path):
    """All end with their children, nothing of theirs is cached, the next call compiles."""
    pids: list[int] = []

    def press() -> None:
        pids.extend(at_work(tmp_path, 3))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    units, store = [unit(name) for name in NAMES], Store(tmp_path / "cache")
    thread = threading.Thread(target=press)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # the suite's shell ignores it
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            build_units(units, slow, store, 60.0, lambda _: None)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert len(pids) == 6
    assert not any(map(is_alive, pids))
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []
    libraries = build_units(units, target, store, 60.0, lambda _: None)
    assert [library.cached for library in libraries.values()] == [False] * 3


def test_compile_error_stops_the_running_compilers(target, slow, tmp_path):
    units = [unit("a"), Unit("int refused;", ("b",)), unit("c")]
    store = Store(tmp_path / "cache")
    with pytest.raises(ToolchainError, match="it is refused"):
        build_units(units, slow, store, 60.0, lambda _: None)
    pids = at_work(tmp_path, 2)
    assert not any(map(is_alive, pids))
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []
    assert not build_units(units[:1], target, store, 60.0, lambda _: None)["a"].cached


def test_a_small_source_is_one_unit_and_a_long_one_is_shared_out(target):
    _, small = rendered(lambda x: (x * 2 + 1).sum(-1), target, torch.randn(8, 8))
    assert [u.text for u in small.units] == [small.text]
    _, long = rendered(long_line, target, torch.randn(8, 8))
    assert len(long.units) == len(long.symbols) > 1  # a kernel as long as this is never cut
    assert tuple(name for u in long.units for name in u.symbols) == tuple(long.symbols)
    assert all(f"int {name}(" in u.text for u in long.units for name in u.symbols)


@pytest.mark.usefixtures("nothing_compiled_ahead")
def test_the_tiles_of_matrix_products_are_compiled_once(target, tmp_path, monkeypatch):
    def layers(x, w, v):
        for k in range(8):
            x = torch.relu(F.linear(torch.softmax(x + k, -1), w) + k).cumsum(0)
        return x @ v

    if target.isa == "scalar":
        pytest.skip("products are left to the library")
    inputs = [torch.randn(24, 24) for _ in range(3)]
    plan, source = rendered(layers, target, *inputs)
    assert sum("jm::gemm<" in unit.text for unit in source.units) > 1
    tiles = (toolchain.header_folder() / "jitmagic" / "products.cpp").read_text()
    texts: list[str] = []

    def watched(command, *rest):
        texts.extend(Path(word).read_text() for word in command if word.endswith(".cpp"))
        return run(command, *rest)

    monkeypatch.setattr(toolchain, "run", watched)
    for folder, compiles in (("one", 1), ("one", 0), ("other", 1)):
        texts.clear()
        options = make_options(cache_dir=str(tmp_path / folder))
        (result,) = load(plan, source, target, options).run(*inputs)
        assert torch.allclose(result, layers(*inputs), rtol=1e-4, atol=1e-4)
        assert texts.count(tiles) == compiles


def test_a_long_program_computes_what_eager_does(target, tmp_path):
    x = torch.randn(8, 8)
    plan, source = rendered(long_line, target, x)
    said: list[str] = []
    options = make_options(cache_dir=str(tmp_path))
    (result,) = load(plan, source, target, options, said.append).run(x)
    assert torch.equal(result, long_line(x))
    assert said[-1].endswith(f"{len(source.symbols)} of {len(source.symbols)} kernels")
