"""Kernels are interpreted until a compiler has built those that replace them."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import jitmagic
from jitmagic.api import handle_of
from jitmagic.devices import cpu
from jitmagic.replacements import Replacement, is_replacing
from jitmagic.runtime import background_builds
from jitmagic.runtime.store import open_store
from tests.processes import run_forked

X = torch.linspace(-2, 2, 1000).reshape(8, 125)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let functions be tagged as users tag them; compilers wait for the event."""
    if not cpu._find_cxx(None)[0] or cpu._cpu_isa()[0] not in cpu.INTERPRETED:
        pytest.skip("no C++ compiler, or no interpreter")
    monkeypatch.delenv("JITMAGIC_KEEP")
    monkeypatch.setattr(background_builds, "usable_processors", lambda: 2)
    monkeypatch.setattr(background_builds, "_HEAD_START", 0.0)
    may_build, build = threading.Event(), background_builds.build_units

    def waiting(*given: Any) -> Any:
        may_build.wait(60)
        return build(*given)

    monkeypatch.setattr(background_builds, "build_units", waiting)
    return may_build


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 3 + 2).sum(-1)


def tagged(folder: Path, fn: Callable[..., Any] = chain, **options: Any) -> Callable[..., Any]:
    open_store.cache_clear()
    return jitmagic.jit(fn, options={"cache_dir": str(folder), **options})


def replacements(fn: Any) -> list[Replacement | None]:
    stages = [stage for record in handle_of(fn).journal for stage in record.stages]
    return [stage.result.meanwhile for stage in stages if stage.stage.endswith(": load")]


def libraries(folder: Path) -> int:
    return sum(path.suffix == ".so" for path in folder.rglob("*"))


def test_calls_are_interpreted_and_then_compiled(built: threading.Event, tmp_path: Path) -> None:
    fn = tagged(tmp_path)
    torch.testing.assert_close(fn(X), chain(X))
    (one,) = replacements(fn)
    assert one is not None
    assert str(one).startswith("interpreted, while ")
    assert is_replacing()
    assert not jitmagic.wait(0.01)
    built.set()
    assert jitmagic.wait(60)
    assert not is_replacing()
    assert "took over after" in str(one)
    assert libraries(tmp_path) == 1
    torch.testing.assert_close(fn(X), chain(X))
    assert replacements(tagged_and_called(tmp_path)) == [None]


def tagged_and_called(folder: Path) -> Callable[..., Any]:
    fn = tagged(folder)
    torch.testing.assert_close(fn(X), chain(X))
    return fn


def test_nothing_is_timed_while_kernels_are_replaced(
    built: threading.Event, tmp_path: Path
) -> None:
    fn = tagged(tmp_path)
    for _ in range(50):
        fn(X)
    (entry,) = handle_of(fn).dispatcher.entries
    assert entry.comparison is not None
    assert not entry.comparison._samples
    built.set()
    assert jitmagic.wait(60)
    for _ in range(50):
        fn(X)
    assert handle_of(fn).journal.records[-1].measured is not None


def norm_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w[:65]).tanh().sum()


def perceptron_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(x @ w[: 65 * 24].view(65, 24) + w[:24])
    return torch.nn.functional.gelu(hidden @ w[: 24 * 6].view(6, 24).t()).sum()


@pytest.mark.parametrize("loss", [norm_loss, perceptron_loss])
@pytest.mark.parametrize("dynamic", [False, True])
def test_training_with_calls_of_several_sizes(
    dynamic: bool, loss: Callable[..., torch.Tensor], built: threading.Event, tmp_path: Path
) -> None:
    fn = tagged(tmp_path, loss, dynamic=dynamic)
    for at, rows in enumerate((3, 9, 40, 3, 17, 5)):
        if at == 4:
            built.set()
            assert jitmagic.wait(60)
        inputs = [torch.randn(rows, 65), torch.randn(65 * 24) / 5]
        made = [
            torch.autograd.grad(each(*leaves), leaves)
            for each in (fn, loss)
            for leaves in [[x.clone().requires_grad_() for x in inputs]]
        ]
        torch.testing.assert_close(*made)
    assert jitmagic.wait(60)
    found = [one for one in replacements(fn) if one is not None]
    assert found
    assert all(one.is_done for one in found)


def test_a_bad_index_raises_while_kernels_are_replaced(
    built: threading.Event, tmp_path: Path
) -> None:
    fn = tagged(tmp_path, lambda t, i: t[i] * 2)
    table = torch.randn(9, 20)
    for bad in (9, -10):
        with pytest.raises(IndexError):
            fn(table, torch.tensor([0, bad]))
    torch.testing.assert_close(fn(table, torch.tensor([0, -1])), table[[0, -1]] * 2)
    built.set()
    assert jitmagic.wait(60)
    with pytest.raises(IndexError):
        fn(table, torch.tensor([0, 9]))


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
def test_kernels_stay_interpreted_if_the_compiler_fails(
    built: threading.Event, tmp_path: Path
) -> None:
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    fn = tagged(tmp_path / "cache", cxx=str(broken))
    built.set()
    torch.testing.assert_close(fn(X), chain(X))
    assert jitmagic.wait(60)
    (one,) = replacements(fn)
    assert one is not None
    assert "exit code 3" in one.error
    assert str(one).startswith("interpreted, as cxx failed")
    torch.testing.assert_close(fn(X), chain(X))


ASKS = {
    "compiled code": {"keep": "compiled"},
    "a tier": {"cpu_tier": "cpp"},
    "no background": {"background": False},
    "tuning": {"mode": "max-autotune"},
}


@pytest.mark.parametrize("options", ASKS.values(), ids=ASKS)
def test_who_asks_for_compiled_code_waits_for_it(
    options: dict[str, Any], built: threading.Event, tmp_path: Path
) -> None:
    built.set()
    fn = tagged(tmp_path, **options)
    torch.testing.assert_close(fn(X), chain(X))
    assert replacements(fn) == [None]
    assert libraries(tmp_path)


def test_attention_waits_for_its_tiles(built: threading.Event, tmp_path: Path) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + (i - j))

    built.set()
    fn, given = tagged(tmp_path, attention), torch.randn(3, 2, 4, 64, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that eager's is slow
        torch.testing.assert_close(fn(*given), attention(*given))
    assert replacements(fn) == [None]


SCRIPT = """
import json, sys, time
import torch, jitmagic
from jitmagic.api import handle_of
def f(x, y):
    return torch.relu(x * y + 2).sum(-1)
x, y = torch.randn(8, 64), torch.randn(8, 64)
jitmagic.jit(lambda x: x.sin())(x)  # loads the stages
fast = jitmagic.jit(f)
begun = time.perf_counter()
made = fast(x, y)
seconds = time.perf_counter() - begun
torch.testing.assert_close(made, f(x, y))
[record] = handle_of(fast).journal
print(json.dumps([seconds, record.result("forward: render")[1].language]))
"""


def test_the_first_call_without_a_compiler_is_interpreted(tmp_path: Path) -> None:
    variables = {"JITMAGIC_CXX": "", "PYTHONWARNINGS": "ignore"}
    done = run_forked(SCRIPT, JITMAGIC_CACHE_DIR=str(tmp_path), **variables)
    assert done.returncode == 0, done.stderr
    seconds, language = json.loads(done.stdout)
    assert language == "blocks"
    assert seconds < 10  # 15 ms; tests run beside others
    assert not libraries(tmp_path)
