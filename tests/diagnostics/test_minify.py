"""minify(): planted bugs are found, shrunk to the operation that has them, and written to run."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic.diagnostics.checking import minify
from jitmagic.diagnostics.checking.cases import changed_options
from jitmagic.diagnostics.checking.scripts import check_agreement, random_tensor
from jitmagic.loops import registry
from jitmagic.options import MODES, make_options
from tests.processes import run_forked

HEAD = (
    "from jitmagic.compile import pipeline\nfrom jitmagic.loops.registry import LOWERINGS\n"
    "LOWERINGS.load_all()\n"
)
WRONG = HEAD + "LOWERINGS['aten.tanh.default'] = LOWERINGS['aten.sin.default']\n"
CRASH = HEAD + (
    "def broken(*args, **kwargs):\n    raise KeyError('planted')\n"
    "LOWERINGS['aten.tanh.default'] = broken\n"
)
NOTHING = HEAD
NAME = "aten.tanh.default"


def plant(text: str, patch: pytest.MonkeyPatch, name: str = NAME) -> None:
    """Until the test ends; the pipeline is imported first, which fills the table."""
    exec(HEAD, {})
    patch.setitem(registry.LOWERINGS, name, registry.LOWERINGS[name])
    exec(text, {})


def in_a_process(script: Path, planted: str) -> subprocess.CompletedProcess[str]:
    command = f"{planted}\nimport runpy\nrunpy.run_path({str(script)!r}, run_name='__main__')\n"
    return run_forked(command)


def network(x: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(x @ w) + 1
    z = torch.tanh(y * 0.5) * y
    return torch.softmax(z.sum(0) - z, -1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).softmax(-1)


def body_of(script: Path) -> list[str]:
    """The operations of `repro`."""
    lines = script.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("def repro("))
    body = []
    for line in lines[start + 1 :]:
        if not line.startswith("    "):
            break
        body.append(line.strip())
    return [line for line in body if not line.startswith("return")]


@pytest.mark.parametrize(("planted", "kind"), [(WRONG, "wrong"), (CRASH, "crash: KeyError")])
def test_a_planted_bug_is_shrunk_to_its_operation(
    planted: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(planted, monkeypatch)
    x, w = torch.randn(12, 16), torch.randn(16, 16)
    script = jitmagic.minify(network, tmp_path / "new" / "folder")(x, w)
    assert script == tmp_path / "new" / "folder" / "repro.py"
    (line,) = body_of(script)
    assert "tanh" in line
    assert kind in script.read_text()
    assert "random_tensor((2, 2), (2, 1), torch.float32" in script.read_text()
    fails = in_a_process(script, planted)
    assert fails.returncode != 0
    assert f"AssertionError: the compiled function fails: {kind}" in fails.stderr
    mended = in_a_process(script, NOTHING)
    assert mended.returncode == 0, mended.stderr
    assert mended.stdout == "the compiled function agrees with eager\n"


def test_a_module_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(WRONG, monkeypatch)
    torch.manual_seed(0)
    model = Net()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    script = jitmagic.minify(model, tmp_path)(torch.randn(4, 6))
    assert script is not None
    (line,) = body_of(script)
    assert "tanh" in line
    assert jitmagic.api.handle_of(model) is None
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


BACKWARD = "aten.neg.default"  # in tanh's derivative, 1 - y * y; the forward has none
WRONG_BACKWARD = HEAD + f"LOWERINGS['{BACKWARD}'] = LOWERINGS['aten.abs.default']\n"
BROKEN_BACKWARD = CRASH.replace(NAME, BACKWARD)


def with_even_gradients(x: Tensor) -> Tensor:
    """All ones for its gradient would leave nothing of it."""
    return torch.softmax(torch.tanh(x * 2 + 1) * 3, -1)


@pytest.mark.parametrize(
    ("planted", "kind"), [(WRONG_BACKWARD, "wrong"), (BROKEN_BACKWARD, "crash: KeyError")]
)
def test_a_bug_in_the_backward_alone(
    planted: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(planted, monkeypatch, BACKWARD)
    x = torch.randn(12, 16)
    assert jitmagic.minify(with_even_gradients, tmp_path)(x) is None  # the forward is sound
    script = jitmagic.minify(with_even_gradients, tmp_path)(x.requires_grad_())
    assert script is not None
    (line,) = body_of(script)
    assert "tanh" in line
    assert kind in script.read_text()
    with pytest.raises(AssertionError, match=kind):
        runpy.run_path(str(script), run_name="__main__")
    monkeypatch.undo()
    runpy.run_path(str(script), run_name="__main__")


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 + 0 * x


def stepped(x: Tensor) -> Tensor:
    loss = torch.tanh(x * 3).sum()
    loss.backward()
    return loss.detach()


REGIONS = {
    "autograd function": (lambda x: torch.tanh(Twice.apply(x)) + 1, True),
    "checkpoint": (
        lambda x: checkpoint(lambda y: torch.tanh(y) * 2, x, use_reentrant=False) + 1,
        True,
    ),
    "backward": (stepped, True),
    "vmap": (lambda x: torch.func.vmap(lambda row: torch.tanh(row).sum() * row)(x), False),
    "vjp": (lambda x: torch.func.vjp(torch.tanh, x)[1](x)[0], False),
}


@pytest.mark.parametrize("kind", REGIONS)
def test_graphs_inside_of_graphs_are_part_of_the_script(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of autograd functions, transforms, a backward: nodes that no name of torch stands for.
    One lowering for all of a graph is planted, so that no part of it can go."""
    function, requires_grad = REGIONS[kind]
    x = torch.randn(4, 6, requires_grad=requires_grad)
    monkeypatch.setattr(minify, "_candidates", lambda case: ())
    plant(WRONG, monkeypatch)
    script = jitmagic.minify(function, tmp_path)(x)
    assert script is not None
    fails = in_a_process(script, WRONG)
    assert "AssertionError: the compiled function fails" in fails.stderr
    mended = in_a_process(script, NOTHING)
    assert mended.returncode == 0, mended.stderr


