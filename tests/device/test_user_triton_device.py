"""User-written Triton kernels on a GPU: values, gradients and writes as eager, CUDA graphs too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl

import jitmagic
from jitmagic.graph.triton.launches import Launch
from tests.programs.counts import counts_of
from tests.programs.triton_kernels import kernels as k
from tests.programs.triton_kernels import operators, programs

pytestmark = pytest.mark.device


def vectors(count=1, n=1000, grad=False):
    torch.manual_seed(n)
    return [torch.randn(n, device="cuda").requires_grad_(grad) for _ in range(count)]


def matrix():
    torch.manual_seed(0)
    return [torch.randn(4, 10, device="cuda")]


def histogram(values):
    counts = torch.zeros(10, dtype=torch.int32, device=values.device)
    n = values.numel()
    k.histogram_kernel[(triton.cdiv(n, 32),)](values, counts, n, BLOCK=32)
    return counts * 2


def digits():
    return [torch.arange(100, device="cuda") * 7 % 10]


CASES = [
    (programs.add, lambda: vectors(2)),
    (programs.between_pointwise, lambda: vectors(2)),
    (programs.softmax_rows, matrix),
    (programs.written_argument, vectors),
    (programs.old_value_read_later, vectors),
    (programs.written_twice, vectors),
    (programs.written_view, matrix),
    (programs.written_transposed, matrix),
    (programs.written_view_of_argument, matrix),
    (programs.written_beyond_a_view, matrix),
    (programs.same_tensor_twice, matrix),
    (programs.two_views_of_one_tensor, matrix),
    (histogram, digits),
    (programs.helper_functions, vectors),
    (programs.keywords_in_any_order, vectors),
    (programs.tuned, vectors),
    (programs.tuned_in_place, vectors),
    (programs.heuristics, vectors),
    (programs.tuned_heuristics, vectors),
    (programs.descriptors, lambda: [torch.ones(8, 8, device="cuda")]),
    (programs.tuple_of_tensors, lambda: vectors(2, 50)),
    (programs.constant_of_the_module, lambda: vectors(n=50)),
    (programs.autograd_function, lambda: vectors(grad=True)),
    (programs.autograd_function_in_place, lambda: vectors(grad=True)),
    (programs.checkpointed, lambda: vectors(grad=True)),
    (operators.operator, lambda: vectors(2)),
    (operators.operator_that_writes, vectors),
    (operators.operator_with_formula, lambda: vectors(grad=True)),
    (operators.wrapped_kernel, lambda: vectors(n=50)),
]


def outcome(run, given):
    """Results, gradients and inputs after a call."""
    made = run(*given)
    made = list(made) if isinstance(made, tuple) else [made]
    leaves = [tensor for tensor in given if tensor.requires_grad]
    if leaves:
        sum(one.sum() for one in made if one.requires_grad).backward()
    return [*made, *(leaf.grad for leaf in leaves), *given]


REPLAYED = {
    "between_pointwise", "written_argument", "written_twice", "written_view", "histogram", "tuned",
    "tuned_in_place", "autograd_function", "descriptors",
}  # fmt: skip
MODES = [
    pytest.param(fn, inputs, mode, id=f"{fn.__name__}-{mode}")
    for fn, inputs in CASES
    for mode in ("default", "reduce-overhead")
    if mode == "default" or fn.__name__ in REPLAYED
]


@pytest.mark.parametrize(("fn", "inputs", "mode"), MODES)
def test_values_gradients_and_writes(fn, inputs, mode):
    compiled = jitmagic.jit(fn, mode=mode)
    for _ in range(4):  # with CUDA graphs: plain calls, a recording, a replay
        for found, wanted in zip(outcome(compiled, inputs()), outcome(fn, inputs()), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
            assert found.stride() == wanted.stride()
    assert counts_of(compiled).breaks == 0


def test_sizes_alignments_and_numbers_vary():
    """Triton compiles another kernel for 1, for multiples of 16 and for unaligned pointers."""
    compiled = jitmagic.jit(programs.between_pointwise)
    for n in (128, 100, 1, 16, 33):
        for start in (0, 1):
            x, y = (one[start:] for one in vectors(2, n + start))
            wanted = programs.between_pointwise(x, y)
            torch.testing.assert_close(compiled(x, y), wanted, rtol=1e-5, atol=1e-5)
    scaled = jitmagic.jit(programs.scaled_by_argument)
    for factor in (2.0, 3.0, 0.25, -1.0):
        (x,) = vectors(n=50)
        torch.testing.assert_close(scaled(x, factor), programs.scaled_by_argument(x, factor))
    assert counts_of(scaled).graphs == 2


def test_launches_are_replayed_by_cuda_graphs():
    calls = []
    compiled = jitmagic.jit(programs.between_pointwise, mode="reduce-overhead")
    hook = lambda *args, **kwargs: calls.append(1)  # noqa: E731
    k.add_kernel.add_pre_run_hook(hook)
    x, y = vectors(2)
    try:
        for _ in range(20):
            compiled(x, y)
    finally:
        k.add_kernel.pre_run_hooks.remove(hook)
    assert 0 < len(calls) < 20, calls


@pytest.fixture
def through_triton(monkeypatch):
    """The kernels that were launched through Triton."""
    seen, launch = [], Launch.launch

    def noted(self, args):
        seen.append(self.name)
        return launch(self, args)

    monkeypatch.setattr(Launch, "launch", noted)
    return seen


NEEDS_TRITON = {"descriptors"}  # makes a descriptor at each launch


@pytest.mark.parametrize(("fn", "inputs"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_launches_become_native(fn, inputs, through_triton):
    compiled = jitmagic.jit(fn, options={"keep": "compiled"})
    for _ in range(3):
        outcome(compiled, inputs())
    through_triton.clear()
    found = outcome(compiled, inputs())
    assert bool(through_triton) == (fn.__name__ in NEEDS_TRITON), through_triton
    for one, wanted in zip(found, outcome(fn, inputs()), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-5)


def test_native_launches_of_every_specialisation(through_triton):
    compiled = jitmagic.jit(programs.between_pointwise, options={"keep": "compiled"})
    for turn in range(3):
        through_triton.clear()
        for n in (128, 100, 1, 16, 33, 101, 144):
            for start in (0, 1, 4):
                x, y = (one[start:] for one in vectors(2, n + start))
                wanted = programs.between_pointwise(x, y)
                torch.testing.assert_close(compiled(x, y), wanted, rtol=1e-5, atol=1e-5)
        assert turn < 2 or not through_triton


@triton.jit
def product_kernel(x, y, out, n, SIDE: tl.constexpr):
    """Multiplies square matrices in blocks: more shared memory than a kernel gets unasked."""
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for start in range(0, n, 64):
        inner = start + tl.arange(0, 64)
        left = tl.load(x + rows[:, None] * n + inner[None, :])
        total += tl.dot(left, tl.load(y + inner[:, None] * n + columns[None, :]))
    tl.store(out + rows[:, None] * n + columns[None, :], total)


def test_native_launch_with_much_shared_memory(through_triton):
    def product(x, y):
        out = torch.empty_like(x, dtype=torch.float32)
        grid = (x.shape[0] // 128, x.shape[0] // 128)
        product_kernel[grid](x, y, out, x.shape[0], SIDE=128, num_warps=8, num_stages=4)
        return out + 1

    torch.manual_seed(0)
    x, y = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    wanted = product(x, y)
    (kernel,) = product_kernel.device_caches[torch.cuda.current_device()][0].values()
    assert kernel.metadata.shared > 48 << 10
    compiled = jitmagic.jit(product, options={"keep": "compiled"})
    for _ in range(4):
        through_triton.clear()
        torch.testing.assert_close(compiled(x, y), wanted)
    assert not through_triton


def test_native_launches_on_a_side_stream_and_from_threads():
    compiled = jitmagic.jit(programs.between_pointwise)
    x, y = vectors(2)
    wanted = programs.between_pointwise(x, y)
    for _ in range(4):
        compiled(x, y)

    def run():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            found = [compiled(x, y) for _ in range(20)]
        stream.synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(run) for _ in range(8)]:
            for found in made.result():
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_native_launches_are_replayed_by_cuda_graphs(through_triton):
    compiled = jitmagic.jit(
        programs.between_pointwise, mode="reduce-overhead", options={"keep": "compiled"}
    )
    x, y = vectors(2)
    wanted = programs.between_pointwise(x, y)
    for _ in range(20):
        torch.testing.assert_close(compiled(x, y), wanted, rtol=1e-5, atol=1e-5)
    assert len(through_triton) <= 2, through_triton


@triton.jit
def tuned_inner(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * 2, mask=mask)


def test_tuning_of_a_kernel_that_writes_runs_on_copies():
    configs = [triton.Config({"BLOCK": block}) for block in (128, 256)]
    kernel = triton.autotune(configs, key=["n"])(tuned_inner)

    def doubled(x):
        n = x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
        return x + 1

    compiled = jitmagic.jit(doubled)
    for _ in range(2):
        (x,), (copy,) = vectors(), vectors()
        torch.testing.assert_close(compiled(x), copy * 2 + 1)
        torch.testing.assert_close(x, copy * 2)
    assert len(kernel.cache) == 1
