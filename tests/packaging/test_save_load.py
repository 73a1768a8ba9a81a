"""What is saved runs in another process and folder, without its source, with the same bytes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.errors import ArtifactRefused, CallNotSaved, CannotKeep, Unsupported, UsageError
from tests.processes import run_forked

from .programs import INFERENCE, TRAINING, Tied

# Runs in a process that cannot import the programs.
LOADS = """
    import sys, torch, jitmagic
    sys.modules["tests.packaging.programs"] = None
    path, mode = sys.argv[1:3]
    import tests.packaging.shapes
    loaded = jitmagic.load(f"{path}/saved.jmz")
    args, want, gradients = torch.load(f"{path}/want.pt", weights_only=False)
    from torch.utils._pytree import tree_flatten
    got = loaded(*args)
    flat = tree_flatten(got)[0]
    assert len(flat) == len(want), (flat, want)
    for one, other in zip(flat, want):
        assert type(one) is type(other) and one.dtype == other.dtype, (one, other)
        assert torch.equal(one, other), (one, other)
    if mode == "training":
        sum(one.pow(2).sum() for one in flat).backward()
        owners = loaded.parameters() if isinstance(loaded, torch.nn.Module) else ()
        found = sorted((tuple(p.shape), p.grad.sum().item()) for p in (*owners, *args)
                       if isinstance(p, torch.Tensor) and p.grad is not None)
        assert found == gradients, (found, gradients)
    stages = sys.modules.get("jitmagic.compile.pipeline")
    print("right", type(got).__name__)