def test_minify_writes_no_script_if_all_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "none"
    assert jitmagic.minify(network, folder)(torch.randn(3, 4), torch.randn(4, 4)) is None
    assert not folder.exists()
    said = "minify: eager and compiled agree (1 graph compared), no script is written\n"
    assert capsys.readouterr().out == said
    assert jitmagic.minify(lambda x: x, folder)(3) is None
    assert capsys.readouterr().out == "minify: nothing was compared: this call has no graph\n"


def test_minify_does_not_count_graphs_that_eager_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*args: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(minify, "failure_of", refused)
    assert jitmagic.minify(torch_relu, tmp_path)(torch.randn(3)) is None
    said = "minify: nothing was compared; 1 graph not compared: eager raises there\n"
    assert capsys.readouterr().out == said


def test_inputs_are_saved_if_random_ones_do_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer at large values only is one that random inputs do not find."""
    planted = HEAD + (
        "from jitmagic.loops.values import compute, where\n"
        "def clipped(v):\n"
        "    return where(compute('gt', v, 100.0), 7.0, compute('tanh', v))\n"
        "from jitmagic.loops.registry import pointwise_lowering\n"
        "LOWERINGS['aten.tanh.default'] = pointwise_lowering(clipped, 'float', 1)\n"
    )
    plant(planted, monkeypatch)
    script = jitmagic.minify(lambda x: torch.tanh(x * 2) + 1, tmp_path)(torch.full((4,), 500.0))
    assert script is not None
    assert (tmp_path / "inputs.pt").exists()
    assert "inputs.pt" in script.read_text()
    assert in_a_process(script, planted).returncode != 0
    assert in_a_process(script, NOTHING).returncode == 0


@pytest.mark.parametrize(
    "facts",
    [
        ((3, 4), (8, 2), torch.float32, "cpu", True),
        ((5,), (1,), torch.int64, "cpu", False, 2, 3),
        ((2, 2), (1, 2), torch.bool),
        ((2, 0), (1, 1), torch.bfloat16),
    ],
)
def test_made_tensors_have_their_spec_and_are_the_same_each_time(facts: Any) -> None:
    one, two = random_tensor(*facts), random_tensor(*facts)
    assert (tuple(one.shape), one.stride(), one.dtype) == facts[:3]
    assert torch.equal(one, two)
    if one.dtype == torch.int64:
        assert bool(((one >= 2) & (one <= 3)).all())
    assert one.requires_grad == (len(facts) > 4 and facts[4])


def test_script_has_the_options_of_the_tagged_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(WRONG, monkeypatch)
    run = jitmagic.jit(lambda x: torch.tanh(x) * 2, mode="reduce-overhead", options={"fuse": False})
    script = jitmagic.minify(run, tmp_path)(torch.randn(4))
    assert script is not None
    assert "'mode': 'reduce-overhead'" in script.read_text()
    assert "'fuse': False}" in script.read_text()
    assert in_a_process(script, WRONG).returncode != 0


def test_a_weaker_tier_is_no_failure(tmp_path: Path) -> None:
    with pytest.warns(jitmagic.FallbackWarning, match="CPU code is generated by blocks"):
        jitmagic.jit(torch_relu, options={"cxx": ""})(torch.randn(3))
    assert jitmagic.minify(torch_relu, tmp_path, options={"cxx": ""})(torch.randn(3)) is None


def torch_relu(x: Tensor) -> Tensor:
    return torch.relu(x) + 1


def test_agree_compares_gradients_and_mutated_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return (x * y).sum()

    inputs = [
        random_tensor((3,), (1,), torch.float32, "cpu", True),
        random_tensor((3,), (1,), torch.float32),
    ]
    check_agreement(doubled, inputs)
    assert torch.equal(inputs[1], random_tensor((3,), (1,), torch.float32))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("calls_are_compared")
def test_changed_options_are_keywords_of_jit(mode: str) -> None:
    """Options that the mode implies are left out, and the keywords give equal options."""
    for given in ({}, {"mode": mode}, {"mode": mode, "options": {"fuse": False}}):
        keywords = dict(given)
        options = make_options(keywords.pop("options", None), **keywords)
        told = changed_options(options)
        assert told == {k: v for k, v in given.items() if (k, v) != ("mode", "default")}
        again = dict(told)
        assert make_options(again.pop("options", None), **again) == options
