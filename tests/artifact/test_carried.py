"""Pickles that carry compiled code: `options={"pickle": "artifact"}`."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.frame.pickling import carried
from jitmagic.frame.tag import handle_of
from tests.processes import child_environment, run_forked

# Functions of the main module, whose workers have another cache.
PROGRAM = """
import json, multiprocessing, os, sys, torch, jitmagic
from jitmagic.api import handle_of

OPTIONS = {"pickle": "artifact", "keep": "compiled", "background": False}

def helper(x):
    return x.sin() + 1

@jitmagic.jit(options=OPTIONS)
def step(x):
    return helper(x) * x.cos()

class Scaled:
    def __init__(self, k):
        self.k = k

    @jitmagic.jit(options=OPTIONS)
    def run(self, x):
        return (x * self.k).tanh().exp()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.linear(x).relu() + self.linear.bias

def called(fn, x):
    y = fn(x)
    gradients = []
    if y.requires_grad:
        y.square().sum().backward()
        gradients = [p.grad.flatten().tolist() for p in fn.parameters()]
    stages = [one.stage for record in handle_of(fn).journal for one in record.stages]
    return y.detach().flatten().tolist(), gradients, stages
"""
POOL = """
if __name__ == "__main__":
    x = torch.randn(4, 32)
    net = jitmagic.jit(Net(), options=OPTIONS)
    works = [(step, x), (Scaled(3.0).run, x), (net, x)]
    want = [called(*work) for work in works]
    net.zero_grad()
    os.environ["JITMAGIC_CACHE_DIR"] = sys.argv[1]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        got = pool.starmap(called, works)
    print(json.dumps([want, got]))
"""


def test_spawned_workers_compile_nothing(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + POOL)
    environment = child_environment(
        JITMAGIC_CACHE_DIR=str(tmp_path / "sender"), JITMAGIC_PERSIST="1"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "worker")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    want, got = json.loads(done.stdout)
    for (y, gradients, _), (other, others, stages) in zip(want, got, strict=True):
        assert (y, gradients) == (other, others)
        assert set(stages) == {"unbundle", "find"}
    assert any(gradients for _, gradients, _ in got)
    assert {file.suffix for file in (tmp_path / "worker" / "kernels").iterdir()} >= {
        ".so", ".entry"
    }  # fmt: skip


BY_VALUE = """
import cloudpickle
x, net = torch.ones(4, 32), jitmagic.jit(Net(), options=OPTIONS)
torch.save([called(step, x), called(net, x)], sys.argv[1] + ".want")
net.zero_grad()
open(sys.argv[1], "wb").write(cloudpickle.dumps((step, net, called)))
"""
THERE = """
import os, pickle, sys, torch
torch.set_num_threads(1)
step, net, called = pickle.load(open(sys.argv[1], "rb"))
for fn, (y, gradients, _) in zip((step, net), torch.load(sys.argv[1] + ".want")):
    got = called(fn, torch.ones(4, 32))
    assert got[:2] == (y, gradients), got
    assert set(got[2]) == {"unbundle", "find"}, got[2]
"""


def test_pickles_by_value_bring_code_to_workers_with_fewer_threads(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    path, environment = str(tmp_path / "pickle"), {"JITMAGIC_PERSIST": "1"}
    here = {"JITMAGIC_CACHE_DIR": str(tmp_path / "sender"), **environment}
    done = run_forked(PROGRAM + "\ntorch.set_num_threads(2)\n" + BY_VALUE, path, **here)
    assert done.returncode == 0, done.stderr
    (tmp_path / "sender").rename(tmp_path / "moved")  # options name the folder of the sender
    done = run_forked(THERE, path, **environment)
    assert done.returncode == 0, done.stderr


JOBLIB = """
    if __name__ == "__main__":
        import joblib, shutil
        x = torch.randn(4, 32)
        step(x)
        tasks = [joblib.delayed(called)(step, x)]
        ((y, _, stages),) = joblib.Parallel(n_jobs=2)(tasks)
        assert set(stages) == {"unbundle", "find"}, stages
        assert y == step(x).flatten().tolist()
