"""flex_attention is one graph where its functions are elementwise, with the results of eager."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic.records import watchers
from jitmagic.trace.builtins.pytorch import flex_attention as builtin
from tests.codegen.flex_attention_programs import exact, programs
from tests.programs.counts import counts_of

HEADS, LENGTH = 4, 16
SLOPES, DOCUMENTS = torch.linspace(0.1, 0.4, HEADS), torch.arange(LENGTH) // 5
BIAS = torch.linspace(-1, 1, HEADS * LENGTH * LENGTH).view(HEADS, LENGTH, LENGTH)


@pytest.fixture(autouse=True)
def op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eager run its own operations; otherwise it calls torch.compile."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def blocks(function: Callable[..., Tensor], batch: int | None = None) -> Any:
    heads = None if batch is None else HEADS
    return create_block_mask(function, batch, heads, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)


SCORES: dict[str, Callable[..., Tensor]] = {
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "capped": lambda s, b, h, i, j: torch.tanh(s / 20) * 20,
    "a bias": lambda s, b, h, i, j: s + BIAS[h, i, j],
    "masked": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "a constant": lambda s, b, h, i, j: s * 0 + 2,
}
MASKS: dict[str, Any] = {
    "causal": blocks(lambda b, h, i, j: i >= j),
    "documents": blocks(lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j), 2),
    "a window": blocks(lambda b, h, i, j: (i - j).abs() < 3),
    "nothing": blocks(lambda b, h, i, j: i > 100),
    "every row but one": blocks(lambda b, h, i, j: (i != 3) | (b > 0)),
}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a scale": {"scale": 0.3},
    **{name: {"score_mod": function} for name, function in SCORES.items()},
    **{f"masked by {name}": {"block_mask": mask} for name, mask in MASKS.items()},
    "both": {"score_mod": SCORES["a bias"], "block_mask": MASKS["causal"], "scale": 0.5},
}


def tensors(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, HEADS, LENGTH, 8, dtype=dtype) for _ in range(3)]


def agree(program: Callable[..., Tensor], given: list[Tensor], **options: Any) -> None:
    fast = jitmagic.jit(program, **options)
    made, wanted = fast(*given), program(*given)
    # Eager rounds the shares to 16 bits; tiles do not.
    tolerance = {"rtol": 0.016, "atol": 0.02} if made.dtype is torch.bfloat16 else {}
    torch.testing.assert_close(made, wanted, **tolerance)
    assert made.stride() == wanted.stride()
    assert (counts_of(fast).graphs, counts_of(fast).breaks) == (1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_call_is_one_graph(call: str, dtype: torch.dtype) -> None:
    agree(lambda q, k, v: flex_attention(q, k, v, **CALLS[call]) * 2, tensors(dtype))


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_other_backends(backend: str) -> None:
    agree(lambda q, k, v: flex_attention(q, k, v, **CALLS["both"]), tensors(), backend=backend)


def test_fewer_heads_of_keys() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k[:, :2], v[:, :2], SCORES["alibi"], enable_gqa=True)

    agree(program, tensors())


def test_keys_shared_by_the_batch() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k[:1], v[:1], block_mask=MASKS["documents"])

    agree(program, tensors())


def test_result_has_the_layout_of_the_queries() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)

    agree(program, tensors())


LEARNED: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "queries and keys": ((LENGTH, LENGTH), lambda b, h, i, j: (i, j)),
    "by head": ((HEADS, LENGTH, LENGTH), lambda b, h, i, j: (h, i, j)),
    "by batch": ((2, LENGTH, LENGTH), lambda b, h, i, j: (b, i, j)),
    "all": ((2, HEADS, LENGTH, LENGTH), lambda b, h, i, j: (b, h, i, j)),
    "longer": ((LENGTH + 3, LENGTH), lambda b, h, i, j: (i, j)),
    "by distance": ((2 * LENGTH,), lambda b, h, i, j: (i - j + LENGTH,)),
}


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_a_learned_bias(
    name: str, is_masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU torch refuses gradients of its inputs, but not those of what a function reads."""
    monkeypatch.setattr(builtin, "_check_tensors", lambda *args: None)
    shape, place = LEARNED[name]
    axes = [
        torch.arange(n).view(-1, *(1,) * (3 - d)) for d, n in enumerate((2, HEADS, LENGTH, LENGTH))
    ]
    mask, is_kept = (MASKS["causal"], axes[2] >= axes[3]) if is_masked else (None, axes[2] > -1)
    bias = torch.linspace(-1, 1, math.prod(shape)).view(shape).requires_grad_()

    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        def score(s: Tensor, *axes: Tensor) -> Tensor:
            return s + bias[place(*axes)]

        return flex_attention(q, k, v, score, mask)

    given = [*(x.requires_grad_() for x in tensors()), bias]
    operators: list[str] = []

    def watch(record: Any, stage: Any, begins: bool) -> None:
        if not begins and stage.stage == "partition" and stage.result is not None:
            operators.extend(str(node.target) for node in stage.result.backward.graph.nodes)

    watchers.append(watch)
    try:
        made = jitmagic.jit(program, fullgraph=True)(*given)
    finally:
        watchers.remove(watch)
    wide = [x.detach().double().requires_grad_() for x in given]
    q, k, v, added = wide
    scores = (q @ k.mT * 8**-0.5 + added[place(*axes)]).masked_fill(~is_kept, -math.inf)
    wanted = torch.softmax(scores, -1) @ v
    torch.testing.assert_close(made.double(), wanted, atol=1e-6, rtol=1e-5)
    found = torch.autograd.grad(made.sin().sum(), given)
    expected = torch.autograd.grad(wanted.sin().sum(), wide)
    for one, exact_one in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), exact_one, atol=1e-6, rtol=1e-5)
    has_kernel = name not in ("longer", "by distance")
    assert has_kernel == any("bias_gradient" in one for one in operators)


