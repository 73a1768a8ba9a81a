"""A file has the state that its calls read and write, and starts with that of the program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.errors import CallNotSaved, CannotKeep
from tests.processes import run_forked

COUNT, AVERAGE = 3, torch.zeros(2)


class Plain:
    def __init__(self) -> None:
        self.count, self.scale = 3, torch.full((2,), 3.0)


class Average(nn.Module):
    """Assigns a buffer and a number in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("fixed", torch.ones(2))
        self.calls, self.decay = 0, 0.5

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * self.decay + self.layer(x).detach()
        self.calls += 1
        return self.mean * self.fixed / self.calls


def in_attribute() -> Callable[[Tensor], Any]:
    plain = Plain()

    def program(x):
        plain.count += 1
        return x * plain.count + plain.scale

    return program


def in_tensor_attribute() -> Callable[[Tensor], Any]:
    plain = Plain()

    def program(x):
        before, plain.scale = plain.scale, plain.scale * 2 + x
        return before

    return program


def by_two_names() -> Callable[[Tensor], Any]:
    one = Plain()
    objects = {"same": one}

    def program(x):
        objects["same"].count = one.count + 1
        return x * one.count

    return program


def in_dict(step: int = 1) -> Callable[[Tensor], Any]:
    state = {"step": step, "m": {"a": torch.zeros(2)}, "ema": torch.ones(2), "rate": 0.5}

    def program(x):
        state["step"] += 1
        state["m"]["a"].mul_(0.9).add_(x)
        state["ema"] = state["ema"] * state["rate"] + state["m"]["a"]
        state["last"] = x
        return state["ema"] / (1 - 0.9 ** state["step"]), state["step"]

    return program


def in_module_of_a_closure() -> Callable[[Tensor], Any]:
    model = Average()
    return lambda x: model(x) * 2


def in_global(x: Tensor) -> Tensor:
    global COUNT, AVERAGE
    COUNT += 1
    AVERAGE = AVERAGE * 0.5 + x
    return AVERAGE * COUNT


def in_variable_of_a_closure() -> Callable[[Tensor], Any]:
    count, average = 3, torch.zeros(2)

    def program(x):
        nonlocal count, average
        count += 1
        average = average * 0.5 + x
        return average * count

    return program


def in_variable_of_a_callee() -> Callable[[Tensor], Any]:
    inner = in_variable_of_a_closure()
    return lambda x: inner(x) + inner(x)


class Optimizer:
    def __init__(self) -> None:
        self.step, self.rate, self.mean = 1, 0.5, torch.zeros(2)

    def update(self, x: Tensor) -> Tensor:
        self.step += 1
        self.mean = self.mean * 0.9 + x
        return self.mean / (1 - 0.9**self.step) * self.rate


def returned(kind: str) -> Callable[[Tensor], Any]:
    """Return a program that returns the dict that it writes to, or one beside it."""
    inner = {"a": torch.ones(2), "n": 3, "name": "text"}
    outer = {"inner": inner, "same": inner}

    def program(x):
        inner["a"] = inner["a"] + x
        outer["same"]["n"] += 1
        return outer["inner"] if kind == "inner" else outer

    def writes_in_place(x):
        inner["a"].add_(x)
        return inner

    return writes_in_place if kind == "in place" else program


