"""passport: every planted error is flagged with its operation, no right program is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import jitmagic
from jitmagic.diagnostics.checking.cases import capture_call
from jitmagic.diagnostics.checking.passport import Passport

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: (x + 0.25).relu(),
    "sub": lambda x: x - x.mean(),
    "mul": lambda x: (x * 1.7).tanh(),
    "truediv": lambda x: x / (x.abs() + 1),
    "matmul": lambda x: torch.matmul(x, x.t()).relu(),
    "exp": lambda x: torch.exp(x) + 1,
    "log1p": lambda x: torch.log1p(x.abs()),
    "tanh": lambda x: torch.tanh(x) * x,
    "sin": lambda x: torch.sin(x).sum(0),
    "sigmoid": lambda x: torch.sigmoid(x) - 0.5,
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "gelu": lambda x: F.gelu(x) + x,
    "softmax": lambda x: torch.softmax(x, -1) @ x.t(),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sum": lambda x: torch.sum(x, -1),
    "mean": lambda x: torch.mean(x, 0, True),
    "var": lambda x: torch.var(x, -1),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "amax": lambda x: torch.amax(x, 0),
    "argmax": lambda x: torch.argmax(x, -1),
    "ge": lambda x: torch.ge(x, 0.0),
}


def given(dtype: torch.dtype = torch.float32, *, transposed: bool = False) -> Tensor:
    torch.manual_seed(3)
    x = torch.randn(12, 12).to(dtype)
    return x.t() if transposed else x


def planted(name: str) -> Callable[..., Any]:
    """A backend whose operation of that name is slightly wrong."""

    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if result.is_floating_point():
                return result * (1 + 1e-4) + 1e-5
            return ~result if result.dtype == torch.bool else result + 1

        return run

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            called = (
                node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
            )
            if node.op in ("call_function", "call_method") and called == name:
                function = node.target
                if node.op == "call_method":
                    function = getattr(torch.Tensor, node.target)
                node.op, node.target = "call_function", wrong(function)
                break
        gm.recompile()
        return gm.forward

    return backend


def of(name: str, **options: Any) -> Callable[..., Passport]:
    return jitmagic.passport(PROGRAMS[name], **options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_slightly_wrong_operation_is_flagged(name: str) -> None:
    found = of(name, backend=planted(name))(given())
    assert not found.agrees
    assert "beyond rounding" in found.verdict
    [first] = found.first
    assert name in first and "test_passport.py, line" in first


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_program_is_not(name: str, dtype: torch.dtype) -> None:
    found = of(name)(given(dtype).requires_grad_(name not in ("argmax", "ge")))
    assert found.agrees, found
    assert not found.first


@pytest.mark.parametrize("wrong", [True, False])
def test_gradients_are_judged_by_themselves(wrong: bool) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2.001

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        return lambda x: (Scaled.apply(x),) if wrong else gm(x)

    found = jitmagic.passport(lambda x: x * 2, backend=backend)(given().requires_grad_())
    assert found.agrees is not wrong
    assert [line.name for line in found.lines if not line.agrees] == ["gradient of x"] * wrong
    assert all("gradient: all operations of the forward agree" in one for one in found.first)


def write(x: Tensor) -> Tensor:
    x.mul_(3)
    return x.sum()


def test_inputs_are_judged_as_they_are_left() -> None:
    x = given()
    found = jitmagic.passport(write)(x)
    assert [line.name for line in found.lines] == ["result", "x, after the call"]
    assert found.agrees
    assert torch.equal(x, given() * 3), "the one call has its effects, once"


def test_random_numbers_are_eagers_and_the_note_says_what_is_compared() -> None:
    found = jitmagic.passport(lambda x: F.dropout(x, 0.5) * 2)(given())
    assert found.agrees
    assert "random numbers" in found.notes[0]


def test_edges_agree() -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, 3e38])
    for fn in (lambda x: x * 2, lambda x: x.abs() + 1, lambda x: torch.maximum(x, -x)):
        assert jitmagic.passport(fn)(x).agrees
    flipped = jitmagic.passport(lambda x: x * 1, backend=lambda gm, _: lambda x: (-x,))(x)
    assert not flipped.agrees


def test_a_negative_zero_is_no_bitwise_equal_but_agrees() -> None:
    zero = torch.zeros(3)
    found = jitmagic.passport(lambda x: x + 0.0, backend=lambda gm, _: lambda x: (-x,))(zero)
    [line] = [line for line in found.lines if line.name == "result"]
    assert (line.bitwise, line.agrees, line.ulp) == (False, True, 0)


def test_figures_that_are_shown_are_explained() -> None:
    for name in ("softmax", "add"):
        found = of(name)(given())
        differs = not all(line.bitwise for line in found.lines)
        assert ("in last places" in str(found)) is differs is (name == "softmax")


def test_it_is_saved_as_json(tmp_path: Path) -> None:
    found = of("argmax", backend=planted("argmax"))(given())
    plain = json.loads(found.save(tmp_path / "passport.json").read_text())
    assert plain["agrees"] is False and plain["verdict"] == found.verdict
    assert plain["lines"][0]["rel"] == "inf"
    assert str(found).startswith("<lambda>: 1 of 2 tensors differ")


def test_a_tagged_function_keeps_its_options_and_its_state() -> None:
    tagged = jitmagic.jit(PROGRAMS["mul"], backend="aot_eager")
    found = jitmagic.passport(tagged)(given())
    assert found.agrees and "2 tensors" in found.verdict
    handle = jitmagic.api.tagged_handle(tagged)
    assert not handle.dispatcher.entries


def test_what_compiles_nothing_says_so() -> None:
    assert "nothing was compiled" in jitmagic.passport(lambda x: x)(given()).verdict


def test_inputs_that_agree_bitwise_are_one_line() -> None:
    """A model has hundreds; what differs, or is one alone, has its own."""
    net = torch.nn.Linear(4, 4)
    found = jitmagic.passport(net)(torch.ones(2, 4))
    assert "\n  3 inputs, after the call: bitwise equal" in str(found)
    assert str(found).count("after the call") == 1
    assert sum(line.name.endswith("after the call") for line in found.lines) == 3
    assert "x, after the call  float32  bitwise equal" in str(jitmagic.passport(write)(given()))


# -- the whole function ----------------------------------------------------------------------------


def captured_as(other: Callable[..., Any]) -> Callable[..., Any]:
    """A capture that takes another function for the one it is given."""
    return lambda fn, args, kwargs: capture_call(other, args, kwargs)


FACTOR = [3.0]
STALE: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "a result": (lambda x: x * FACTOR[0], lambda x: x * 1.0, "result"),
    "one of two": (lambda x: [x + 1, x * FACTOR[0]], lambda x: [x + 1, x * 1.0], "result[1]"),
    "a number": (lambda x: (x + 1, FACTOR[0]), lambda x: (x + 1, 1.0), "result[1]"),
    "an argument": (write, lambda x: (x * 3).sum(), "argument[0], after the call"),
    "its drawing": (lambda x: x + torch.rand(12), lambda x: x + 0.5, "result"),
}


@pytest.mark.parametrize("name", STALE)
def test_a_wrong_capture_is_flagged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, stale, place = STALE[name]
    assert jitmagic.passport(function)(given()).agrees
    monkeypatch.setattr("jitmagic.diagnostics.checking.passport.capture_call", captured_as(stale))
    found = jitmagic.passport(function)(given())
    assert [line.name for line in found.lines if not line.agrees] == [place]
    assert found.first[0].startswith("the capture: ")


def counts(x: Tensor) -> Tensor:
    FACTOR.append(1.0)
    return x * len(FACTOR)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_a_function_that_changes_more_than_its_arguments_runs_once() -> None:
    for _ in range(2):
        before = len(FACTOR)
        found = jitmagic.passport(counts)(given())
        assert len(FACTOR) == before + 1
        assert found.agrees
        assert "outside of its arguments" in found.notes[0]
    module = Counter()
    assert jitmagic.passport(module)(given()).notes == ()
    assert module.calls == 1


def test_a_training_step_is_judged_by_its_loss_and_gradients() -> None:
    model = torch.nn.Linear(12, 2)

    def step(x: Tensor) -> dict[str, Tensor]:
        loss = model(x).square().mean()
        loss.backward()
        return {"loss": loss}

    found = jitmagic.passport(step)(given())
    assert found.agrees
    shown = [line.name for line in found.lines if not line.name.endswith("after the call")]
    assert shown == ["result['loss']", "model.weight.grad", "model.bias.grad"]
