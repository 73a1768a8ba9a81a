"""The C++ toolchain: warm starts, refusals, interrupts."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import threading
import time
from dataclasses import replace

import pytest
import torch

import jitmagic
from jitmagic.devices.cpu import _compilers
from jitmagic.errors import ToolchainError
from jitmagic.runtime import linking, toolchain
from jitmagic.runtime.compilers import run
from jitmagic.runtime.memory_loading import load_image
from jitmagic.runtime.store import Store
from jitmagic.runtime.toolchain import build_library, header_folder, linked_with

from .processes import is_alive

TEXT = 'extern "C" int nothing(void* const*) { return 0; }'


def test_the_second_build_is_a_cache_hit(target, tmp_path):
    assert not build_library(TEXT, target, Store(tmp_path)).cached
    again = build_library(TEXT, target, Store(tmp_path))
    assert again.cached
    assert again.address("nothing") > 0


def test_compile_error_carries_the_compilers_output(target, tmp_path):
    with pytest.raises(ToolchainError, match="not_declared"):
        build_library("int x = not_declared;", target, Store(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_broken_compiler_is_a_toolchain_error(target, tmp_path):
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(ToolchainError, match="exit code 3"):
        build_library(TEXT, replace(target, cxx=str(fake)), Store(tmp_path))


@pytest.fixture
def compiler(tmp_path):
    """Makes a compiler out of a shell script; `$out` is where it has to write."""

    def make(script: str) -> str:
        path = tmp_path / "cxx"
        path.write_text(f"#!/bin/sh\nfor out; do :; done\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def _children(tmp_path) -> list[int]:
    return [int(line) for line in (tmp_path / "pids").read_text().split()]


HANGS = "echo $$ >> {0}/pids; sleep 300 & echo $! >> {0}/pids; wait"


def test_a_compiler_that_hangs_is_stopped_with_its_children(compiler, tmp_path):
    with pytest.raises(ToolchainError, match="compile_seconds"):
        run([compiler(HANGS.format(tmp_path))], 0.5)
    pids = _children(tmp_path)
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_an_interrupt_stops_the_compiler_with_its_children(compiler, tmp_path, monkeypatch):
    real = subprocess.Popen.communicate

    def interrupted(self, *args, **kwargs):
        with pytest.raises(subprocess.TimeoutExpired):
            real(self, timeout=0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([compiler(HANGS.format(tmp_path))], 60.0)
    assert not any(map(is_alive, _children(tmp_path)))


def test_an_interrupt_while_the_compiler_starts_stops_it(compiler, tmp_path, monkeypatch):
    real = subprocess.Popen._execute_child

    def interrupted(self, *args, **kwargs):
        real(self, *args, **kwargs)
        while not (tmp_path / "pids").exists() or len(_children(tmp_path)) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "_execute_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([compiler(HANGS.format(tmp_path))], 60.0)
    assert not any(map(is_alive, _children(tmp_path)))


def test_another_thread_can_stop_a_compiler(compiler, tmp_path):
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(ToolchainError, match="cancelled"):
        run([compiler(HANGS.format(tmp_path))], 60.0, cancel)
    assert not any(map(is_alive, _children(tmp_path)))


def test_output_that_is_not_utf8_is_decoded_with_replacement(compiler):
    done = run([compiler(r"printf 'caf\\351 \\377\\n' >&2; exit 7")], 60.0)
    assert done.code == 7
    assert done.stderr.startswith("caf")


def test_ctrl_c_reaches_the_caller_and_the_next_build_works(target, tmp_path, monkeypatch):
    store = Store(tmp_path)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "communicate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_library(TEXT, target, store)
    assert list(tmp_path.iterdir()) == []
    assert not build_library(TEXT, target, store).cached


def test_verified_bytes_are_the_bytes_loaded(target, tmp_path, monkeypatch):
    """The file is swapped for another good one between its check and its loading."""
    other = build_library(TEXT.replace("return 0", "return 7"), target, Store(tmp_path / "other"))
    (swap,) = (tmp_path / "other").glob("*.so")
    build_library(TEXT, target, Store(tmp_path / "mine"))
    get = Store.get

    def swapped(self, key, suffix):
        data = get(self, key, suffix)
        swap.replace(self.folder / f"{key}{suffix}")
        return data

    monkeypatch.setattr(Store, "get", swapped)
    mine = build_library(TEXT, target, Store(tmp_path / "mine"))
    assert mine.cached
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    assert function(mine.address("nothing"))(None) == 0
    assert function(other.address("nothing"))(None) == 7


# ------------------------------------------------------------------------------------- unloading


def _mapped() -> int:
    """Return how many of jitmagic's libraries are mapped in this process."""
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file if "memfd:jitmagic-" in line]
    return len({line[4] for line in lines})  # by inode


