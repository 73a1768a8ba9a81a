"""ReLUs after products with a bias are computed by cuBLAS, where the result is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from jitmagic.loops.interp import run
from jitmagic.loops.ir import Alias, Extern, LoopProgram, Nest
from jitmagic.loops.verify import verify
from jitmagic.schedule.libraries.activations import with_activations
from tests.codegen.for_gpu import H200
from tests.schedule.test_fusion import lowered

FUSED, PLAIN = "aten._addmm_activation.default", "aten.addmm.default"


def layer(x, w, b):
    return F.relu(F.linear(x, w, b))


def two_layers(x, w, b):
    return layer(layer(x, w, b), w.t(), b[: w.shape[1]]) * 2


def also_without(x, w, b):
    y = F.linear(x, w, b)
    return F.relu(y), y


def sliced(x, w, b):
    return F.relu(F.linear(x, w, b)[:, 1:])


def turned(x, w, b):
    return F.relu(F.linear(x, w, b).t())


def other(x, w, b):
    return F.gelu(F.linear(x, w, b))


def bias_of_a_row(x, w, b):
    return F.relu(torch.addmm(x[:, :1], x, w.t()))


def without_bias(x, w, b):
    return F.relu(F.linear(x, w))


def overwritten(x, w, b):
    return b.copy_(F.relu(F.linear(x, w, b))[0])


def inputs(*rows: int) -> list[torch.Tensor]:
    given = torch.randn(*rows, 32), torch.randn(48, 32), torch.randn(48)
    given[2][3] = torch.nan
    return [t.bfloat16() for t in given]


def changed(fn, *given: torch.Tensor) -> tuple[LoopProgram, LoopProgram]:
    program = lowered(fn, *given)
    made = with_activations(program, H200)
    verify(made)
    return program, made


def calls(program: LoopProgram) -> list[str]:
    return [str(step.op) for step in program.steps if isinstance(step, Extern)]


@pytest.mark.parametrize("rows", [(8,), (2, 4), (2, 2, 2)])
def test_one_call(rows):
    given = inputs(*rows)
    program, made = changed(layer, *given)
    assert calls(made) == [FUSED]
    assert not any(isinstance(step, Nest) for step in made.steps)
    assert any(isinstance(step, Alias) and "relu" in step.name for step in made.steps) is (
        len(rows) > 1
    )
    (got,), (want,) = run(made, given), run(program, given)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_layers_in_a_row():
    given = inputs(2, 4)
    program, made = changed(two_layers, *given)
    assert calls(made) == [FUSED, FUSED]
    torch.testing.assert_close(run(made, given), run(program, given), equal_nan=True)


@pytest.mark.parametrize("fn", [also_without, sliced, turned, other, bias_of_a_row, without_bias])
def test_what_stays(fn):
    assert FUSED not in calls(changed(fn, *inputs(8))[1])


def test_results_of_which_inputs_are_overwritten():
    given = inputs(8)
    program, made = changed(overwritten, *given)
    copies = [[t.clone() for t in given] for _ in range(2)]
    got, want = run(made, copies[0]), run(program, copies[1])
    torch.testing.assert_close([*got, *copies[0]], [*want, *copies[1]], equal_nan=True)


def test_other_processors_keep_their_kernels():
    program = lowered(layer, *inputs(8))
    assert with_activations(program, replace(H200, isa="sm_80")) is program