"""


def test_joblib(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + textwrap.dedent(JOBLIB))
    environment = child_environment(JITMAGIC_CACHE_DIR=str(tmp_path), JITMAGIC_PERSIST="1")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------- in one process

ARTIFACT = {"pickle": "artifact", "persist": True, "keep": "compiled"}


@jitmagic.jit(options=ARTIFACT)
def doubled(x: Tensor) -> Tensor:
    return x.exp() * 2


class Owner:
    @jitmagic.jit(options=ARTIFACT)
    def method(self, x: Tensor) -> Tensor:
        return x * 3


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the functions above, which have compiled nothing."""
    for fn in (doubled, Owner.method):
        handle = handle_of(fn)
        assert handle is not None
        handle.reset(jitmagic.Options(**ARTIFACT, cache_dir=str(tmp_path)))
    monkeypatch.setattr(carried, "_received", {})
    monkeypatch.setattr(carried, "_seen", {})
    return tmp_path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_functions_and_methods_are_the_same_after_pickling(protocol: int, cache: Path) -> None:
    owner = Owner()
    for fn in (doubled, owner.method):
        fn(torch.ones(2))
    again, method = pickle.loads(pickle.dumps((doubled, owner.method), protocol))
    assert again is doubled
    assert method.__func__ is Owner.method
    # Protocols before 4 write names of functions, not of methods, as plain text.
    assert len(carried._received) == (2 if protocol >= 4 else 1)
    assert (doubled.__module__, doubled.__name__) == (__name__, "doubled")
    assert type(copy.deepcopy(doubled.__name__)) is str


def test_nothing_is_carried_before_a_call(cache: Path) -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert not carried._received


def test_code_that_does_not_fit_or_is_damaged_is_compiled(cache: Path) -> None:
    x = torch.ones(3)
    doubled(x)
    pickle.loads(pickle.dumps(doubled))
    ((key, data),) = carried._received.items()
    at = data.index(b"PK", 100) + 60
    for wrong, words in (
        (data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :], "a pickle"),
        (data[:-1], "it is no zip file"),
        (b"", "it is no zip file"),
    ):
        handle = handle_of(doubled)
        assert handle is not None
        handle.reset()
        for file in (cache / "kernels").glob("*.entry"):
            file.unlink()
        carried._received[key] = wrong
        assert torch.equal(doubled(x), x.exp() * 2)
        stages = {one.stage: one.kept for record in handle.journal for one in record.stages}
        assert words in stages["unbundle"]
        assert "trace" in stages


def test_options_that_keep_nothing_on_disk_are_reported() -> None:
    made = jitmagic.jit(lambda x: x, options={**ARTIFACT, "persist": False})
    with pytest.warns(jitmagic.JitmagicWarning, match="carry no code: its options"):
        made.__name__.__reduce_ex__(4)


def test_tagged_modules_stay_tagged(cache: Path) -> None:
    options = {**ARTIFACT, "cache_dir": str(cache)}
    model = jitmagic.jit(nn.Linear(3, 2), options=options)
    want = model(x := torch.ones(1, 3))
    again = pickle.loads(pickle.dumps({"model": model, "same": model}))
    assert again["model"] is again["same"]
    handle = handle_of(again["model"])
    assert handle is not None and handle is not handle_of(model)
    assert torch.equal(again["model"](x), want)
    assert {one.stage for record in handle.journal for one in record.stages} == {"unbundle", "find"}
    assert handle_of(pickle.loads(pickle.dumps(again["model"]))) is not None
    assert handle_of(copy.deepcopy(model)) is None
    assert handle_of(pickle.loads(pickle.dumps(copy.deepcopy(model)))) is None
    jitmagic.jit(model, options={**options, "pickle": "plain"})
    assert handle_of(pickle.loads(pickle.dumps(model))) is None


def test_graph_modules_pickle_as_before(cache: Path) -> None:
    model = jitmagic.jit(torch.fx.symbolic_trace(nn.ReLU()), options=ARTIFACT)
    assert torch.equal(pickle.loads(pickle.dumps(model))(torch.ones(2)), torch.ones(2))