def test_libraries_are_unloaded_with_their_last_user(target, tmp_path):
    """Each is another one to the loader, and none stays."""
    text = 'extern "C" long number(void* const*) { return 0x1122334455667788; }'
    build_library(text, target, Store(tmp_path))
    data = Store(tmp_path).get(next(tmp_path.glob("*.so")).stem, ".so")
    gc.collect()  # what earlier tests have left
    before = _mapped()
    for n in range(500):
        copy = data.replace(bytes.fromhex("8877665544332211"), n.to_bytes(8, "little"))
        image = load_image(copy, "test")
        number = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(image.address("number"))
        assert number(None) == n
        if n % 50 == 0:  # a process maps thousands of files, and each time tells of all
            assert _mapped() == before + 1
    del image
    assert _mapped() == before


def test_equal_libraries_are_loaded_once(target, tmp_path):
    gc.collect()  # what earlier tests have left
    before = _mapped()
    first, second = (build_library(TEXT, target, Store(tmp_path)) for _ in range(2))
    assert _mapped() == before + 1
    assert first.address("nothing") == second.address("nothing")


def _rows(x):
    return torch.relu(x * 2 + 1).sum(-1)


def _product(x):
    return torch.relu(x @ x[:96].t()).sum(-1)


def _chain(x):
    return torch.relu(torch.relu(x @ x[:96].t()) @ x[:32, :96].t()).sum(-1)


@pytest.mark.parametrize("program", [_rows, _product, _chain])
def test_kernels_of_dropped_functions_are_unloaded(program, target, tmp_path):
    """With threads: their runtime stays, and the next kernel uses it. A library in which a thread
    has memory of its own would stay as long as the thread.
    """
    options = {"cache_dir": str(tmp_path)}
    gc.collect()  # what earlier tests have left
    before = _mapped()
    for rows in (512, 512, 4, 200):
        x = torch.randn(max(rows, 96), 512, requires_grad=True)
        run = jitmagic.jit(program, options=options)
        made = run(x)
        torch.testing.assert_close(made, program(x), rtol=1e-4, atol=1e-3)
        made.sum().backward()
        assert _mapped() > before
        del run, made
        gc.collect()
        assert _mapped() == before


@pytest.mark.parametrize("program", [_product, _chain])
@pytest.mark.parametrize("is_installed", [True, False])
def test_products_are_linked_with_an_object_of_the_installation(
    program, is_installed, target, tmp_path, monkeypatch
):
    name = linked_with("#include <jitmagic/gemm.h>\n")[0]
    installed = linking.compiled_object(name, toolchain.object_key(name), target)
    if is_installed and installed is None:
        pytest.skip("setup.py compiled no object for these headers and this machine's registers")
    if not is_installed:
        monkeypatch.setattr(toolchain, "compiled_object", lambda *known: None)
    x = torch.randn(130, 512)
    run = jitmagic.jit(program, options={"cache_dir": str(tmp_path), "keep": "compiled"})
    torch.testing.assert_close(run(x), program(x), rtol=1e-4, atol=1e-3)
    assert bool(list(tmp_path.rglob("*.o"))) is not is_installed


def test_headers_are_where_generated_code_looks(target):
    assert (header_folder() / "jitmagic" / "vec.h").is_file()


def test_compilers_are_tried_in_their_order_and_once(tmp_path, monkeypatch):
    for name in ("g++", "clang++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "c++").symlink_to("g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    _compilers.cache_clear()
    try:
        found = [_compilers(None, variable) for variable in ("", "clang++")]
    finally:
        _compilers.cache_clear()
    gcc, clang = str(tmp_path / "g++"), str(tmp_path / "clang++")
    assert found == [(gcc, clang), (clang, gcc)]
