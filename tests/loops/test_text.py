"""The two texts of a program: one for people (golden), one that reads back as an equal program."""

from __future__ import annotations

import pytest
import torch
from recording import check, record

from jitmagic.devices import Target
from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower
from jitmagic.loops.python_form import from_python, to_python
from jitmagic.loops.show import show, show_step
from jitmagic.options import Options
from jitmagic.schedule import schedule

aten = torch.ops.aten
TARGET = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")

PROGRAMS = {
    "chain": (lambda x, y: torch.relu(x * y + 2).sum(-1), ((8, 64), (8, 64))),
    "softmax": (lambda x: aten._softmax(x, -1, False), ((4, 9),)),
    "mixed": (lambda x, y: (x.t() @ y).to(torch.bfloat16).view(-1)[3:7] + 1, ((4, 6), (4, 5))),
    "pad": (lambda x: aten.constant_pad_nd(x, [1, 2], float("-inf")), ((3, 4),)),
    "embed": (lambda x: x[torch.tensor([1, 0, 2])].flip(0).roll(1, 1), ((3, 4),)),
    "norm": (lambda x: aten.native_layer_norm(x, [5], None, None, 1e-5), ((3, 5),)),
    "write": (lambda x, y: x.copy_(x + y), ((3, 5), (3, 5))),
    "convert": (
        lambda x: aten._to_copy(x, dtype=torch.complex64, memory_format=torch.contiguous_format),
        ((3,),),
    ),
}


def lowered(name, fused):
    fn, shapes = PROGRAMS[name]
    graph, _ = record(fn, *(torch.randn(shape) for shape in shapes))
    program = lower(graph, name)
    return schedule(program, TARGET, Options()).program if fused else program


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_python_form_reads_back(name, fused):
    program = lowered(name, fused)
    text = to_python(program)
    again = from_python(text, program.constants)
    assert again == program or again.constants
    assert (again.steps, again.buffers, again.inputs, again.outputs) == (
        program.steps,
        program.buffers,
        program.inputs,
        program.outputs,
    )
    assert to_python(again) == text
    assert "0x" not in text
    assert show(program).startswith(f"def {name}(")
    inputs = [torch.randn(shape) for shape in PROGRAMS[name][1]]
    for a, b in zip(run(program, [i.clone() for i in inputs]), run(again, inputs)):
        assert torch.equal(a, b)


def test_the_text_for_people():
    program = check(*PROGRAMS["chain"][:1], torch.randn(8, 64), torch.randn(8, 64), exact=False)
    assert show(program) == (
        """\
def test(x0: float32[8, 64], x1: float32[8, 64]):
    for i0, i1 in points(8, 64):  # mul_tensor
        mul_tensor[i0, i1] = (x0[i0, i1] * x1[i0, i1])
    for i2, i3 in points(8, 64):  # add_tensor
        add_tensor[i2, i3] = (mul_tensor[i2, i3] + 2.0)
    for i4, i5 in points(8, 64):  # relu_default
        relu_default[i4, i5] = relu(add_tensor[i4, i5])
    for i6 in points(8):  # sum_dim_int_list
        t0 = Sum(relu_default[i6, i7] for i7 in points(64))
        sum_dim_int_list[i6] = t0
    return sum_dim_int_list"""
    )


def test_shared_values_and_nested_reductions_are_named_once():
    program = lowered("norm", fused=True)
    text = show_step(program, program.steps[0])
    assert (text.count("Sum("), text.count("Sum()")) == (2, 1)
    assert "mul_1[i0, " in text


def test_deep_sharing_prints_in_linear_size():
    def f(x):
        return aten.silu(aten.silu(x))

    graph, _ = record(f, torch.randn(4))
    assert len(to_python(lower(graph, "deep"))) < 3000