def test_changed_mask_and_bias() -> None:
    held = {"mask": MASKS["causal"]}
    fast = jitmagic.jit(lambda q, k, v: flex_attention(q, k, v, block_mask=held["mask"]))
    given = tensors()
    for name in ("causal", "a window", "causal"):
        held["mask"] = MASKS[name]
        torch.testing.assert_close(fast(*given), flex_attention(*given, block_mask=MASKS[name]))


@pytest.mark.parametrize(
    "function",
    [
        lambda s, b, h, i, j: s + BIAS[h][i][j],
        lambda s, b, h, i, j: s + s.sum() * 0.1,
        lambda s, b, h, i, j: s + torch.stack([i, j]).sum(),
    ],
)
def test_functions_of_other_operations_run_as_eager(function: Callable[..., Tensor]) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, function) + 1

    given = tensors()
    fast = jitmagic.jit(program)
    torch.testing.assert_close(fast(*given), program(*given))
    assert counts_of(fast).breaks


def grad_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q.requires_grad_(), k, v)


def other_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q, k[:, :2], v[:, :2])


def other_lengths(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q[:, :, :8], k, v, block_mask=MASKS["causal"])


def three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q[0], k[0], v[0])


@pytest.mark.parametrize("program", [grad_on_cpu, other_heads, other_lengths, three_dimensions])
def test_refused_calls_raise_as_eager(program: Callable[..., Tensor]) -> None:
    errors = []
    for run in (program, jitmagic.jit(program)):
        with pytest.raises(Exception) as caught:
            run(*tensors())
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


MADE_INSIDE: dict[str, tuple[Any, ...]] = {
    "causal": (lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH),
    "by batch and head": (lambda b, h, i, j: (i + h >= j) | (b > 0), 2, HEADS, LENGTH, LENGTH),
    "documents of odd lengths": (
        lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j], None, None, LENGTH - 3, LENGTH - 1,
    ),
    "nothing": (lambda b, h, i, j: i > 100, None, None, LENGTH, LENGTH),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE_INSIDE)
@pytest.mark.parametrize("size", [4, (4, 8)])
def test_block_mask_made_inside(name: str, size: int | tuple[int, int]) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        mask = create_block_mask(*MADE_INSIDE[name], device="cpu", BLOCK_SIZE=size)
        made = flex_attention(q, k, v, block_mask=mask)
        return made, mask.kv_num_blocks, mask.kv_indices, mask.full_q_num_blocks, mask.q_indices

    rows, columns = MADE_INSIDE[name][3:]
    q, k, v = tensors()
    given = q[:, :, :rows], k[:, :, :columns], v[:, :, :columns]
    fast = jitmagic.jit(program, fullgraph=True)
    for made, wanted in zip(fast(*given), program(*given), strict=True):
        torch.testing.assert_close(made, wanted)
    assert counts_of(fast).breaks == 0


