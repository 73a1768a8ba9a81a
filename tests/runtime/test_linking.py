"""Objects become libraries by the cheapest command that will do."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jitmagic.runtime import toolchain
from jitmagic.runtime.linking import link_commands
from jitmagic.runtime.store import Store
from jitmagic.runtime.toolchain import build_library
from tests.processes import run_python

CALLS_NOTHING = "return n + 1;"
TEXTS = {
    "nothing": ("", CALLS_NOTHING, True),
    "math": ("#include <math.h>\n", "return int(cosf(n * 1e-9f) + 0.5f) + n;", False),
    "memory": ("#include <string.h>\n", "char c[99]; memset(c, 1, n); return c[n - 1] + n;", False),
    "threads": (
        "#include <jitmagic/parallel.h>\n",
        "int r = 0; jm::parallel_for(n + 1, 1, [&](int64_t i, int64_t end) {"
        "if (end == n + 1) r = n + 1; }); return r;",
        False,
    ),
    "threads and the compiler's own": (
        "#include <jitmagic/parallel.h>\nextern bool told;\n"
        "bool told = __builtin_popcountll((unsigned long long)&told) > 0;\n",
        "int r = 0; jm::parallel_for(n + 1, 1, [&](int64_t i, int64_t end) {"
        "if (told && end == n + 1) r = n + 1; }); return r;",
        False,
    ),
    "what every process has": (
        "#include <stdlib.h>\n",
        "int* volatile p = (int*)malloc(4); *p = n + 1; int r = *p; free(p); return r;",
        True,
    ),
    "what every process has and more": (
        "#include <stdlib.h>\n#include <math.h>\n",
        "int* volatile p = (int*)malloc(4); *p = n; int r = *p + int(cosf(n * 1e-9f) + 0.5f);"
        "free(p); return r;",
        False,
    ),
    "the C++ library": (
        "",
        "int* volatile p = new int(n + 1); int r = *p; delete p; return r;",
        False,
    ),
}


def _kernel(what: str) -> str:
    before, body, _ = TEXTS[what]
    return f'{before}extern "C" int kernel(int n) {{ {body} }}'


@pytest.fixture
def links(monkeypatch):
    """The links that were tried."""
    commands = []

    def noted(command, *args):
        if "-shared" in command:
            commands.append(command)
        return run(command, *args)

    run = toolchain.run
    monkeypatch.setattr(toolchain, "run", noted)
    return commands


def test_products_are_linked_at_the_first_try(target, tmp_path, links):
    text = (
        "#include <jitmagic/loop.h>\n#include <jitmagic/gemm.h>\n"
        'extern "C" int kernel(int n) { return n; }'
    )
    build_library(text, target, Store(tmp_path), ("kernel",))
    assert len(links) == 1
    libraries = [part for part in links[0] if part.startswith("-l")]
    assert libraries in (["-lgomp"], ["-lgomp", "-lm", "-lc", "-lgcc"])  # AVX2's call memcpy


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_kernels_are_as_wide_as_the_products_that_they_are_linked_with(isa):
    """ATen's registers can be narrower than the machine's."""
    done = run_python(
        """
        import torch, jitmagic
        from torch.nn import Linear, ReLU, Sequential
        model, x = Sequential(Linear(8, 8), ReLU(), Linear(8, 8)), torch.randn(40, 8)
        with torch.no_grad():
            made = jitmagic.jit(model, fullgraph=True, options={"cpu_tier": "cpp"})
            for rows in (40, 3, 17):
                torch.testing.assert_close(made(x[:rows]), model(x[:rows]))
        """,
        ATEN_CPU_CAPABILITY=isa,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("what", TEXTS)
def test_called_libraries_are_linked(what, target, tmp_path, links):
    library = build_library(_kernel(what), target, Store(tmp_path), ("kernel",))
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(library.address("kernel"))
    assert [function(n) for n in (3, 41)] == [4, 42]
    assert len(links) == 1
    is_alone = not any(part.startswith("-l") for part in links[0])
    assert is_alone == TEXTS[what][2]


def test_a_compiler_without_a_linker_beside_it_links_itself(target, tmp_path, links):
    wrapper = tmp_path / "cxx"
    wrapper.write_text(f'#!/bin/sh\nexec {target.cxx} "$@"\n')
    wrapper.chmod(0o755)
    build_library(_kernel("nothing"), replace(target, cxx=str(wrapper)), Store(tmp_path))
    assert [link[0] for link in links] == [str(wrapper)]


def test_a_linker_that_refuses_is_not_asked_last(target, tmp_path, links):
    for name, lines in {"cxx": f'exec {target.cxx} "$@"', "ld": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    cxx = str(tmp_path / "cxx")
    build_library(_kernel("nothing"), replace(target, cxx=cxx), Store(tmp_path / "store"))
    assert [link[0] for link in links] == [str(tmp_path / "ld"), cxx]


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(100), b"!<arch>\n"]
)
def test_unreadable_objects_are_linked_by_the_compiler(data):
    commands = list(link_commands("g++", {Path("a.o"): data}, Path("a.so")))
    start = ["g++", "-shared", "a.o"]
    assert commands[-2:] == [[*start, "-lgomp", "-o", "a.so"], [*start, "-o", "a.so"]]
    if not data.endswith(bytes(10)):  # no sections, so no symbols
        assert len(commands) == 2


def test_macos_links_by_one_command_that_permits_undefined_symbols(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    (command,) = link_commands("clang++", {Path("a.o"): b""}, Path("a.so"))
    flags = ["-dynamiclib", "-undefined", "dynamic_lookup"]
    assert command == ["clang++", *flags, "a.o", "-o", "a.so"]
