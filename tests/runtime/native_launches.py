"""Compares native launches of Triton kernels with Triton's; `python -m` runs all, without a GPU.

A program launches once in eager and then under jit. The launches must have the same grid, block and
arguments, byte by byte, and after the first call of a specialisation none goes through Triton. The
kernels write to arguments of the program, whose addresses are the same in both.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import jitmagic
from tests.programs.counts import breaks_of, counts_of
from tests.programs.triton_kernels import kernels as k

from .recorded_launches import Launched, Recorder

RECORDER: Recorder
CALLS = 4  # until a launch of a new size tuple is native


def launches(
    run: Callable[..., Any], given: Sequence[Any]
) -> tuple[list[Launched], list[Launched]]:
    """The launches of a call: through Triton, and native ones."""
    before = len(RECORDER.through_triton), len(RECORDER.native)
    run(*given)
    return RECORDER.through_triton[before[0] :], RECORDER.native[before[1] :]


def compare(
    fn: Callable[..., Any], *calls: Sequence[Any], native: bool = True, moved: bool = False
) -> Any:
    """Check that launches become native, or do not, and are as Triton's at each call.

    moved: the graph writes to a copy of its argument first, so only distances are compared
    """
    compiled = jitmagic.jit(fn, options={"keep": "compiled"})
    for given in calls:
        fn(*given)  # tunes
        wanted, _ = launches(fn, given)
        wanted = relative(wanted) if moved else wanted
        made = [launches(compiled, given) for _ in range(CALLS)]
        for through_triton, found in made:
            one = (through_triton or found)[-len(wanted) :]  # the first one tunes on copies
            assert wanted == (relative(one) if moved else one), (given, wanted, one)
        assert bool(made[-1][1]) == native, (given, made)
    assert counts_of(compiled).breaks == 0, breaks_of(compiled)
    return compiled


def relative(made: list[Launched]) -> list[Launched]:
    """Launches with addresses relative to the lowest one."""
    lowest = min((one for launched in made for one in addresses(launched)), default=0)
    return [
        replace(one, arguments=tuple(a - lowest if type(a) is int else a for a in one.arguments))
        for one in made
    ]


def addresses(launched: Launched) -> list[int]:
    return [one for one in launched.arguments if type(one) is int]


def vector(n: int = 100, start: int = 0) -> torch.Tensor:
    return torch.arange(float(n + start))[start:]


def scaled(x, factor=2.0):
    n = x.numel()
    k.scale_kernel[(triton.cdiv(n, 32),)](x, n, factor, BLOCK=32)


def counted(x, n):
    k.scale_kernel[(4, 2)](x, n, 2.0, BLOCK=32)


def sizes_and_alignments():
    """Triton compiles another kernel for 1, for multiples of 16 and for unaligned pointers."""
    calls = [(vector(n, start),) for n in (100, 64, 1, 33, 16, 128) for start in (0, 1, 4)]
    compare(scaled, *calls, *calls)


def numbers_of_both_widths():
    compare(counted, *[(vector(), n) for n in (5, 1, 16, 2**33, 2**33 + 1, -16, 2**31, 7)])


def floats_that_vary():
    compare(scaled, *[(vector(), factor) for factor in (2.0, 0.1, 1.0, 1e300, -3.5, float("inf"))])


def specialisations_are_shared_by_sizes():
    compiled = compare(scaled, *[(vector(n),) for n in (100, 101, 102)])
    first = [launches(compiled, (vector(n),)) for n in (*range(103, 112), 112, 128, 144)]
    assert [len(through_triton) for through_triton, _ in first] == [0] * 9 + [1, 0, 0], first


def views(x):
    part = x[2:4, ::2]
    k.scale_rows_kernel[(2,)](part, *part.stride(), part.shape[1], 2.0, BLOCK=16)
    k.scale_rows_kernel[(2,)](x.t(), *x.t().stride(), 4, 2.0, BLOCK=16)


def views_of_arguments():
    calls = [(vector(10 * n).view(n, 10),) for n in (4, 6, 9)]
    compare(views, *calls, moved=True)


def empty_view(x):
    k.add_kernel[(1,)](x[:0], x, x[1:], 0, BLOCK=16)


def views_without_elements():
    compare(empty_view, (vector(),), (vector(50, 1),))


def no_blocks(x, n):
    k.scale_kernel[(n, 3)](x, 5, 2.0, BLOCK=32)


def empty_grids_launch_nothing():
    compiled = compare(no_blocks, *[(vector(), n) for n in (2, 3, 4)])
    made = [launches(compiled, (vector(), 0)) for _ in range(CALLS)]
    assert ([], []) in made, made


@triton.jit
def typed(
    x,
    wide: tl.int64,
    real: tl.float32,
    double: tl.float64,
    flag,
    nothing,
    last=7,
    BLOCK: tl.constexpr = 16,
):
    offsets = tl.arange(0, BLOCK)
    value = real + double.to(tl.float32) + wide + last
    if nothing is None and flag:
        tl.store(x + offsets, value)


def annotated(x, number):
    typed[(1, 1, number)](x, number, number, 0.1, True, None)
    typed[(1,)](x, 16, 0.1, number, False, None, BLOCK=32, last=number, num_warps=2)


def annotations_defaults_and_options():
    compare(annotated, *[(vector(), n) for n in (3, 2, 16, 1, 5)], moved=True)


def pair(x, y):
    k.add_pair_kernel[(2,)]((x, y), x, 50, BLOCK=32)


def tuples():
    compare(pair, (vector(50), vector(60)), (vector(50, 1), vector(60)))


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x"])
def unspecialised(x, n):
    tl.store(x + tl.arange(0, 16), n)


def unspecialised_numbers(x, n):
    unspecialised[(1,)](x, n)


def parameters_without_specialisation():
    compare(unspecialised_numbers, *[(vector(start=s), n) for s in (0, 1) for n in (5, 1, 16, 3)])


def tuned(x):
    n = x.numel()
    k.tuned_scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)


def tuned_by_heuristics(x):
    n = x.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"] * meta["ROWS"]), 1 + meta["EVEN"])  # noqa: E731
    k.tuned_heuristic_kernel[grid](x, x, n, BLOCK=16)


def heuristic(x):
    k.heuristic_kernel[(1,)](x, x, x.numel())


def tuning_and_heuristics():
    for fn in (tuned, tuned_by_heuristics, heuristic):
        compare(fn, *[(vector(n),) for n in (100, 64, 70, 100, 64, 48)])


TIMES = 3


def heuristics_that_read_more_than_arguments():
    def number_of_module(args):
        return TIMES

    unstable = {
        "an address": lambda args: args["x"].data_ptr() % 64 == 0,
        "data": lambda args: bool(args["x"][0] > 0),
        "a variable": number_of_module,
    }
    for name, function in unstable.items():
        kernel = triton.heuristics({"FLAG": function})(flagged)

        def run(x, kernel=kernel):
            kernel[(1,)](x)

        compare(run, (vector(),), native=False)
        assert name


@triton.jit
def flagged(x, FLAG: tl.constexpr):
    tl.store(x + tl.arange(0, 16), FLAG)


def configurations_with_hooks():
    configs = [triton.Config({"FLAG": n}, pre_hook=lambda args: args["x"].zero_()) for n in (1, 2)]
    kernel = triton.autotune(configs, [], do_bench=k.measured)(flagged)

    def run(x):
        kernel[(1,)](x)

    compare(run, (vector(),), native=False)


def hooks_of_a_kernel_run_at_each_launch():
    compiled = compare(scaled, (vector(),))
    seen = []
    k.scale_kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append(1))
    try:
        assert [len(part) for part in launches(compiled, (vector(),))] == [1, 0]
    finally:
        k.scale_kernel.pre_run_hooks.clear()
    assert seen == [1]
    assert any(launches(compiled, (vector(),))[1] for _ in range(CALLS))


def clusters(x):
    flagged[(1,)](x, FLAG=1, num_ctas=2)


def described(x):
    whole = TensorDescriptor.from_tensor(x, [8, 8])
    k.descriptor_kernel[(1,)](whole, whole)


def launches_with_attributes():
    compare(clusters, (vector(),), native=False)


FACTOR = tl.constexpr(3)


@triton.jit
def times_global(x):
    tl.store(x + tl.arange(0, 16), FACTOR)


def a_changed_global_constant_raises():
    def run(x):
        times_global[(1,)](x)

    compiled = compare(run, (vector(),))
    globals()["FACTOR"] = tl.constexpr(4)
    for call in (run, compiled):
        try:
            call(vector())
        except RuntimeError as error:
            assert "Global variable FACTOR has changed" in str(error)
        else:
            raise AssertionError("no error")


TESTS = [
    sizes_and_alignments,
    numbers_of_both_widths,
    floats_that_vary,
    specialisations_are_shared_by_sizes,
    views_of_arguments,
    views_without_elements,
    empty_grids_launch_nothing,
    annotations_defaults_and_options,
    tuples,
    parameters_without_specialisation,
    tuning_and_heuristics,
    heuristics_that_read_more_than_arguments,
    configurations_with_hooks,
    hooks_of_a_kernel_run_at_each_launch,
    launches_with_attributes,
    a_changed_global_constant_raises,
]


def main(folder: str, *names: str) -> None:
    global RECORDER  # noqa: PLW0603 - one for the process: it replaces Triton's driver
    RECORDER = Recorder(Path(folder))
    found: dict[str, str] = {}
    for test in TESTS:
        if names and test.__name__ not in names:
            continue
        jitmagic.reset()
        found[test.__name__] = ""
        try:
            test()
        except BaseException:
            found[test.__name__] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