def test_logsumexp_is_a_second_result() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=MASKS["every row but one"], return_lse=True)

    given = tensors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        wanted = program(*given)
    fast = jitmagic.jit(program, fullgraph=True)
    torch.testing.assert_close(fast(*given), wanted)


@pytest.mark.parametrize("name", programs("cpu"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_give_the_formula(name: str, dtype: torch.dtype) -> None:
    program = programs("cpu")[name]
    given = program.tensors(dtype)
    fast = jitmagic.jit(program.function(), fullgraph=True)
    out, lse = fast(*given)
    wanted, wanted_lse = exact(program, *[x.double() for x in given])
    tolerance = 2 * torch.finfo(dtype).eps + 1e-6
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-5, rtol=1e-5)
    assert counts_of(fast).kernels == 1


def test_lengths_that_vary_share_a_kernel() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[i, j] + SLOPES[h] * (j - i))

    fast = jitmagic.jit(program, dynamic=True)
    for length in (16, 33, 7, 300):
        given = [torch.randn(2, HEADS, length, 8) for _ in range(3)]
        bias = torch.randn(length, length)
        torch.testing.assert_close(fast(*given, bias), program(*given, bias))
    assert counts_of(fast).graphs == 1


def test_memory_is_linear_in_the_length() -> None:
    length = 1 << 11
    given = [torch.randn(1, 1, length, 8) for _ in range(3)]

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + (j - i) * 0.01)

    fast = jitmagic.jit(program, fullgraph=True)
    fast(*given)
    held = []
    for run in (fast, program):
        with torch.profiler.profile(profile_memory=True) as profile:
            run(*given)
        held.append(max(event.cpu_memory_usage for event in profile.events()))
    assert held[0] <= 8 * given[0].nbytes
    assert held[1] >= length * length * 4  # eager makes the score matrix


@pytest.mark.parametrize("name", ["causal with slopes", "capped", "grouped heads", "odd lengths"])
def test_gradients_where_no_kernel_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses gradients on the CPU; without that check the operators' formula gives them."""
    monkeypatch.setattr(builtin, "_check_tensors", lambda *args: None)
    program = programs("cpu")[name]
    given = [x.requires_grad_() for x in program.tensors()]
    wide = [x.detach().double().requires_grad_() for x in given]
    for options in ({}, {"backend": "aot_eager"}):
        fast = jitmagic.jit(program.function(), **options)
        results, wanted = fast(*given), exact(program, *wide)
        tangents = [torch.randn_like(x) for x in results]
        found = torch.autograd.grad(results, given, tangents)
        expected = torch.autograd.grad(wanted, wide, [t.double() for t in tangents])
        for made, value in zip(found, expected, strict=True):
            torch.testing.assert_close(made.double(), value, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
def test_gradient_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_check_tensors", lambda *args: None)
    program = programs("cpu")["capped"]
    given = [x.requires_grad_() for x in program.tensors()]
    wide = [x.detach().double().requires_grad_() for x in given]
    second = []
    for run, inputs in (
        (jitmagic.jit(program.function()), given),
        (lambda *x: exact(program, *x), wide),
    ):
        first = torch.autograd.grad(run(*inputs)[0].square().sum(), inputs, create_graph=True)
        second.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for made, value in zip(*second, strict=True):
        limit = 1e-5 * value.abs().max().item()
        torch.testing.assert_close(made.double(), value, atol=limit, rtol=1e-4)


def test_checkpoint_runs_attention_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_check_tensors", lambda *args: None)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q.sin(), k, v, SCORES["alibi"]).cos()

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made: Tensor = checkpoint(attention, q, k, v, use_reentrant=False)
        return made.sum()

    given = [x.requires_grad_() for x in tensors()]
    found = torch.autograd.grad(jitmagic.jit(program, fullgraph=True)(*given), given)
    plain = [x.detach().clone().requires_grad_() for x in given]
    wanted = torch.autograd.grad(jitmagic.jit(attention)(*plain).sum(), plain)
    torch.testing.assert_close(found, wanted)
