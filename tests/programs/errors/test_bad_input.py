"""Bad input through jitmagic.jit: a clear error or a visible fallback, and the next call works."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import executable
from jitmagic.records import COMPILED, Failed
from jitmagic.runtime.store import open_store
from tests.processes import ROOT, run_forked
from tests.stages import caller_of

from ..chain import chain, check_chain


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel cache of the test's own, so that compilers are really asked."""
    monkeypatch.setenv("JITMAGIC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def fresh_stores() -> Iterator[None]:
    """Which cache folders are usable is found out once per process: here, once per test."""
    open_store.cache_clear()
    yield
    open_store.cache_clear()


# ------------------------------------------------------------------------------------------ tagging


def generator() -> Iterator[int]:
    yield 1


class Plain:
    pass


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (3, "not callable"),
        ("f", "not callable"),
        (torch.ones(1), "not callable"),
        (chain.__code__, "not callable"),
        (Plain, "not an nn.Module"),
        (nn.Module(), "forward"),
        (nn.Module, "forward"),
        (generator(), "not callable"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_tagged_is_a_tagging_error(target: Any, words: str) -> None:
    with pytest.raises(jitmagic.TaggingError, match=words) as caught:
        jitmagic.jit(target)
    assert isinstance(caught.value, TypeError)
    assert "hint:" in str(caught.value)
    with pytest.raises(jitmagic.TaggingError):
        jitmagic.jit(fullgraph=True)(target)


def test_tagging_the_same_thing_twice_changes_its_options() -> None:
    first = jitmagic.jit(chain)
    again = jitmagic.jit(first, backend="eager")
    assert again is first
    assert handle_of(again).options.backend == "eager"


# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "xla"}, "backend 'xla'; known: native, aot_eager, eager"),
        ({"backend": 3}, "backend 3"),
        ({"mode": "quick"}, "mode 'quick'; known: default, reduce-overhead, max-autotune"),
        ({"options": {"frobnicate": 1}}, "option 'frobnicate'; known: backend, mode"),
        ({"options": {"precision": "low"}}, "precision 'low'"),
        ({"options": {"recompile_limit": 0}}, "recompile_limit"),
        ({"options": {"recompile_limit": "8"}}, "recompile_limit"),
        ({"dynamic": "yes"}, "dynamic"),
        ({"fullgraph": "yes"}, "fullgraph"),
        ({"options": {"cache_dir": 3}}, "cache_dir"),
        ({"options": {"backend": []}}, "backend"),
        ({"options": {"mode": []}}, "mode"),
        ({"options": 3}, "options"),
        ({"options": {3: 4}}, "option 3"),
    ],
)
def test_unknown_options_name_the_known_ones(given: dict[str, Any], words: str) -> None:
    with pytest.raises(jitmagic.OptionError) as caught:
        jitmagic.jit(chain, **given)
    assert words in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="frobnicate"):
        jitmagic.jit(chain, frobnicate=1)


def test_keywords_beside_an_options_object_are_not_lost() -> None:
    options = jitmagic.Options(backend="eager")
    assert handle_of(jitmagic.jit(chain, options=options)).options is options
    both = jitmagic.jit(chain, fullgraph=True, options=options)
    assert handle_of(both).options.fullgraph
    assert handle_of(both).options.backend == "eager"


# ---------------------------------------------------------------------------------- the environment


