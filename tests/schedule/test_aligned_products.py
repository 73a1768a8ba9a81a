"""Products on a GPU's tensor cores have whole sizes; results stay eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitmagic.devices import CUDA_ROW
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern, Nest
from jitmagic.loops.libraries import on_tensor_cores
from jitmagic.loops.verify import verify
from jitmagic.schedule.libraries import aligned_products
from jitmagic.schedule.libraries.aligned_products import with_aligned_rows

from .test_fusion import lowered, scheduled

BF16 = torch.bfloat16
MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Make copies pay for matrices of any size."""
    monkeypatch.setattr(aligned_products, "row_of", lambda device: CUDA_ROW)
    monkeypatch.setattr(aligned_products, "_WORTH", 0)
    monkeypatch.setattr(aligned_products, "_WORTH_ODD", 0)


def rows(*shape, dtype=BF16, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=g) / shape[-1] ** 0.5).to(dtype)


def head(x, w, b):  # the result leaves the program
    return F.linear(F.gelu(x), w, b)


def head_without_bias(x, w, b):
    return F.linear(F.gelu(x), w)


def loss(x, w, b):  # only this program reads the result
    return F.log_softmax(F.linear(x, w, b).float(), -1)[..., 0].sum()


def both(x, w, b):
    logits = F.linear(x, w, b)
    return logits, F.log_softmax(logits.float(), -1)[..., 0].mean()


def mixed(x, w, b):  # over the middle dimension, as MLP-Mixer
    y = F.gelu(F.linear((x * 2).transpose(1, 2), w.t()[:, : x.shape[1]].contiguous()))
    return F.linear(y, w[: x.shape[1], : y.shape[-1]].contiguous()).transpose(1, 2) + x


def backward(x, w, b):
    d = F.softmax(F.linear(x, w, b).float(), -1).to(x.dtype).flatten(0, 1)
    return d @ w, d.t() @ x.flatten(0, 1), d.sum(0)


def gradients_given(x, w, b):
    d = w[:, :1].t() * b * x[..., :1].flatten(0, 1)
    return d.exp() @ w, d.exp().t() @ x.flatten(0, 1)


def attention(x, w, b):
    x = x[0]
    scores = torch.mm(x * 2, x.t())
    return torch.mm(F.softmax(scores.float(), -1).to(x.dtype), x)


def seen(x, w, b):  # another operation takes the result unpadded
    y = F.linear(x, w, b)
    return torch.sort(y, -1)[0], y.relu() * 2


def written(x, w, b):
    y = F.linear(x, w)
    w.copy_(w + 1)
    return y + F.linear(x, w)


def strided(x, w, b):
    y = (x * 2).view(x.shape[0], x.shape[1], -1, x.shape[2])[:, 1:, 0]
    return F.linear(y, w, b).sum(-1)


FUNCTIONS = (
    head,
    head_without_bias,
    loss,
    both,
    mixed,
    backward,
    gradients_given,
    attention,
    seen,
    written,
    strided,
)
SIZES = [(2, 5, 16, 13), (3, 7, 12, 30), (1, 9, 8, 24), (2, 8, 11, 10)]


def inputs(sizes=SIZES[0], dtype=BF16):
    batch, length, inner, words = sizes
    return [
        rows(*shape, dtype=dtype) for shape in ((batch, length, inner), (words, inner), (words,))
    ]


def products(program):
    return [s for s in program.steps if isinstance(s, Extern) and s.op in MATMULS]


def are_aligned(program) -> bool:
    """Return whether all sizes are multiples of 16 bytes, except of rows that are not
    contiguous.
    """
    for step in products(program):
        a, b, out = (program.buffers[name] for name in aligned_products._matrices(step))
        sizes = [a.shape[1], b.shape[1], *(a.shape[:1] if a.stride[0] == 1 else ())]
        rows = [max(a.stride), max(b.stride), max(out.stride)]
        if any(size % (16 // a.dtype.itemsize) for size in (*sizes, *rows)):
            return False
    return True


def results(fn, given):
    made = fn(*[x.clone() for x in given])
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_results_and_strides_match_eager(fn, sizes, dtype, tf32):
    given = inputs(sizes, dtype)
    program = with_aligned_rows(lowered(fn, *given))
    verify(program)
    assert are_aligned(program)
    expected = results(fn, given)
    for final in (program, scheduled(fn, *given).program):
        verify(final)
        assert are_aligned(final)
        for a, b in zip(run(final, [x.clone() for x in given]), expected, strict=False):
            torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
            assert a.stride() == b.stride()


def test_a_result_read_only_by_nests_is_not_copied():
    program = with_aligned_rows(lowered(loss, *inputs((2, 8, 16, 30))))
    assert [program.buffers[s.results[0]].shape for s in products(program)] == [(16, 32)]
    names = [s.name for s in program.steps if isinstance(s, Nest) and "copy" in s.name]
    assert not any(name.endswith("rows_copy") for name in names)


def test_a_gradient_is_copied_once_for_two_products():
    def fn(d, x, w):
        return d @ w, d.t() @ x

    given = rows(16, 13), rows(16, 16), rows(13, 16)
    program = with_aligned_rows(lowered(fn, *given))
    assert are_aligned(program)
    assert sum(isinstance(s, Nest) for s in program.steps) == 3  # d, w and the second result


def test_a_result_is_copied_in_parts(monkeypatch):
    monkeypatch.setattr(aligned_products, "_PART_BYTES", 16 * 2 * 4)
    monkeypatch.setattr(aligned_products, "_PART_ROWS", 4)
    for fn in (head, head_without_bias, both):
        given = inputs()
        program = with_aligned_rows(lowered(fn, *given))
        verify(program)
        assert [program.buffers[s.results[0]].shape[0] for s in products(program)] == [4, 4, 2]
        for final in (program, scheduled(fn, *given).program):
            verify(final)
            for a, b in zip(run(final, given), results(fn, given), strict=True):
                torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    "given",
    [
        inputs((2, 8, 16, 24)),
        inputs((2, 5, 16, 13), torch.float32),
    ],
)
def test_other_programs_are_unchanged(given):
    program = lowered(both, *given)
    assert with_aligned_rows(program) is program or with_aligned_rows(program) == program


def test_small_products_are_not_padded(monkeypatch):
    monkeypatch.setattr(aligned_products, "_WORTH", 256)
    monkeypatch.setattr(aligned_products, "_WORTH_ODD", 32)
    program = lowered(both, *inputs())
    assert with_aligned_rows(program).steps == program.steps


def test_settings_of_both_kinds_are_read():
    """Reading allow_tf32 raises where the new settings have no equivalent."""
    conv, rnn = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    kept = conv.fp32_precision, rnn.fp32_precision
    try:
        for conv.fp32_precision, rnn.fp32_precision in (("ieee", "tf32"), ("tf32", "ieee")):
            assert on_tensor_cores(torch.float32, "convolutions") is (conv.fp32_precision == "tf32")
            assert on_tensor_cores(BF16, "convolutions")
            assert not on_tensor_cores(torch.float64, "convolutions")
    finally:
        conv.fp32_precision, rnn.fp32_precision = kept
