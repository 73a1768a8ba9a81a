"""Behaviours of user-written Triton kernels over several calls; `python -m` runs all programs.

The process, under Triton's interpreter, prints a JSON object: for each program and each test its
error, or an empty string.
"""

from __future__ import annotations

import json
import traceback
from functools import partial

import torch
import triton

import jitmagic
from tests.programs.counts import breaks_of, counts_of
from tests.programs.harness import check

from . import kernels as k
from . import operators
from .programs import (
    PROGRAMS,
    add,
    between_pointwise,
    count_as_argument,
    gaps,
    padded,
    rows,
    scaled_by_argument,
    softmax_rows,
    two_views_of_one_tensor,
    written_argument,
)


def graphs_of(function):
    counts = counts_of(function)
    assert counts.breaks == 0, breaks_of(function)
    return counts.graphs


def numbers_vary_without_new_graphs():
    by_factor = jitmagic.jit(scaled_by_argument)
    for factor in (2.0, 3.0, -0.5, 1e9, 0.0):
        assert torch.equal(by_factor(rows(50), factor), scaled_by_argument(rows(50), factor))
    assert graphs_of(by_factor) == 2
    by_count = jitmagic.jit(count_as_argument)
    for n in (90, 64, 33, 1, 16, 17):
        assert torch.equal(by_count(rows(90), n), count_as_argument(rows(90), n))
    assert graphs_of(by_count) == 2


def probing_a_number_runs_no_kernel():
    """The range of a varying float is found by trial calls for other operators."""
    seen = []
    hooked = jitmagic.jit(scaled_by_argument)
    k.scale_kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append(1))
    try:
        hooked(rows(50), 2.0), hooked(rows(50), 3.0)
    finally:
        k.scale_kernel.pre_run_hooks.clear()
    assert len(seen) == 2, seen


def a_new_kernel_recompiles():
    def scaled(x):
        y = x + 1
        kernel[(2,)](y, 50, BLOCK=32)
        return y

    compiled = jitmagic.jit(scaled)
    for factor, kernel in ((2, k.double_kernel), (3, k.triple_kernel), (2, k.double_kernel)):
        assert torch.equal(compiled(rows(50)), (rows(50) + 1) * factor)


def a_replaced_helper_recompiles():
    """What a kernel writes depends on the functions that its code names."""

    def run(x):
        y, z = x + 1, x + 2
        k.replaced_helper_kernel[(1,)](y, z, 50, BLOCK=64)
        return y, z

    compiled = jitmagic.jit(run)
    for helper in (k.stores_in_first, k.stores_in_second, k.stores_in_first):
        k.store_helper = helper
        for mine, other in zip(compiled(rows(50)), run(rows(50)), strict=True):
            assert torch.equal(mine, other)


def arguments_that_share_memory_run_as_eager():
    def scaled(x, y):
        k.scale_kernel[(2,)](x, 50, 2.0, BLOCK=32)
        return y + 1

    compiled = jitmagic.jit(scaled)
    for start in (0, 10):
        memory, copy = rows(100), rows(100)
        found = compiled(memory[:50], memory[start : start + 50])
        wanted = scaled(copy[:50], copy[start : start + 50])
        assert torch.equal(found, wanted)
        assert torch.equal(memory, copy)


def tuning_launches_on_copies_once():
    """Eager multiplies in each launch that it measures; `restore_value` names no tensor here."""
    kernel = triton.autotune(
        [triton.Config({"BLOCK": block}) for block in (32, 64)], ["n"], do_bench=k.measured
    )(k.double_kernel)

    def scaled(x):
        n = x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
        return x + 1

    compiled = jitmagic.jit(scaled)
    for _ in range(2):
        x = rows(100)
        assert torch.equal(compiled(x), rows(100) * 2 + 1)
        assert torch.equal(x, rows(100) * 2)
    assert len(kernel.cache) == 1


def no_copy_is_made_where_nothing_reads_the_old_value():
    """A copy would be a nest of its own."""
    for function, nests in ((add, 0), (between_pointwise, 2), (written_argument, 1)):
        compiled = jitmagic.jit(function)
        compiled(*[rows(50)] * (1 + (function is not written_argument)))
        assert counts_of(compiled).kernels == nests, counts_of(compiled)


def backends_without_kernels_launch_too():
    for backend in ("eager", "aot_eager"):
        compiled = jitmagic.jit(two_views_of_one_tensor, backend=backend)
        found, wanted = compiled(rows(4, 10)), two_views_of_one_tensor(rows(4, 10))
        assert all(map(torch.equal, found, wanted)), backend
    for tier in ("numba", "aten"):
        compiled = jitmagic.jit(gaps, options={"cpu_tier": tier})
        assert all(map(torch.equal, compiled(*padded()), gaps(*padded()))), tier


def block_sizes_are_guarded_by_ranges():
    """One variant for each power of two, besides the first, whose sizes are constants."""
    compiled = jitmagic.jit(softmax_rows)
    for columns in (10, 12, 16, 9, 11, 20, 31, 17):
        x = rows(4, columns)
        torch.testing.assert_close(compiled(x), softmax_rows(x))
    assert graphs_of(compiled) == 3
    power = jitmagic.jit(lambda x, n: x * triton.next_power_of_2(n))
    for n in (0, 1, 3, 8, 9, 1000):
        assert torch.equal(power(rows(4), n), rows(4) * triton.next_power_of_2(n)), n


def transforms_of_torch_func_raise_as_eager():
    def differentiated(x):
        return torch.func.grad(lambda t: add(t, t).sum() + t.sum())(x)

    for run in (differentiated, jitmagic.jit(differentiated)):
        try:
            run(rows(50))
        except NotImplementedError as error:
            assert "storage" in str(error)
        else:
            raise AssertionError("no error")


def an_error_of_a_launch_repeats_no_write():
    def two_launches(x, y):
        k.scale_kernel[(2,)](x, 50, 2.0, BLOCK=32)
        k.failing_kernel[(1,)](y, 50, BLOCK=16)
        return y

    compiled = jitmagic.jit(two_launches)
    for run in (two_launches, compiled):
        x, y = rows(50), rows(50)
        try:
            run(x, y)
        except Exception as error:
            assert "the block is too large" in str(error), error
        else:
            raise AssertionError("no error")
        assert torch.equal(x, rows(50) * 2)
        assert torch.equal(y, rows(50))


TESTS = [
    block_sizes_are_guarded_by_ranges,
    transforms_of_torch_func_raise_as_eager,
    an_error_of_a_launch_repeats_no_write,
    numbers_vary_without_new_graphs,
    probing_a_number_runs_no_kernel,
    a_new_kernel_recompiles,
    a_replaced_helper_recompiles,
    arguments_that_share_memory_run_as_eager,
    tuning_launches_on_copies_once,
    no_copy_is_made_where_nothing_reads_the_old_value,
    backends_without_kernels_launch_too,
    operators.a_new_formula_recompiles,
]


def main() -> None:
    found: dict[str, str] = {}
    for number, program in enumerate(PROGRAMS):
        found[f"{number} {program}"] = error_of(partial(check, program))
    for test in TESTS:
        jitmagic.reset()
        found[test.__name__] = error_of(test)
    print(json.dumps(found))


def error_of(run) -> str:
    try:
        run()
    except BaseException:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main()
