"""Attention on a GPU: one graph, with the kernel that eager takes, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import jitmagic
from tests.processes import run_python
from tests.programs.counts import counts_of

pytestmark = pytest.mark.device

CUDA = torch.device("cuda:0")


@dataclass(frozen=True)
class Case:
    """One call of attention; `kind` names the backend that is forced, "" leaves it to torch."""

    kind: str = ""
    dtype: torch.dtype = torch.bfloat16
    mask: str = ""
    length: int = 128
    heads: tuple[int, int] = (4, 4)  # of the query, of key and value
    width: int = 64
    amp: bool = False
    settings: tuple[tuple[str, Any], ...] = ()


LOW = (torch.bfloat16, torch.float16)
CASES = [
    *(Case(dtype=dtype) for dtype in (*LOW, torch.float32, torch.float64)),
    *(Case(kind, dtype) for kind in ("CUDNN", "FLASH", "EFFICIENT", "MATH") for dtype in LOW),
    *(Case(kind, torch.float32) for kind in ("EFFICIENT", "MATH")),
    *(Case(k, settings=(("dropout_p", 0.2),)) for k in ("", "CUDNN", "FLASH", "EFFICIENT")),
    *(Case(k, settings=(("is_causal", True),)) for k in ("", "CUDNN", "FLASH", "EFFICIENT")),
    *(Case(mask=mask) for mask in ("bool", "float", "expanded", "rows", "turned", "learned")),
    *(Case(mask=mask, length=197) for mask in ("bool", "all", "expanded")),
    *(Case("EFFICIENT", torch.float32, mask, 197) for mask in ("bool", "float", "learned")),
    *(Case(dtype=dtype, mask="causal") for dtype in (torch.bfloat16, torch.float32)),
    Case(mask="causal", length=197),
    Case(length=197, settings=(("dropout_p", 1e-30),)),
    Case(width=60),
    Case(heads=(4, 2), settings=(("enable_gqa", True), ("is_causal", True))),
    Case(settings=(("scale", 0.3),)),
    Case(dtype=torch.float32, amp=True),
    Case(dtype=torch.float32, amp=True, mask="expanded", settings=(("dropout_p", 0.2),)),
]


def mask_of(case: Case) -> torch.Tensor | None:
    shape = (2, 1, case.length, case.length)
    torch.manual_seed(3)
    keep = torch.rand(shape, device=CUDA) > 0.3
    keep[..., 0] = True  # no row without anything to attend to
    match case.mask:
        case "bool":
            return keep
        case "expanded":
            return keep[:, :, :1].expand(shape)
        case "rows":
            return (keep[..., :1] | True).expand(shape)
        case "turned":
            return keep.clone().transpose(-1, -2) | (torch.eye(case.length, device=CUDA) > 0)
        case "float" | "learned":
            dtype = torch.bfloat16 if case.amp else case.dtype
            made = torch.randn(shape, device=CUDA).to(dtype)
            return made.requires_grad_(case.mask == "learned")
    return None


def tensors_of(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(1)
    widths = (case.heads[0], case.heads[1], case.heads[1])
    return [
        torch.randn(2, case.length, heads, case.width, device=CUDA)
        .to(case.dtype)
        .to(dtype)
        .requires_grad_()
        for heads in widths
    ]


def program(case: Case) -> Any:
    settings = dict(case.settings)
    in_program = case.mask in ("all", "causal")

    def attend(q, k, v, mask):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if in_program:  # as transformers makes it while it is compiled
            rows = torch.arange(q.shape[2], device=q.device) + 0
            seen = 0 if case.mask == "all" else torch.arange(q.shape[2], device=q.device)
            mask = (rows[None, None, :, None] >= seen).expand(q.shape[0], -1, -1, q.shape[2])
        with torch.autocast("cuda", torch.bfloat16, enabled=case.amp):
            return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask, **settings)

    return attend


def outcome(call: Any, case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    given, mask = tensors_of(case, dtype), mask_of(case)
    if mask is not None and mask.is_floating_point() and dtype is torch.float64:
        mask = mask.detach().double().requires_grad_(mask.requires_grad)
    leaves = [*given, *([mask] if mask is not None and mask.requires_grad else [])]
    torch.manual_seed(9)
    out = call(*given, mask)
    return [out, *torch.autograd.grad(out.double().sin().sum(), leaves), torch.rand(3, device=CUDA)]


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact.double()).norm() / (1e-12 + exact.double().norm()))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case, mode: str) -> None:
    fn = program(case)
    kinds = [getattr(SDPBackend, f"{case.kind}_ATTENTION", SDPBackend.MATH)] if case.kind else None
    draws = any(name == "dropout_p" and value > 0.01 for name, value in case.settings)
    exact_case = replace(case, amp=False)
    exact = outcome(program(exact_case), exact_case, torch.float64)
    tagged = jitmagic.jit(fn, fullgraph=True, mode=mode)

    def both() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return outcome(tagged, case, case.dtype), outcome(fn, case, case.dtype)

    for _ in range(1 if mode == "default" else 4):
        if kinds is None:
            got, eager = both()
        else:
            with sdpa_kernel(kinds):
                got, eager = both()
        assert got[0].stride() == eager[0].stride()
        assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in eager]
        assert torch.equal(got[-1], eager[-1]), "the generator has moved otherwise"
        for one, two, three in zip(got[:-1], eager[:-1], exact[:-1], strict=True):
            if draws:
                assert error(one, two) < 2e-2
            else:
                assert error(one, three) <= 1.5 * error(two, three) + 1e-6
    assert counts_of(tagged).graphs == 1


def test_the_kernel_is_eagers() -> None:
    """Also after the settings of the process have changed."""

    def fn(q):
        return F.scaled_dot_product_attention(q, q, q)

    tagged = jitmagic.jit(fn, fullgraph=True)
    q = torch.randn(2, 4, 128, 64, device=CUDA, dtype=torch.bfloat16)

    def kernels(call: Any) -> set[str]:
        call(q)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            call(q)
            torch.cuda.synchronize()
        return {event.key for event in seen.key_averages() if "Memset" not in event.key}

    for kind in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        with sdpa_kernel(getattr(SDPBackend, kind)):
            assert kernels(tagged) == kernels(fn)
    assert kernels(tagged) == kernels(fn)


FIRST = """
import torch, jitmagic, warnings
warnings.simplefilter("error", jitmagic.errors.FallbackWarning)
from torch.nn.attention import SDPBackend, sdpa_kernel
attend = torch.nn.functional.scaled_dot_product_attention
q = torch.randn(2, 4, 64, 64, device="cuda")
with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
    made = jitmagic.jit(lambda q: attend(q, q, q), fullgraph=True)(q)
    assert torch.equal(made, attend(q, q, q))