"""


def save_and_load(tmp_path, make, arguments, mode):
    torch.manual_seed(0)
    fn, args = make(), arguments()
    copies = [[one.clone() for one in a] if isinstance(a, list) else
              {k: v.clone() for k, v in a.items()} if isinstance(a, dict) else
              a.detach().clone().requires_grad_(a.requires_grad) for a in args]  # fmt: skip
    state = (
        {k: v.clone() for k, v in fn.state_dict().items()} if isinstance(fn, nn.Module) else None
    )
    with torch.set_grad_enabled(mode == "training"):
        jitmagic.save(fn, tmp_path / "saved.jmz", *args)
        if state is not None:
            assert all(torch.equal(v, state[k]) for k, v in fn.state_dict().items())
        made = jitmagic.jit(fn)(*args)
    flat = torch.utils._pytree.tree_flatten(made)[0]
    gradients = None
    if mode == "training":
        sum(one.pow(2).sum() for one in flat).backward()
        owners = fn.parameters() if isinstance(fn, nn.Module) else ()
        held = [one for one in (*owners, *args) if isinstance(one, torch.Tensor)]
        gradients = sorted(
            (tuple(p.shape), p.grad.sum().item()) for p in held if p.grad is not None
        )
    want = [one.detach() if isinstance(one, torch.Tensor) else one for one in flat]
    torch.save((copies, want, gradients), tmp_path / "want.pt")
    return run_forked(LOADS, str(tmp_path), mode)


@pytest.mark.parametrize("name", INFERENCE)
def test_inference(tmp_path, name):
    done = save_and_load(tmp_path, *INFERENCE[name], "inference")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", TRAINING)
def test_training(tmp_path, name):
    done = save_and_load(tmp_path, *TRAINING[name], "training")
    assert done.returncode == 0, done.stderr[-2000:]


def test_several_calls_and_names(tmp_path):
    path = tmp_path / "saved.jmz"
    model = Tied()
    x, y = torch.randn(4, 8), torch.randn(2, 8)
    with torch.no_grad():
        jitmagic.save(model, path, (x,), {"x": y, "times": 3})
        loaded = jitmagic.load(path)
        torch.testing.assert_close(loaded(x)["y"], model(x)["y"])
        torch.testing.assert_close(loaded(y, times=3)["y"], model(y, times=3)["y"])
        z = torch.randn(3, 8)  # the second call has shown that this size varies
        torch.testing.assert_close(loaded(z, times=3)["y"], model(z, times=3)["y"])
        with pytest.raises(CallNotSaved, match="x.dtype is"):
            loaded(x.double())
        with pytest.raises(TypeError, match="unexpected keyword"):
            loaded(x, time=2)


def test_sizes(tmp_path):
    path = tmp_path / "saved.jmz"
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    jitmagic.save(model, path, torch.randn(6, 8), dynamic={"input": {0: (2, 64)}})
    loaded = jitmagic.load(path)
    for size in (2, 5, 64):
        x = torch.randn(size, 8)
        torch.testing.assert_close(loaded(x), model(x))
        loaded(x).sum().backward()
    with pytest.raises(CallNotSaved):
        loaded(torch.randn(65, 8))


def test_weights(tmp_path):
    path = tmp_path / "saved.jmz"
    model, other = Tied(), Tied()
    x = torch.randn(4, 8)
    with torch.no_grad():
        jitmagic.save(model, path, x, weights=False)
        with pytest.raises(
            ArtifactRefused, match=r"no values for .*\n  hint: load\(path, weights="
        ):
            jitmagic.load(path)
        weights = {**other.state_dict(), "self.plain": other.plain, "self.parts[1]": other.parts[1]}
        loaded = jitmagic.load(path, weights=weights)
        assert torch.equal(loaded(x)["y"], jitmagic.jit(other)(x)["y"])
        assert set(loaded.state_dict()) <= set(model.state_dict())


def test_classes_of_results_have_to_be_imported(tmp_path):
    with torch.no_grad():
        jitmagic.save(Tied(), tmp_path / "saved.jmz", torch.randn(4, 8))
    code = "import sys, jitmagic; jitmagic.load(sys.argv[1])"
    done = run_forked(code, str(tmp_path / "saved.jmz"))
    assert "import tests.packaging.shapes first" in done.stderr


def test_what_cannot_be_saved(tmp_path):
    class Counts:
        n = 0

    counts = Counts()

    def writes(x):
        counts.n += 1
        return x

    def breaks(x):
        jitmagic.graph_break()
        return x * 2

    with pytest.raises(CannotKeep):
        jitmagic.save(writes, tmp_path / "a", torch.ones(2))
    with pytest.raises(Unsupported, match="breaks"):
        jitmagic.save(breaks, tmp_path / "a", torch.ones(2))
    with pytest.raises(UsageError, match="arguments of a call"):
        jitmagic.save(breaks, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_aot_compiles_without_a_call(tmp_path):
    called = []

    def f(x, y):
        called.append(1)
        return (x * y).sum()

    compiled = jitmagic.jit(f)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    assert compiled.aot(x, y) is compiled
    assert not called
    handle = jitmagic.api.handle_of(compiled)
    before = len(handle.journal)
    compiled(x, y).backward()
    assert len(handle.journal) == before  # nothing more is compiled, the backward neither
    model = jitmagic.jit(nn.Linear(2, 2))
    assert jitmagic.aot(model)((torch.ones(1, 2),), (torch.ones(4, 2),)) is model


def test_all_sizes_and_their_backwards_are_in_the_file(tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    jitmagic.save(model, tmp_path / "f", torch.randn(6, 8), dynamic={"input": {0: (2, 64)}})
    sizes = (2, 5, 64)
    inputs = [torch.randn(size, 8) for size in sizes]
    wanted = []
    for x in inputs:
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        wanted.append((y.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    torch.save((inputs, wanted), tmp_path / "want.pt")
    code = """
        import sys, torch, jitmagic
        path = sys.argv[1]
        loaded = jitmagic.load(f"{path}/f")
        for x, (y, gradients) in zip(*torch.load(f"{path}/want.pt")):
            loaded.zero_grad()
            got = loaded(x)
            got.square().sum().backward()
            torch.testing.assert_close(got.detach(), y)
            for name, parameter in loaded.named_parameters():
                torch.testing.assert_close(parameter.grad, gradients[name])
        assert "jitmagic.compile" not in sys.modules
        print("right")
    """
    folder = str(tmp_path / "empty")
    done = run_forked(code, str(tmp_path), imported="torch", JITMAGIC_CACHE_DIR=folder)
    assert done.stdout.strip() == "right", done.stderr[-2000:]


class OwnWarning(UserWarning):
    """A class of warnings that a module names."""


def warns(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("the program's own", OwnWarning, stacklevel=1)
    return torch.nn.functional.softmax(x)  # torch guesses the dimension


def shown(run: Any, x: torch.Tensor) -> list[tuple[type, str, int]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(x)
    return [(one.category, str(one.message), one.lineno) for one in caught]


def test_a_file_shows_the_warnings_of_its_program(tmp_path: Path) -> None:
    path, x = tmp_path / "saved.jmz", torch.randn(3, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitmagic.save(warns, path, x)
    wanted = shown(warns, x)
    assert [category for category, *_ in wanted] == [OwnWarning, UserWarning]
    got = shown(jitmagic.load(path), x)  # those of the trace first
    assert sorted(got, key=lambda one: one[2]) == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error", OwnWarning)
        with pytest.raises(OwnWarning, match="the program's own"):
            jitmagic.load(path)(x)
    loaded = jitmagic.load(path)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Implicit dimension")
            warnings.simplefilter("ignore", OwnWarning)
            with pytest.raises(UserWarning, match="Implicit dimension"):
                loaded(x)
