"""The precompiled header: when it is made, who trusts it, and that kernels are the same with it."""

from __future__ import annotations

import gc
import os
import time
import warnings
from pathlib import Path

import pytest

from jitmagic.errors import ToolchainError
from jitmagic.runtime import precompiled, toolchain
from jitmagic.runtime.private_files import write_private
from jitmagic.runtime.store import Store, content_key
from jitmagic.runtime.toolchain import build_library
from tests.processes import run_forked

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
KERNEL = """#include <jitmagic/loop.h>
extern "C" int kernel_{0}(void* const* args) {{
    const float* in = (const float*)args[0];
    float* out = (float*)args[1];
    jm::blocks<16, 100>([&](int64_t at, auto n) JM_BODY {{
        jm::store(out + at, jm::load<16>(in + at, n) + {0}.0f, n);
    }});
    return 0;
}}
"""


@pytest.fixture
def with_header(monkeypatch) -> list[bool]:
    """Record, for each compile, whether it used a precompiled header."""
    seen: list[bool] = []
    run = toolchain.run

    def watched(command, *rest):
        if "-c" in command:
            seen.append("-include" in command)
        return run(command, *rest)

    monkeypatch.setattr(toolchain, "run", watched)
    return seen


def build(number: int, target, store: Store) -> None:
    build_library(KERNEL.format(number), target, store, (f"kernel_{number}",))


def header_of(store: Store) -> Path | None:
    found = list(store.folder.glob("*.gch"))
    assert len(found) <= 1
    return found[0] if found else None


def made(target, store: Store) -> Path:
    """Compile until there is one; a compiler with another format is not tested."""
    for number in range(4):
        build(number, target, store)
    end = time.monotonic() + 60
    while (path := header_of(store)) is None and time.monotonic() < end:
        time.sleep(0.05)
        build(int(time.monotonic() * 100) % 1_000_000 + 10, target, store)
    assert path is not None
    if not (store.read_here(path.stem, ".gch") or b"").startswith((b"gpch", b"CPCH")):
        pytest.skip("neither GCC nor clang")
    return path


def replace_by(path: Path, data: bytes) -> None:
    """A whole file of the store's with other contents."""
    path.unlink()
    write_private(
        path, data + b"\njitmagic sha256 " + content_key(path.name, data).encode() + b"\n"
    )


def test_header_is_built_once_it_pays_and_shared_through_the_folder(target, tmp_path, with_header):
    store = Store(tmp_path)
    for number in range(3):
        build(number, target, store)
    assert header_of(store) is None
    made(target, store)
    assert not any(with_header[:4])
    assert not list(tmp_path.glob("build-*"))
    del with_header[:]
    build(7, target, Store(tmp_path))
    assert with_header == [True]


def test_a_finished_build_leaves_no_pipe_open(target, tmp_path):
    gc.collect()  # what other tests left behind
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        made(target, Store(tmp_path))
    assert not caught


def test_kernels_are_identical_with_the_header(target, tmp_path, with_header):
    store, without = Store(tmp_path / "with"), Store(tmp_path / "without")
    store.folder.mkdir(0o700)
    made(target, store)
    del with_header[:]
    texts = [(GOLDENS / f"{n}.cpp").read_text() for n in ("relu_sum", "mlp", "half_chain")]
    for text in texts:
        build_library(text, target, store)
    assert with_header[0]
    for text in texts:
        build_library(text, target, without)
    files = {path.name: path.read_bytes() for path in without.folder.glob("*.so")}
    assert len(files) == len(texts)
    assert all((store.folder / name).read_bytes() == data for name, data in files.items())


DAMAGE = {
    "cut short": lambda path, data: replace_by(path, data[: len(data) // 2]),
    "words of a compiler": lambda path, data: replace_by(path, b"cannot do it"),
    "of another format": lambda path, data: replace_by(path, b"XPCH" + data[4:]),
    "a byte changed": lambda path, data: path.write_bytes(b"gpcx" + data[4:]),
    "others may write": lambda path, data: path.chmod(0o666),
    "a link": lambda path, data: (path.rename(path.with_name("x")), path.symlink_to("x")),
    "a folder": lambda path, data: (path.unlink(), path.mkdir()),
    "gone": lambda path, data: path.unlink(),
    "the folder is open": lambda path, data: path.parent.chmod(0o777),
}


@pytest.mark.filterwarnings("ignore:the kernel cache:jitmagic.errors.FallbackWarning")  # open
@pytest.mark.parametrize("kind", DAMAGE)
def test_unusable_header_is_not_used(kind, target, tmp_path, with_header):
    """Kernels are built all the same, and it is not tried again and again."""
    store = Store(tmp_path / "kernels")
    store.folder.mkdir(0o700)
    path = made(target, store)
    DAMAGE[kind](path, store.read_here(path.stem, ".gch"))
    del with_header[:]
    build(1_000_001, target, store)
    build(1_000_002, target, store)
    assert with_header == ([True, False, False] if kind == "cut short" else [False, False])
    said = {"cut short", "words of a compiler", "of another format"}
    ours = [s for (folder, _), s in precompiled._states.items() if folder == str(store.folder)]
    assert any(state.refusal in precompiled.refusals() for state in ours) == (kind in said)


def test_compile_error_does_not_disable_the_header(target, tmp_path, with_header):
    store = Store(tmp_path)
    made(target, store)
    with pytest.raises(ToolchainError, match="not_declared") as error:
        build_library(KERNEL.format(5) + "int x = not_declared;\n", target, store)
    assert "-include" not in str(error.value)
    del with_header[:]
    build(1_000_003, target, store)
    assert with_header == [True]


def test_forked_child_does_not_touch_the_parents_compiler(target, tmp_path):
    store = Store(tmp_path)
    for number in range(4):
        build(number, target, store)
    (building,) = tmp_path.glob("build-*")
    child = os.fork()
    if not child:
        precompiled._at_exit()
        os._exit(0)
    os.waitpid(child, 0)
    state = precompiled._states[next(k for k in precompiled._states if k[0] == str(tmp_path))]
    assert state.build is not None
    state.build.process.wait()
    assert (building / "header").exists()
    build(9, target, store)
    assert header_of(store) is not None


def test_a_process_that_ends_leaves_no_compiler_and_no_folder(target, tmp_path):
    done = run_forked(
        """
        import sys, torch, pathlib
        from jitmagic.options import make_options
        from jitmagic.runtime.store import Store
        from jitmagic.runtime.toolchain import build_library
        from jitmagic.devices import find_target
        store = Store(pathlib.Path(sys.argv[1]))
        for number in range(4):
            text = sys.argv[2].replace("kernel_", f"kernel_{number}")
            build_library(text, find_target(torch.device("cpu"), make_options()), store)
        print(len(list(store.folder.glob("build-*"))))
        """,
        str(tmp_path),
        KERNEL.format(1),
    )
    assert done.stdout.split() == ["1"], done.stderr
    assert not list(tmp_path.glob("build-*"))