PROGRAMS = {
    "returned": lambda: returned("inner"),
    "method": lambda: Optimizer().update,
    "global": lambda: in_global,
    "variable": in_variable_of_a_closure,
    "variable of a callee": in_variable_of_a_callee,
    "attribute": in_attribute,
    "tensor attribute": in_tensor_attribute,
    "two names": by_two_names,
    "dict": in_dict,
    "closure": in_module_of_a_closure,
    "module": Average,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_find_what_earlier_calls_have_written(tmp_path, name):
    torch.manual_seed(0)
    program, inputs = PROGRAMS[name](), [torch.randn(2) for _ in range(4)]
    with torch.no_grad():
        jitmagic.save(program, tmp_path / "f", inputs[0])
        expected = [copy.deepcopy(program(x)) for x in inputs]
        loaded = jitmagic.load(tmp_path / "f")
        for x, wanted in zip(inputs, expected, strict=True):
            assert_same(loaded(x), wanted)
        again = jitmagic.load(tmp_path / "f")  # with state of its own
        assert_same(again(inputs[0]), expected[0])


def assert_same(made: Any, wanted: Any) -> None:
    if not isinstance(wanted, dict):
        torch.testing.assert_close(made, wanted)
    else:
        assert made.keys() == wanted.keys() and made["name"] == wanted["name"]
        torch.testing.assert_close((made["a"], made["n"]), (wanted["a"], wanted["n"]))


@pytest.mark.parametrize("kind", ["outer", "in place"])
def test_a_result_that_holds_state_is_refused(tmp_path, kind):
    with torch.no_grad(), pytest.raises(CannotKeep, match="holds what the program writes to"):
        jitmagic.save(returned(kind), tmp_path / "f", torch.ones(2))


def test_another_process_starts_with_the_state_that_was_saved(tmp_path):
    program, x = in_dict(), torch.randn(2)
    with torch.no_grad():
        program(x)
        jitmagic.save(program, tmp_path / "f", x)
        expected = [program(x) for _ in range(3)]
    torch.save((x, expected), tmp_path / "want.pt")
    code = """
        import sys, torch, jitmagic
        x, expected = torch.load(f"{sys.argv[1]}/want.pt")
        loaded = jitmagic.load(f"{sys.argv[1]}/f")
        for wanted in expected:
            torch.testing.assert_close(loaded(x), wanted)
        print("right")
    """
    done = run_forked(code, str(tmp_path))
    assert done.stdout.strip() == "right", done.stderr[-2000:]


def test_one_call_reads_what_another_writes(tmp_path):
    plain = Plain()

    def program(x, adds):
        if adds:
            plain.count += 1
            plain.scale = plain.scale + x
            return x
        return x * plain.count * plain.scale

    x = torch.randn(2)
    with torch.no_grad():
        jitmagic.save(program, tmp_path / "f", (x, True), (x, False))
        calls = [(x, False), (x, True), (x, False), (x, True), (x, False)]
        expected = [program(*call) for call in calls]
        loaded = jitmagic.load(tmp_path / "f")
        for call, wanted in zip(calls, expected, strict=True):
            torch.testing.assert_close(loaded(*call), wanted)


def test_weights_of_state_have_names(tmp_path):
    program, x = in_tensor_attribute(), torch.randn(2)
    with torch.no_grad():
        jitmagic.save(program, tmp_path / "f", x, weights=False)
        loaded = jitmagic.load(tmp_path / "f", weights={"plain.scale": torch.full((2,), 7.0)})
        assert loaded(x).tolist() == [7.0, 7.0]
        torch.testing.assert_close(loaded(x), 14 + x)


def test_state_of_another_type_is_another_call(tmp_path):
    plain = Plain()

    def program(x):
        made = x + plain.scale
        plain.scale = made.double()
        return made

    with torch.no_grad():
        jitmagic.save(program, tmp_path / "f", torch.ones(2))
        loaded = jitmagic.load(tmp_path / "f")
        assert loaded(torch.ones(2)).tolist() == [4.0, 4.0]
        with pytest.raises(CallNotSaved, match="plain.scale"):
            loaded(torch.ones(2))


def test_a_first_call_that_is_unlike_the_others_is_refused(tmp_path):
    program, x = in_dict(0), torch.randn(2)  # Python would raise for a divisor of zero
    with torch.no_grad():
        with pytest.raises(CannotKeep, match=r"state\['step'\].*\n  hint: .*call the program once"):
            jitmagic.save(program, tmp_path / "f", x)
        program(x)
        jitmagic.save(program, tmp_path / "f", x)


def test_a_choice_by_state_is_refused(tmp_path):
    plain = Plain()

    def program(x):
        plain.count += 1
        return x * 2 if plain.count == 5 else x

    with torch.no_grad(), pytest.raises(CannotKeep, match=r"plain\.count"):
        jitmagic.save(program, tmp_path / "f", torch.ones(2))
