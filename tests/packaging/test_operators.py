"""A file calls the operators of other libraries that the loading process has registered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.errors import CallNotSaved, CannotKeep
from tests.processes import run_forked
from tests.programs.modules import operators_defined  # noqa: F401

ops = torch.ops.jitmagic_tests

LOADS = """
    import sys, torch, jitmagic
    path, gradient = sys.argv[1], sys.argv[2] == "training"
    try:
        jitmagic.load(f"{path}/f")
    except jitmagic.errors.ArtifactRefused as error:
        assert "import tests.programs.modules.operators_defined first" in str(error), error
    else:
        raise AssertionError("it was loaded without the operators")
    import tests.programs.modules.operators_defined
    loaded = jitmagic.load(f"{path}/f")
    x, want, grad = torch.load(f"{path}/want.pt")
    x.requires_grad_(gradient)
    got = loaded(x)
    assert torch.equal(got, want), (got, want)
    if gradient:
        got.sum().backward()
        assert torch.equal(x.grad, grad), (x.grad, grad)
    print("right")
"""


def written(x: Tensor) -> Tensor:
    y = x * 1
    ops.add_into(y, x)
    return y


INFERENCE = {
    "several": lambda x: ops.both(x * 2)[1] + 1,
    "written": written,
    "list": lambda x: torch.cat(ops.apart([x, x * 2], [2.0, 3.0], "mul")),
    "number": lambda x: x * ops.rank(x),
}
TRAINING = {
    "scaled": lambda x: ops.scaled(x * 2, 3.0) + 1,
    "backward of its own": lambda x: ops.square(x.sin()) * 2,
}


@pytest.mark.parametrize("name", [*INFERENCE, *TRAINING])
def test_results_and_gradients_in_another_process(tmp_path, name):
    program, gradient = (INFERENCE | TRAINING)[name], name in TRAINING
    x = torch.randn(3, 4)
    held = x.clone().requires_grad_(gradient)
    with torch.set_grad_enabled(gradient):
        jitmagic.save(program, tmp_path / "f", held)
        want = jitmagic.jit(program)(held)
        if gradient:
            want.sum().backward()
    torch.save((x, want.detach(), held.grad), tmp_path / "want.pt")
    done = run_forked(LOADS, str(tmp_path), "training" if gradient else "inference")
    assert done.stdout.strip() == "right", done.stderr[-2000:]


def cutting(rows):
    def cut(x):
        return x.new_empty(rows, *x.shape[1:])

    return cut


class Rows(int):
    """A number that is an object: its class may do anything with it."""


@pytest.fixture
def library():
    made = torch.library.Library("jitmagic_saved", "FRAGMENT")
    made.define("cut(Tensor x) -> Tensor")
    made.impl("cut", lambda x: x[:2].clone(), "CompositeExplicitAutograd")
    yield made
    made._destroy()


def test_an_operator_that_is_registered_otherwise_is_refused(tmp_path, library):
    torch.library.register_fake("jitmagic_saved::cut", cutting(2), lib=library)

    def program(x):
        return torch.ops.jitmagic_saved.cut(x) * 2

    with torch.no_grad():
        jitmagic.save(program, tmp_path / "f", torch.ones(3, 4))
    loaded = jitmagic.load(tmp_path / "f")
    assert loaded(torch.ones(3, 4)).shape == (2, 4)
    for fake in (cutting(1), lambda x: x.new_empty(2, 4)):
        library._destroy()
        library.__init__("jitmagic_saved", "FRAGMENT")
        library.define("cut(Tensor x) -> Tensor")
        library.impl("cut", lambda x: x[:1].clone(), "CompositeExplicitAutograd")
        torch.library.register_fake("jitmagic_saved::cut", fake, lib=library)
        with pytest.raises(CallNotSaved):
            loaded(torch.ones(3, 4))  # the guard holds while the process runs too
        with pytest.raises(CallNotSaved, match="cut is registered with other functions"):
            jitmagic.load(tmp_path / "f")(torch.ones(3, 4))


def test_a_registered_function_that_holds_an_object_is_refused(tmp_path, library):
    torch.library.register_fake("jitmagic_saved::cut", cutting(Rows(2)), lib=library)
    with (
        torch.no_grad(),
        pytest.raises(CannotKeep, match="registered for an operator and holds an object"),
    ):
        jitmagic.save(lambda x: torch.ops.jitmagic_saved.cut(x) * 2, tmp_path / "f", torch.ones(3))
