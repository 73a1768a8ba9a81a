"""Other compilers than g++: no warning in the headers, and right results of generated kernels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from jitmagic.platforms import native_flags
from jitmagic.runtime import toolchain
from tests.kernel.building import FLAGS
from tests.schedule.programs import PROGRAMS, made_inputs

from .test_cpp import check

DRIVERS = sorted((Path(__file__).parents[1] / "kernel").glob("*.cpp"))
COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"no {name}"))
    for name in ("clang++", "clang++-22", "g++-11")
]
SOME = ["softmax_op", "layer_norm_backward", "mlp", "chain_turned", "transposed_add", "column_sum",
        "float16_chain", "arg_reductions", "padded", "integers", "mixed_types"]  # fmt: skip


@pytest.mark.parametrize("cxx", COMPILERS)
def test_headers_compile_without_a_warning(cxx: str) -> None:
    headers = f"-I{toolchain.header_folder()}"
    for machine in (*native_flags(), "-DONLY_WHAT_EVERY_MACHINE_HAS"):
        command = [cxx, *FLAGS, machine, headers, "-fsyntax-only", *map(str, DRIVERS)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cxx", COMPILERS)
@pytest.mark.parametrize("name", SOME)
def test_generated_kernels(name: str, cxx: str) -> None:
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program), cxx=cxx)
