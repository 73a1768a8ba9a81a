"""Damage of other cached files: tuning decisions, cubins, Triton's own cache. The call is right,
and the next one finds a valid file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from jitmagic.codegen import choices, render
from jitmagic.codegen.plan import KernelSource, Plan
from jitmagic.devices import Target, find_target
from jitmagic.errors import ToolchainError
from jitmagic.loops.lower import lower
from jitmagic.options import Options, make_options
from jitmagic.runtime import load as loading
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store, open_store
from jitmagic.runtime.triton_kernels import Cubin, build_cubins
from jitmagic.runtime.tune import tune
from jitmagic.schedule import schedule
from tests.loops.recording import record

H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


def _resealed(data: bytes) -> Callable[[Path], None]:
    """The checksum is right, the contents are not."""

    def harm(path: Path) -> None:
        Store(path.parent).put(path.stem, path.suffix, data)

    return harm


def _folder(path: Path) -> None:
    path.unlink()
    (path / "more").mkdir(parents=True)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _for_everybody(path: Path) -> None:
    path.chmod(0o666)


ANY = {
    "gone": os.unlink,
    "cut": _cut,
    "folder": _folder,
    "for everybody": _for_everybody,
    "sealed: empty": _resealed(b""),
    "sealed: no UTF-8": _resealed(b"\xff\xfe\x00"),
    "sealed: half of a list": _resealed(b'[["k", "def'),
    "sealed: a number": _resealed(b"3"),
    "sealed: null": _resealed(b"null"),
    "sealed: other fields": _resealed(b'{"name": "k", "speed": 3}'),
}
TUNING = {
    **ANY,
    "sealed: too few fields": _resealed(b'[["k", "default", 1.0]]'),
    "sealed: text for a number": _resealed(b'[["k", "default", "fast", "chosen"]]'),
    "sealed: another kernel": _resealed(b'[["other", "default", 1.0, "chosen"]]'),
    "sealed: another config": _resealed(b'[["k", "unheard of", 1.0, "chosen"]]'),
}


@pytest.mark.parametrize("harm", TUNING.values(), ids=TUNING)
def test_damaged_decisions_are_measured_again(harm: Callable[[Path], None], tmp_path: Path) -> None:
    options = make_options({"cache_dir": str(tmp_path)})
    target = replace(find_target(torch.device("cpu"), options), threads=2)
    x = torch.randn(4, 32)
    graph, _ = record(softmax, x)
    done = schedule(lower(graph, "test"), target, options)
    asked: list[int] = []

    def tuned() -> Any:
        open_store.cache_clear()
        build = _once(target, options)
        given = render(done, target)[0], choices(done, target), lambda: asked.append(1) or [x]
        return tune(*given, target, options, timer=lambda run, device: 1.0, build=build)

    first = tuned()
    (path,) = tmp_path.rglob("*.tuned")
    harm(path)
    assert [t.config for t in tuned().trials] == [t.config for t in first.trials]
    assert len(asked) == 2
    assert not any(trial.measured for trial in tuned().trials)
    assert len(asked) == 2


def _once(target: Target, options: Options) -> Callable[[Plan, KernelSource], Any]:
    """Candidates are what the default is: none of them is compiled."""
    built: list[Any] = []

    def build(plan: Plan, source: KernelSource) -> Any:
        if not built:
            built.append(loading.load(plan, source, target, options).run)
        return built[0]

    return build


# ---------------------------------------------------------------------------------------- Triton


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, KernelSource]:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    graph, _ = record(softmax, torch.randn(4, 32))
    plan, source = render(schedule(lower(graph, "test"), H200, Options()), H200)
    assert source is not None
    return plan, source


def _facts(cubins: dict[str, Cubin]) -> dict[str, Cubin]:
    """Return the facts equal between compiles; Triton 3.6 may produce different bytes."""
    assert all(cubin.image.startswith(b"\x7fELF") for cubin in cubins.values())
    return {name: replace(cubin, image=b"") for name, cubin in cubins.items()}


@pytest.mark.parametrize("suffix", [".json", ".cubin", ".py"])
@pytest.mark.parametrize("harm", ANY.values(), ids=ANY)
def test_damaged_cubins_are_compiled_again(
    harm: Callable[[Path], None], suffix: str, source: tuple[Plan, KernelSource], tmp_path: Path
) -> None:
    if suffix == ".cubin" and harm.__qualname__.startswith("_resealed"):
        pytest.skip("only the driver can tell: see below")
    store = Store(tmp_path)
    request = source[1], aligned_arguments(source[0], True), H200, store
    good, _ = build_cubins(*request)
    (path,) = tmp_path.glob(f"*{suffix}")
    harm(path)
    cubins, cached = build_cubins(*request)
    assert cached == (suffix == ".py")  # the text is there for profilers only
    assert _facts(cubins) == _facts(good)
    assert build_cubins(*request) == (cubins, True)


def test_a_cubin_that_the_driver_refuses_is_compiled_again(
    source: tuple[Plan, KernelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, text = source
    options = make_options({"cache_dir": str(tmp_path)})
    seen: list[bytes] = []

    def driver(image: bytes, *facts: Any) -> int:
        seen.append(image)
        if image == b"no cubin":
            raise ToolchainError("the CUDA driver", "cuModuleLoadData", "error 200")
        return 1

    monkeypatch.setattr(loading, "load_function", driver)
    monkeypatch.setattr(loading, "make_executable", lambda *given: lambda *tensors: tensors)
    assert not loading.load(plan, text, H200, options).cached
    for path in (tmp_path / "kernels").glob("*.cubin"):
        _resealed(b"no cubin")(path)
    assert not loading.load(plan, text, H200, options).cached
    assert loading.load(plan, text, H200, options).cached
    assert seen.count(b"no cubin") == 1


@pytest.mark.parametrize("blocked", [False, True])
def test_tritons_own_cache_is_neither_read_nor_written(
    blocked: bool, source: tuple[Plan, KernelSource], tmp_path: Path
) -> None:
    """Not even where it could not be: its name is a file's."""
    theirs, folder = tmp_path / "triton", os.environ["TRITON_CACHE_DIR"]
    if blocked:
        theirs.write_bytes(b"\xff\xfe")
    store = Store(tmp_path)
    request = source[1], aligned_arguments(source[0], True), H200, store
    good, cached = build_cubins(*request)
    assert set(good) == set(source[1].symbols) and not cached
    assert theirs.is_file() if blocked else not theirs.exists()
    assert os.environ["TRITON_CACHE_DIR"] == folder
    assert build_cubins(*request) == (good, True)


def test_text_is_compiled_from_memory(
    source: tuple[Plan, KernelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text written into the file between check and compile does not run."""
    put = Store.put

    def swapped(self: Store, key: str, suffix: str, data: bytes) -> Path | None:
        path = put(self, key, suffix, data)
        if suffix == ".py" and path is not None:
            path.write_text("raise SystemExit('swapped')\n")
        return path

    monkeypatch.setattr(Store, "put", swapped)
    cubins, _ = build_cubins(source[1], aligned_arguments(source[0], True), H200, Store(tmp_path))
    assert set(cubins) == set(source[1].symbols)