@pytest.mark.parametrize("cxx", ["/nonexistent", ""])
def test_without_a_compiler(cxx: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITMAGIC_CXX", cxx)
    run = jitmagic.jit(chain)
    with pytest.warns(jitmagic.FallbackWarning) as caught:
        check_chain(run)
    assert "no C++ compiler was found" in str(caught[0].message)
    assert "JITMAGIC_CXX" in str(caught[0].message)
    check_chain(run)
    assert handle_of(run).outcome == COMPILED


@pytest.mark.parametrize("grad", [False, True])
def test_with_a_broken_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grad: bool
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'no such flag, sorry' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JITMAGIC_CXX", str(broken))
    run = jitmagic.jit(chain)
    x, y = (torch.randn(8, 64, requires_grad=grad) for _ in range(2))
    with pytest.warns(jitmagic.FallbackWarning) as caught:
        made = run(x, y)
    if grad:
        with pytest.warns(jitmagic.FallbackWarning):  # the backward is compiled at its first use
            made.sum().backward()
        ours, x.grad = x.grad, None
        chain(x, y).sum().backward()
        torch.testing.assert_close(ours, x.grad)
    (said,) = (one for one in caught if issubclass(one.category, jitmagic.FallbackWarning))
    assert "no such flag, sorry" in str(said.message)
    torch.testing.assert_close(made, chain(x, y))
    torch.testing.assert_close(run(x, y), chain(x, y))
    assert handle_of(run).outcome == COMPILED


@pytest.mark.parametrize("kind", ["file", "read-only", "no access", "shared"])
def test_an_unusable_cache_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    if kind == "file":
        folder.write_text("not a folder")
    elif kind == "read-only":
        folder = Path("/proc/jitmagic")  # where root may not write either
    else:
        (folder / "kernels").mkdir(parents=True)
        (folder / "kernels").chmod(0o500 if kind == "no access" else 0o777)
    if kind == "no access" and os.access(folder / "kernels", os.W_OK):
        pytest.skip("root may write anywhere")
    monkeypatch.setenv("JITMAGIC_CACHE_DIR", str(folder))
    run = jitmagic.jit(chain)
    with pytest.warns(jitmagic.FallbackWarning, match="JITMAGIC_CACHE_DIR"):
        check_chain(run)
    check_chain(run)
    assert handle_of(run).outcome == COMPILED
    check_chain(jitmagic.jit(lambda x, y: chain(x, y)))  # said once


STAGES = ["trace", "trace_joint", "partition", "lower", "schedule", "render", "load", "emit"]


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "emit"])
def test_ctrl_c_during_a_compile(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = caller_of(stage)
    real, presses = getattr(module, stage), [1]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if presses:
            presses.pop()
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(module, stage, interrupted)
    run = jitmagic.jit(chain)
    x = torch.randn(3, 5)
    with pytest.raises(KeyboardInterrupt):
        run(x, x)
    assert handle_of(run).outcome is None
    check_chain(run)
    assert handle_of(run).outcome == COMPILED


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "emit"])
def test_a_stage_that_fails_is_a_visible_fallback(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(caller_of(stage), stage, broken)
    run = jitmagic.jit(chain)
    with pytest.warns(jitmagic.FallbackWarning, match="a bug of ours"):
        check_chain(run)
    check_chain(run)
    assert isinstance(handle_of(run).outcome, Failed)


def test_ctrl_c_while_the_compiler_runs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, presses = subprocess.Popen.communicate, [1]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if presses:
            presses.pop()
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    run = jitmagic.jit(chain)
    with pytest.raises(KeyboardInterrupt):
        check_chain(run)
    assert not list((cache / "kernels").iterdir())
    check_chain(run)
    assert handle_of(run).outcome == COMPILED


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AssertionError("a bug of ours")], ids=repr)
def test_a_backward_whose_compile_fails(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = executable.lower, [error]

    def broken(gm: torch.fx.GraphModule, name: str) -> Any:
        if name == "backward" and failures:
            raise failures.pop()
        return real(gm, name)

    monkeypatch.setattr(executable, "lower", broken)
    run = jitmagic.jit(chain)
    x, y = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run(x, y).sum().backward()
    else:
        with pytest.warns(jitmagic.FallbackWarning, match="a bug of ours"):
            run(x, y).sum().backward()
    for _ in range(2):
        x.grad = None
        run(x, y).sum().backward()
        (expected,) = torch.autograd.grad(chain(x, y).sum(), x)
        torch.testing.assert_close(x.grad, expected)


# ---------------------------------------------------------------------------------- the native part


MISSING = """
import sys
sys.modules["jitmagic._frame"] = None
try:
    import jitmagic
except ImportError as error:
    print(type(error).__name__, error)
"""
OTHER_TORCH = """
import torch
torch.__version__ = "9.9.9"
try:
    import jitmagic
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(("code", "words"), [(MISSING, "_frame"), (OTHER_TORCH, "9.9.9")])
def test_native_part_missing_or_of_another_torch(code: str, words: str) -> None:
    done = run_forked(code, imported="torch")
    assert done.stdout.startswith("NativeMissing"), done.stderr
    assert words in done.stdout
    assert f"pip install --force-reinstall --no-deps --editable {ROOT}" in done.stdout


NO_RUNTIME = """
import sys
sys.modules["jitmagic._runtime"] = None
import torch, jitmagic
run = jitmagic.jit(lambda x: x * 2 + 1)
for _ in range(2):
    print(run(torch.ones(1)).item())
"""


def test_native_runtime_missing_is_said() -> None:
    done = run_forked(NO_RUNTIME, imported="torch")
    assert "FallbackWarning" in done.stderr
    assert "pip install --force-reinstall" in done.stderr
    assert done.stdout == "3.0\n3.0\n"


def test_no_warning_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_chain(jitmagic.jit(chain))