"""


def test_the_first_attention_of_a_process() -> None:
    """It changes the order of preference, which the graph relies on."""
    done = run_python(FIRST)
    assert done.returncode == 0, done.stderr


def test_a_mask_that_hides_nothing_is_none() -> None:
    """transformers makes one while it is compiled, which no fused kernel takes as it lies."""
    case = Case(mask="all", length=197)
    fn = program(case)
    with torch.no_grad():
        given = tensors_of(case, case.dtype)
        want = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) * (2 if n == 0 else 1) for n, t in enumerate(given))
        )
        got = jitmagic.jit(fn)(*given, None)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == fn(*given, None).stride()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("shape", [(4, 197, 197), (2, 1, 197, 197), (2, 1, 1, 197)], ids=str)
def test_a_bias_in_training(shape: tuple[int, ...], learned: bool, mode: str) -> None:
    """Attention that is written out; rows of the lowest numbers have eager's gradients."""

    def fn(q, k, v, b):
        return (q @ k.mT * 0.3 + b).softmax(-1) @ v

    torch.manual_seed(0)
    given = [torch.randn(2, 4, 197, 64, device=CUDA) for _ in range(3)]
    bias = torch.randn(shape, device=CUDA)
    bias[..., -1, :50] = torch.finfo(torch.bfloat16).min
    bias[0, ..., 0, :] = torch.finfo(torch.bfloat16).min
    tagged = jitmagic.jit(fn, fullgraph=True, mode=mode)

    def outcome_of(call: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        low = [x.bfloat16().to(dtype).requires_grad_() for x in given]
        low.append(bias.bfloat16().to(dtype).requires_grad_(learned))
        out = call(*low)
        leaves = low if learned else low[:3]
        return [out, *torch.autograd.grad(out.double().sin().sum(), leaves)]

    exact = outcome_of(fn, torch.float64)
    for _ in range(1 if mode == "default" else 4):
        got, eager = outcome_of(tagged, torch.bfloat16), outcome_of(fn, torch.bfloat16)
        for place, (one, two, three) in enumerate(zip(got, eager, exact, strict=True)):
            assert (one.shape, one.dtype) == (two.shape, two.dtype)
            if place != 2:  # the gradient of k is transposed in eager, and contiguous from a kernel
                assert one.stride() == two.stride()
            assert error(one, three) <= 1.5 * error(two, three) + 1e-6
    assert counts_of(tagged).graphs == 1


NUMBERS = {
    "row": lambda x, c: x.__setitem__((slice(None), 0), 5),
    "element": lambda x, c: x.__setitem__((0, 0), 5.0),
    "mask": lambda x, c: x.__setitem__(x > 1, 7),
    "index": lambda x, c: x.__setitem__(torch.tensor([0, 1], device=x.device), 7),
    "scalar of the CPU": lambda x, c: x.__setitem__(0, c),
    "filled": lambda x, c: x.fill_(c),
    "masked": lambda x, c: x.masked_fill_(x > 1, c),
    "copied": lambda x, c: x.copy_(c),
    "row of the CPU": lambda x, c: x.__setitem__(0, c.expand(x.shape[1]) * 2),
    "added": lambda x, c: x.add_(c),
    "put": lambda x, c: x.index_put_((torch.tensor([1], device=x.device),), c),
}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("write", NUMBERS)
def test_writes_of_numbers_and_scalars_of_the_cpu(write: str, dtype: torch.dtype, mode: str):
    def fn(x, c):
        y = x.clone()
        NUMBERS[write](y, c)
        return y + 1

    tagged = jitmagic.jit(fn, fullgraph=True, mode=mode)
    for number in (3.0, -2.0, 3.0, 4.0):
        x = torch.arange(12, device=CUDA).reshape(3, 4).to(dtype)
        c = torch.tensor(number).to(dtype)
        assert torch.equal(tagged(x, c), fn(x, c))


def test_whether_the_stream_is_captured() -> None:
    def fn(x):
        return x + 1 if torch.cuda.is_current_stream_capturing() else x - 1

    tagged = jitmagic.jit(fn, fullgraph=True)
    x = torch.ones(4, device=CUDA)
    assert torch.equal(tagged(x), x - 1)
    assert counts_of(tagged).graphs == 1


LAYOUTS = {
    "convolution": lambda x, w: F.conv2d(x, w, padding=1),
    "depthwise": lambda x, w: F.conv2d(x, w[:, :1], groups=x.shape[1]),
    "transposed": lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1)),
    **{
        f"interpolate {mode}": lambda x, w, mode=mode: F.interpolate(x, size=(3, 5), mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    },
    "antialias": lambda x, w: F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
    "max_pool": lambda x, w: F.max_pool2d(x, 2),
    "avg_pool": lambda x, w: F.avg_pool2d(x, 2),
    "adaptive": lambda x, w: F.adaptive_avg_pool2d(x, 2),
    "adaptive max": lambda x, w: F.adaptive_max_pool2d(x, 2),
    "global": lambda x, w: F.adaptive_avg_pool2d(x, 1),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x, w: F.group_norm(x, 2),
    "instance_norm": lambda x, w: F.instance_norm(x),
    "softmax": lambda x, w: F.softmax(x, 1),
    "log_softmax": lambda x, w: F.log_softmax(x, 1),
    "cat": lambda x, w: torch.cat([x, x.contiguous()], 1),
    "cat both": lambda x, w: torch.cat([x, x], 1),
    "pixel_shuffle": lambda x, w: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x, w: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x, w: F.channel_shuffle(x, 2),
    "pad": lambda x, w: F.pad(x, (1, 1, 1, 1)),
    "reflect": lambda x, w: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicate": lambda x, w: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "circular": lambda x, w: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "unfold": lambda x, w: F.unfold(x, 2),
    "roll": lambda x, w: x.roll(1, 2),
    "flip": lambda x, w: x.flip(2),
    "cumsum": lambda x, w: x.cumsum(1),
    "sort": lambda x, w: x.sort(1).values,
    "prelu": lambda x, w: F.prelu(x, w[0, 0, 0, :1]),
    "grid_sample": lambda x, w: F.grid_sample(x, x[:, :2].movedim(1, 3), align_corners=False),
    "index": lambda x, w: x[:, torch.tensor([0, 1], device=x.device)],
    "gather": lambda x, w: x.gather(1, torch.zeros_like(x, dtype=torch.int64)),
    "local_response_norm": lambda x, w: F.local_response_norm(x, 2),
    "glu": lambda x, w: F.glu(x, 1),
    "dropout": lambda x, w: F.dropout(x, 0.0),
    "mean": lambda x, w: x.mean((2, 3), keepdim=True),
    "upsampled convolution": lambda x, w: F.interpolate(
        F.conv2d(x, w), size=(3, 5), mode="nearest-exact"
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_results_lie_as_eagers_in_channels_last(name: str, dtype: torch.dtype) -> None:
    fn = LAYOUTS[name]
    torch.manual_seed(0)
    w = torch.randn(4, 4, 2, 2, device=CUDA).to(dtype)
    tagged = jitmagic.jit(lambda x, w: fn(x, w))
    for shape in ((2, 4, 6, 8), (2, 16, 6, 8)):
        x = torch.randn(shape, device=CUDA).to(dtype).contiguous(memory_format=torch.channels_last)
        weight = w if shape[1] == 4 else torch.randn(16, 16, 2, 2, device=CUDA).to(dtype)
        got, want = tagged(x, weight), fn(x, weight)
        wide = [n for n, extent in enumerate(want.shape) if extent > 1]
        assert [got.stride(n) for n in wide] == [want.stride(n) for n in wide], shape
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
