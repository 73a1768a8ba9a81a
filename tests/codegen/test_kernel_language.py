"""The kernel language: forms of kernels against the interpreter of nests, and the verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.blocks.renderer import BlockRenderer
from jitmagic.codegen.config import CppConfig, TritonConfig
from jitmagic.codegen.cpp.renderer import CppRenderer
from jitmagic.codegen.equal_kernels import distinct_kernels
from jitmagic.codegen.expand import expand
from jitmagic.codegen.kernel import (
    Call,
    For,
    Kernel,
    Let,
    Section,
    Set,
    Store,
    Var,
)
from jitmagic.codegen.kernel_interpreter import interpret
from jitmagic.codegen.kernel_verifier import verify_kernel
from jitmagic.codegen.kernel_walk import statements
from jitmagic.codegen.linearize import Style, linearize
from jitmagic.codegen.loop_form import loop_form
from jitmagic.codegen.loop_structure import structure
from jitmagic.codegen.triton.renderer import TritonRenderer
from jitmagic.errors import VerifyError
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Buffer, Constant, Integer, LoopProgram, Nest
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.schedule import schedule
from tests.loops.recording import clone, record
from tests.schedule.programs import PROGRAMS, made_inputs
from tests.schedule.test_fusion import TARGET

LARGEST = 700  # elements of an input; a point takes some 20 us in the interpreter
SMALL = [
    name
    for name, program in PROGRAMS.items()
    if all(prod(shape) <= LARGEST for shape, *_ in program.inputs)
]
FORMS = {
    "loops": lambda nest, buffers: loops_of(nest, buffers),
    "linear": lambda nest, buffers: verify_kernel(linearize(loops_of(nest, buffers))),
    "expressions": lambda nest, buffers: verify_kernel(
        linearize(loops_of(nest, buffers), Style(longest=6))
    ),
    "expanded": lambda nest, buffers: verify_kernel(expand(linearize(loops_of(nest, buffers)))),
    "vectors": lambda nest, buffers: verify_kernel(
        CppRenderer().kernel(nest, buffers, TARGET, None)
    ),
    "tiles": lambda nest, buffers: verify_kernel(
        TritonRenderer().kernel(nest, buffers, TARGET, None)
    ),
    "tiles_in_steps": lambda nest, buffers: verify_kernel(
        TritonRenderer().kernel(nest, buffers, TARGET, TritonConfig(step=16, rows=2))
    ),
    "blocks": lambda nest, buffers: verify_kernel(
        BlockRenderer().kernel(nest, buffers, TARGET, None)
    ),
    "vectors_of_a_register": lambda nest, buffers: verify_kernel(
        CppRenderer().kernel(nest, buffers, TARGET, CppConfig("all", 1))
    ),
}


def loops_of(nest: Nest, buffers: Mapping[str, Buffer]) -> Kernel:
    return loop_form(structure(nest, buffers), buffers)


def program_of(name: str) -> tuple[LoopProgram, list[torch.Tensor]]:
    program = PROGRAMS[name]
    inputs = made_inputs(program)
    graph, _ = record(program.fn, *[clone(x) for x in inputs])
    return lower(graph, name), inputs


def kernels_of(program: LoopProgram, form: str = "loops") -> dict[str, Kernel]:
    scheduled = schedule(program, TARGET, Options()).program
    nests = [step for step in scheduled.steps if isinstance(step, Nest)]
    made = [
        FORMS[form](nest, scheduled.buffers)
        for nest in distinct_kernels(nests, scheduled.buffers).nests
    ]
    return {kernel.name: kernel for kernel in made}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory from a tensor's first element on."""
    start, storage = tensor.storage_offset(), tensor.untyped_storage()
    rest = storage.nbytes() // tensor.itemsize - start
    return torch.empty(0, dtype=tensor.dtype).set_(storage, start, (rest,))


def call(kernel: Kernel, tensors: list[torch.Tensor]) -> int:
    memory = {p.name: flat(t) for p, t in zip(kernel.params, tensors, strict=True)}
    return int(interpret(kernel, memory))


@pytest.mark.parametrize("form", [*FORMS])
@pytest.mark.parametrize("name", SMALL)
def test_each_form_computes_what_the_nests_do(name, form):
    program, inputs = program_of(name)
    kernels = kernels_of(program, form)
    if any(isinstance(each, Call) for kernel in kernels.values() for each in kernel.body):
        pytest.skip("a product is a call of the header files")
    plan, _ = render(schedule(program, TARGET, Options()), TARGET)
    ours, theirs = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got = PlanRunner(plan, {key: partial(call, kernel) for key, kernel in kernels.items()})(*ours)
    for a, b in zip([*got, *ours], [*run(program, theirs), *theirs], strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_values_leave_the_loops_that_do_not_change_them():
    program, _ = program_of("layer_norm_saved")
    (kernel,) = (linearize(kernel) for kernel in kernels_of(program).values())
    (rows,) = kernel.body
    names = [each.target.name for each in rows.body if isinstance(each, Let)]
    inner = [loop for loop in rows.body if isinstance(loop, For)]
    assert names, "the mean and its uses are computed once per row"
    assert not {v.name for loop in inner for v in defined(loop)} & set(names)


def defined(loop: For) -> list[Var]:
    return [each.target for each in statements(loop.body) if isinstance(each, Let)]


def test_equal_values_are_one_variable():
    kernel = linearized("chain")
    values = [each.value for each in statements(kernel.body) if isinstance(each, Let)]
    assert len(values) == len(set(values))


def linearized(name: str) -> Kernel:
    (kernel,) = kernels_of(program_of(name)[0]).values()
    return linearize(kernel)


def first_loop(kernel: Kernel, change) -> Kernel:
    loop = kernel.body[0]
    return replace(kernel, body=(replace(loop, body=change(loop.body)),))


MALFORMED = {
    "v0 is not defined": lambda body: body[1:],
    "defined twice": lambda body: (body[0], *body),
    "axis is bound twice": lambda body: (For((loop_axis(),), body),),
    "into no written parameter": lambda body: (*body[:-1], replace(body[-1], buffer="p")),
    "of another dtype": lambda body: (*body[:-1], replace(body[-1], value=LONG)),
    "no parameter absent": lambda body: (Section("part", "absent", Integer(0)), *body),
    "is not bound": None,
    "acc is not defined": lambda body: (*body, Set(Var("acc", torch.int64), LONG)),
}
LONG = Constant(1, torch.int64)


def loop_axis():
    return linearized("chain").body[0].axes[0]


@pytest.mark.parametrize("rule", MALFORMED)
def test_the_verifier_names_the_rule_that_is_broken(rule):
    kernel = linearized("chain")
    change = MALFORMED[rule]
    broken = (
        replace(kernel, body=kernel.body[0].body)
        if change is None
        else (first_loop(kernel, change))
    )
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(broken)


def test_stores_follow_all_values_of_their_point():
    kernel = linearized("momentum")
    body = kernel.body[-1].body
    kinds = [isinstance(each, Store) for each in body]
    assert kinds == sorted(kinds)
    assert sum(kinds) == 2


@pytest.mark.parametrize("form", ["expanded", "vectors", "tiles"])
def test_sums_inside_of_sums(form):
    (kernel,) = kernels_of(program_of("mlp_inference")[0], form).values()
    assert kernel.body
