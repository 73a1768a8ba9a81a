"""Files for the processor of another machine: their instructions, results and refusals."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic import platforms
from jitmagic.devices import PROCESSORS
from jitmagic.errors import ArtifactRefused, UsageError
from jitmagic.packaging import targets
from tests.kernel.building import ARM, ISAS, emulated_library, pointer

needs_avx2 = pytest.mark.skipif(
    "avx2" not in platforms.instruction_sets(), reason="this processor has no AVX2"
)


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 8), nn.Softmax(-1)
    return nn.Sequential(*layers)


def kernels(path: Path) -> list[Path]:
    """Write the shared objects of a file next to it; return their paths."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        return [Path(archive.extract(name, path.parent)) for name in names]


def program(x: Tensor) -> Tensor:
    return nn.functional.gelu(x * 3) + x.sum(-1, keepdim=True)


def document(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("artifact.json"))
        return found


def registers(library: Path) -> set[str]:
    """Return the names of the vector registers in a library's code."""
    done = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True)
    return set(re.findall(r"%([xyz]mm\d+|k\d)\b", done.stdout))


AVX512_ONLY = re.compile(r"zmm\d+|k\d|[xy]mm(1[6-9]|2\d|3[01])")


@needs_avx2
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
def test_a_file_for_avx2_has_no_instruction_of_avx512(tmp_path: Path) -> None:
    path, made, x = tmp_path / "model.jmz", model(), torch.randn(33, 24)
    jitmagic.save(made, path, x, target="avx2")
    loaded = jitmagic.load(path)
    torch.testing.assert_close(loaded(x), made(x))
    loaded(x).square().sum().backward()
    made(x).square().sum().backward()
    theirs = dict(made.named_parameters())
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad)
    used = set().union(*map(registers, kernels(path)))
    assert any(name.startswith("ymm") for name in used)
    assert not [name for name in used if AVX512_ONLY.fullmatch(name)]


@needs_avx2
def test_sizes_vary_in_a_file_for_avx2(tmp_path: Path) -> None:
    path, made = tmp_path / "model.jmz", model()
    with torch.no_grad():
        dynamic = {"input": {0: (2, 64)}}
        jitmagic.save(made, path, torch.randn(6, 24), dynamic=dynamic, target="avx2")
        loaded = jitmagic.load(path)
        for x in map(torch.randn, ((2, 24), (64, 24))):
            torch.testing.assert_close(loaded(x), made(x))


def test_a_processor_without_its_instructions_refuses_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if platforms.machine() != "x86_64":
        pytest.skip("its compiler is another one here")
    path = tmp_path / "model.jmz"
    jitmagic.save(program, path, torch.randn(8), target="avx512")
    older = PROCESSORS["avx2"].instructions
    monkeypatch.setattr(platforms, "instruction_sets", lambda: older)
    with pytest.raises(ArtifactRefused, match="has no avx512bw, avx512cd, avx512dq, avx512f, "):
        jitmagic.load(path)


def test_the_schedule_is_that_of_the_target(tmp_path: Path) -> None:
    """A kernel for 4 lanes has other text than one for 16."""
    if platforms.machine() != "x86_64":
        pytest.skip("its compiler is another one here")
    texts = {}
    for name in ("avx2", "avx512"):
        jitmagic.save(program, tmp_path / name, torch.randn(64, 512), target=name)
        texts[name] = [file.name for file in kernels(tmp_path / name)]  # named by their text
    assert texts["avx2"] != texts["avx512"]


# ------------------------------------------------------------------------------------- aarch64

needs_arm = pytest.mark.skipif(
    ARM not in ISAS, reason="no aarch64 compiler (g++-aarch64-linux-gnu) or emulator (qemu-user)"
)
ELF_OF_ARM = 183  # EM_AARCH64


@needs_arm
@pytest.mark.parametrize("cxx", [False, True])
def test_a_file_for_aarch64(cxx: bool, tmp_path: Path) -> None:
    path = tmp_path / "program"
    jitmagic.save(program, path, torch.randn(9, 40), cxx=cxx, target="aarch64")
    described = document(path)
    assert described["machine"] == "aarch64"
    assert described["instructions"] == ["asimd", "fp"]
    assert kernels(path)
    for library in kernels(path):
        assert int.from_bytes(library.read_bytes()[18:20], "little") == ELF_OF_ARM
    if not cxx:
        with pytest.raises(ArtifactRefused, match="for aarch64, this machine is x86_64"):
            jitmagic.load(path)


@needs_arm
def test_kernels_for_aarch64_run_there(tmp_path: Path) -> None:
    path, x = tmp_path / "program", torch.randn(9, 40)
    jitmagic.save(program, path, x, cxx=True, target="aarch64")
    (library,) = kernels(path)
    (entry,) = document(path)["entries"]
    launches = [step for step in entry["program"][5] if step[0] == "launch"]
    ((_, symbol, places),) = launches
    made = torch.zeros(9, 40)
    tensors = [x if place == 0 else made for place in places]
    assert getattr(emulated_library(library), f"@{symbol}")(*map(pointer, tensors)) == 0
    torch.testing.assert_close(made, program(x))


# ------------------------------------------------------------------------------------- refusals


def test_a_missing_compiler_is_an_error_that_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "aarch64" if platforms.machine() == "x86_64" else "avx2"
    monkeypatch.setattr("jitmagic.devices.processors.shutil.which", lambda name: None)
    for cxx in (False, True):
        with pytest.raises(UsageError, match=r"install Debian's package g\+\+-\S+-linux-gnu, or"):
            jitmagic.save(program, tmp_path / "file", torch.ones(3), target=other, cxx=cxx)
    assert not (tmp_path / "file").exists()


def test_targets_that_are_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "file", torch.ones(3)
    with pytest.raises(UsageError, match=r"no target 'avx' \(did you mean 'avx2'\?\); known: "):
        jitmagic.save(program, path, x, target="avx")
    with pytest.raises(UsageError, match="cannot run here"):
        jitmagic.save(program, path, x, target="avx2", options={"mode": "max-autotune"})
    with pytest.raises(UsageError, match="for this machine alone"):
        jitmagic.save(program, path, x, target="avx2", options={"cpu_tier": "numba"})


def test_rows_name_instructions_as_the_system_does() -> None:
    for row in PROCESSORS.values():
        assert all(map(platforms._IS_INSTRUCTIONS.match, row.instructions))
    names = list(platforms.instruction_sets())
    here = {"machine": platforms.machine(), "instructions": names, "gpu": None}
    assert targets.lacking(here) == ""
